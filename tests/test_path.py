"""The path from the first overflow to where somebody would notice, step by step against the slow reference.

`python tests/test_path.py CORPUS` checks every case below a folder of real dumps.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

import ovf
import reference
from ovf.testing import Fault, Layout, Training, write_training

DATA = Path(__file__).parent / "data"
EIGHT = Path(__file__).parent.parent / "examples" / "tp2_pp4"
STORIES = sorted(p.name for p in DATA.iterdir() if (p / "expected.json").exists())
TRAININGS = [
    (Layout(tp=2, pp=2, dp=2), Fault("forward", 5, 1), {}),
    (Layout(tp=2, pp=2, dp=2), Fault("backward", 3), {"level": "mix"}),
    (Layout(tp=4, pp=1, dp=2), Fault("forward", 6), {"warm_up": True}),
    (Layout(tp=1, pp=4, dp=2), Fault("forward", 4, 1), {"schedule": "gpipe", "p2p": "isend"}),
    (Layout(tp=1, pp=4, dp=2), Fault("recv", 5), {"p2p": "send"}),
    (Layout(tp=2, pp=4, dp=1), Fault("weight", 5), {"p2p": "batch"}),
    (Layout(tp=2, pp=2, dp=2), Fault("forward", 4, -1), {"p2p": "batch", "garbage_buffers": True}),
    (Layout(tp=2, pp=1, dp=4), Fault("tp_all_reduce", 4), {}),
    (Layout(tp=1, pp=2, dp=4), Fault("dp_all_reduce", 2), {"level": "mix"}),
    (Layout(tp=2, pp=2, dp=1), Fault("batch", 1, 1), {}),
    (Layout(tp=1, pp=2, dp=2), Fault("optimizer", 3), {}),
    (Layout(tp=1, pp=1, dp=4, ep=4), Fault("expert", 2), {}),
    (Layout(tp=2, pp=2, dp=2), Fault("masked_row", 5), {"warm_up": True}),
    (Layout(tp=4, pp=2, dp=1), Fault("corruption", 6), {}),
]


class Oracle:
    """The reference's ranks, with what each delivery means."""

    def __init__(self, step):
        ranks, _ = reference.read_step(step)
        found, _ = reference.match_all(ranks)
        reference.settle_receipts(ranks, found)
        reference.break_circles(ranks)
        self.ranks = {r.number: r for r in ranks}

    def events(self, rank, op):
        return [e for e in self.ranks[rank].events if e.op == op and e.match]

    def came_from(self, rank, op):
        """Nodes that the op's node was made from, or that it put into a communication."""
        nodes = [p for n in self.ranks[rank].nodes if n.op == op for p in n.parents]
        for e in self.events(rank, op):
            if e.given and e.given.node:
                nodes.append(e.given.node)
            if e.given and not e.given.node:
                nodes += [c.got.node for c in e.given.conditions]  # a mask that was an overflow
        return nodes

    def is_read(self, rank, before, after, omitted):
        """Whether op `after` reads a value of op `before`, or of ops that do, as many as were left out between."""
        places = {after}
        for _ in range(omitted):
            places = {n.op for op in places for n in self.came_from(rank, op)}
        return any(n.op == before for op in places for n in self.came_from(rank, op))

    def is_carried(self, before, after):
        """Whether a communication took a bad value from one op and gave it to the other."""
        givers = [e for e in self.events(before.rank, before.exec_order) if e.given and e.given_real]
        getters = [e for e in self.events(after.rank, after.exec_order) if e.receipt == "propagated"]
        return any(e.match is g.match and e.match.gives(e) and e.match.gets(g) for e in givers for g in getters)

    def is_named(self, step):
        """Whether a person would name the op where the path ends as the report does."""
        rank = self.ranks[step.rank]
        op = rank.ops[step.exec_order]
        after = rank.last_backward is not None and op.index > rank.last_backward
        if step.symptom == "loss":
            return op.part == "forward" and op.name.call in rank.losses
        if step.symptom == "gradient_norm":
            return after and reference.says(reference.rows_of(op.name), "norm")
        if step.symptom == "optimizer":
            return after and op.name.in_place
        if step.symptom == "forward_output":
            return rank.ends_forward(op.index)
        if step.symptom == "gradient":
            return op.part != "forward"
        bad = [n.op for n in rank.nodes if n.real and n.harm]
        return step.symptom == "last_op" and op.index == max(bad)


def check(path):
    """Every pair of neighbours on the path is an edge; its start is the finding, its end has a name."""
    report = ovf.find_first_overflow(path)
    if report.first is None:
        assert report.path == ()
        return report
    (folder,) = {p for p in [Path(path), *Path(path).iterdir()] if p.name == report.step_label} or {Path(path)}
    oracle = Oracle(folder)
    first, last = report.path[0], report.path[-1]
    shown = {(m.rank, m.exec_order) for m in (report.first, *report.first.members)}
    assert (first.rank, first.exec_order) in shown
    assert [s.via for s in report.path].count("origin") == 1
    assert len({(s.rank, s.exec_order) for s in report.path}) == len(report.path)
    for before, after in itertools.pairwise(report.path):
        pair = f"{before} -> {after}"
        if after.via == "data":
            assert before.rank == after.rank, pair
            assert oracle.is_read(after.rank, before.exec_order, after.exec_order, after.omitted), pair
        else:
            assert after.via == "communication", pair
            assert after.omitted == 0, pair
            assert oracle.is_carried(before, after), pair
    assert last.symptom is not None, report.path
    assert oracle.is_named(last), last
    assert last.symptom == report.spread.symptom_kind
    return report


@pytest.mark.parametrize("path", [*(DATA / s for s in STORIES), EIGHT], ids=lambda p: p.name)
def test_the_path_of_real_dumps(path):
    check(path)


@pytest.mark.parametrize(("layout", "fault", "options"), TRAININGS, ids=lambda v: getattr(v, "name", None))
def test_the_path_of_generated_steps(tmp_path, layout, fault, options):
    write_training(tmp_path, Training(layout, layers=2 * layout.pp, faults=(fault,), **options))
    report = check(tmp_path)
    assert report.first is not None


def test_a_wrong_path_is_refuted():
    """The check has teeth: a step left out, a neighbour's op and an edge on the wrong rank are all noticed."""
    report = ovf.find_first_overflow(EIGHT)
    oracle = Oracle(EIGHT / "step0")
    data = [(a, b) for a, b in itertools.pairwise(report.path) if b.via == "data" and not b.omitted]
    assert all(oracle.is_read(b.rank, a.exec_order, b.exec_order, 0) for a, b in data)
    for (a, _), (_, c) in itertools.pairwise(data):
        assert not oracle.is_read(c.rank, a.exec_order - 1, c.exec_order, 0)
    for a, b in data:
        assert not oracle.is_read(b.rank, b.exec_order, a.exec_order, 0)
        assert not oracle.is_carried(a, b)


def main(corpus):
    """Checks every case of a corpus; prints what fails and how the paths end."""
    ends = {}
    for case in sorted(p for p in Path(corpus).iterdir() if p.is_dir()):
        try:
            report = check(case)
        except AssertionError as error:
            print(f"{case.name}: {str(error).splitlines()[0][:300]}")  # noqa: T201 - a tool for people
            continue
        end = report.path[-1].symptom if report.path else report.verdict
        ends[end] = ends.get(end, 0) + 1
    print(ends)  # noqa: T201 - a tool for people


if __name__ == "__main__":
    main(sys.argv[1])
