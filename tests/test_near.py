"""Near misses: what is listed, what is not, in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ovf
from small import INF, NAN, loss_chain, op, scalar, t, write_rank, write_step
from test_cli import run

DATA = Path(__file__).parent / "data"
HALF = "torch.float16"
FULL = "torch.float32"


def near(path, **options):
    return ovf.find_first_overflow(path, also=["near"], **options).near


def of(tmp_path, data):
    return near(write_rank(tmp_path / "step0" / "rank0", data))


@pytest.mark.parametrize(
    ("dtype", "value", "listed"),
    [
        ("torch.float16", 6551.0, True),
        ("torch.float16", 6549.0, False),
        ("torch.bfloat16", 3.4e37, True),
        ("torch.float32", 3.4e37, False),
        ("torch.float32", -3.5e37, True),
        ("torch.float64", 1e38, False),
        ("torch.float8_e4m3fn", 45.0, True),
        ("torch.float8_e5m2", 5000.0, False),
        ("Float16", 60000.0, True),
        ("torch.int64", 9e18, False),
        ("torch.made_up", 1e300, False),
    ],
)
def test_close_to_the_end_of_the_dtype(tmp_path, dtype, value, listed):
    put, got = t(value / 2, 0.0, dtype), t(max(value, 1.0), min(value, 0.0), dtype)
    found = of(tmp_path, {"Torch.foo.0.forward": op([put], [got])})
    assert [(m.kind, m.value) for m in found if m.slot == "output[0]"] == ([("limit", value)] if listed else [])


def test_where_it_was_made_not_where_it_went(tmp_path):
    large = t(60000.0, 0.0, HALF)
    data = {
        "Torch.matmul.0.forward": op([t(300.0, 0.0, HALF)], [large]),
        "Tensor.view.0.forward": op([large], [large]),
        "Torch.add.0.forward": op([large, t(1.0, 0.0, HALF)], [large]),
        "Torch.mul.0.forward": op([large], [t(61000.0, 0.0, HALF)]),
    }
    assert [(m.op_name, m.share) for m in of(tmp_path, data)] == [
        ("Torch.mul.0.forward", pytest.approx(61000 / 65504)),
        ("Torch.matmul.0.forward", pytest.approx(60000 / 65504)),
    ]


def test_what_was_asked_for_is_not_listed(tmp_path):
    data = {
        "Tensor.masked_fill.0.forward": op([t(1.0, 0.0, HALF), scalar(-60000.0)], [t(1.0, -60000.0, HALF)]),
        "Torch.full.0.forward": op([], [t(50000.0, 50000.0, HALF)]),
        "Torch.where.0.forward": op([t(1.0, 0.0, HALF)], [t(1.0, -65504.0, HALF)]),
        "Torch.where.1.forward": op([t(1.0, 0.0, FULL)], [t(1.0, -3.4028234663852886e38 / 2, FULL)]),
        "Torch.empty.0.forward": op([], [t(64000.0, 0.0, HALF)]),
        "Distributed.irecv.0.forward": op([t(61000.0, 0.0, HALF), scalar(1)], [t(62000.0, 0.0, HALF), scalar(1)]),
    }
    assert of(tmp_path, data) == ()


def test_before_the_first_overflow_first(tmp_path):
    data = {
        "Torch.exp.0.forward": op([t(30.0, 0.0, FULL)], [t(1e13, 1.0, FULL)]),
        "Torch.log.0.forward": op([t(1.0, -1.0, FULL)], [t(NAN, NAN, FULL)]),
        "Torch.exp.1.forward": op([t(40.0, 0.0, FULL)], [t(2e17, 1.0, FULL)]),
        "Torch.mul.0.forward": op([t(1e30, 0.0, FULL)], [t(2e38, 0.0, FULL)]),
        **loss_chain(t(NAN, NAN, FULL)),
    }
    found = of(tmp_path, data)
    assert [(m.op_name, m.kind, m.before_first) for m in found] == [
        ("Torch.exp.0.forward", "growth", True),
        ("Torch.mul.0.forward", "limit", False),
        ("Torch.exp.1.forward", "growth", False),
    ]
    assert found[0].growth == pytest.approx(1e13 / 30)


def test_a_clean_step_stays_clean_and_says_what_was_near(tmp_path):
    data = {"Torch.matmul.0.forward": op([t(300.0, 0.0, HALF)], [t(60000.0, 0.0, HALF)])}
    step = write_step(tmp_path / "step0", {0: data, 1: data})
    done = run("check", step, "--near")
    assert done.returncode == 0
    assert "CLEAN" in done.stdout
    assert "rank 1    Torch.matmul.0.forward   output[0] float16 6e+04   92% of the float16 range" in done.stdout
    assert run("check", step, "--near", "-q").stdout == ""
    assert "near" not in json.loads(run("check", step, "--json").stdout)
    assert [n["rank"] for n in json.loads(run("check", step, "--json", "--near").stdout)["near"]] == [0, 1]


def test_the_nearest_of_many_are_kept(tmp_path):
    data = {
        f"Torch.mul.{i}.forward": op([t(1.0, 0.0, HALF)], [t(10_000.0 + (i * 7919) % 50_000, 0.0, HALF)])
        for i in range(3000)
    }
    values = [m.value for m in of(tmp_path, data)]
    every = sorted({10_000.0 + (i * 7919) % 50_000 for i in range(3000)}, reverse=True)
    assert values == every[:16]


def test_real_clean_dumps_are_quiet():
    for case in sorted(DATA.glob("clean_*")):
        assert near(case) == (), case.name


def test_an_fp16_sum_is_seen_coming():
    found = near(DATA / "sum_overflows_in_all_reduce")
    assert found
    assert all(m.dtype == "float16" and m.share >= 0.1 for m in found if m.kind == "limit")
    assert found[0].before_first


def test_bad_values_are_not_near(tmp_path):
    data = {"Torch.exp.0.forward": op([t(88.0, 0.0, FULL)], [t(INF, 1.6e38, FULL)])}
    assert of(tmp_path, data) == ()
