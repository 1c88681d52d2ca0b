"""Generated steps of tensor x pipeline x data (x expert) parallel ranks: the planted fault is named."""

from __future__ import annotations

import pytest

import ovf
from ovf.testing import Fault, Layout, Training, write_training

CASES = [
    (Layout(tp=1, pp=1, dp=1), Fault("forward", 0), {}),
    (Layout(tp=2, pp=2, dp=2), Fault("forward", 5, 1), {}),
    (Layout(tp=2, pp=2, dp=2), Fault("backward", 3), {"level": "mix"}),
    (Layout(tp=4, pp=1, dp=2), Fault("forward", 6), {"warm_up": True}),
    (Layout(tp=1, pp=4, dp=2), Fault("forward", 4, 1), {"schedule": "gpipe", "p2p": "isend"}),
    (Layout(tp=1, pp=4, dp=2), Fault("recv", 5), {"p2p": "send"}),
    (Layout(tp=2, pp=4, dp=1), Fault("weight", 5), {"p2p": "batch"}),
    (Layout(tp=2, pp=4, dp=2), Fault("forward", 10, -1), {"p2p": "batch", "garbage_buffers": True}),
    (Layout(tp=2, pp=1, dp=4), Fault("tp_all_reduce", 4), {}),
    (Layout(tp=1, pp=2, dp=4), Fault("dp_all_reduce", 2), {"level": "mix"}),
    (Layout(tp=2, pp=2, dp=1), Fault("batch", 1, 1), {}),
    (Layout(tp=1, pp=2, dp=2), Fault("optimizer", 3), {}),
    (Layout(tp=1, pp=1, dp=4, ep=4), Fault("expert", 2), {}),
    (Layout(tp=1, pp=2, dp=4, ep=2), Fault("forward", 6), {"garbage_buffers": True}),
    (Layout(tp=2, pp=2, dp=4), Fault("masked_row", 9), {"warm_up": True}),
    (Layout(tp=4, pp=2, dp=2), Fault("corruption", 11), {}),
]


@pytest.mark.parametrize(("layout", "fault", "options"), CASES, ids=lambda v: getattr(v, "name", None))
def test_the_planted_fault_is_named(tmp_path, layout, fault, options):
    training = Training(layout, layers=2 * layout.pp, faults=(fault,), **options)
    truth = write_training(tmp_path, training)
    report = ovf.find_first_overflow(tmp_path)
    good = {(o.rank, o.op) for o in (truth.first, *truth.also_acceptable)}
    assert (report.first.rank, report.first.op_name) in good
    assert report.first.certainty == "certain" or fault.place in {"recv", "corruption"}


@pytest.mark.parametrize("options", [{}, {"p2p": "batch", "garbage_buffers": True}, {"level": "mix", "p2p": "isend"}])
@pytest.mark.parametrize("layout", [Layout(tp=2, pp=2, dp=2), Layout(pp=4), Layout(dp=4, ep=2)])
def test_a_clean_step_is_clean(tmp_path, layout, options):
    write_training(tmp_path, Training(layout, layers=layout.pp, **options))
    report = ovf.find_first_overflow(tmp_path)
    assert report.verdict == "clean"
    assert not report.incomplete
    assert report.exit_code == 0
