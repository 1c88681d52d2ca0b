"""The core against the slow reference: the same answer for whatever can be generated."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ovf
import reference
from ovf.testing import strategies, write_step
from programs import programs, step_of


def some(examples):
    """That many examples in the usual profile, in proportion in others."""
    return settings(max_examples=max(1, examples * settings.default.max_examples // 100))


def of_core(step_dir):
    """The core's report in the reference's words."""
    report = ovf.find_first_overflow(step_dir, threads=2).to_dict()
    findings = report["findings"]
    first = findings[0] if findings else None
    return {
        "verdict": report["verdict"],
        "first": first and (first["rank"], first["op_name"], first["kind"]),
        "findings": [
            {
                "rank": f["rank"],
                "op": f["op_name"],
                "kind": f["kind"],
                "severity": f["severity"],
                "layer": f["layer"],
                "depth": f["depth"],
                "concurrent": f["concurrent"],
                "members": [(m["rank"], m["op_name"]) for m in f["members"]],
                "reach_ops": f["reach_ops"],
                "reach_ranks": f["reach_ranks"],
            }
            for f in findings
        ],
        "communications": by_members(
            {
                "api": c["api"],
                "group": (tuple(c["group_ranks"]), c["group_id"]),
                "seq": c["seq"],
                "members": [(m["rank"], m["op_name"]) for m in c["members"]],
                "sources": c["source_ranks"],
                "propagated": c["propagated_ranks"],
                "normal": c["normal_ranks"],
                "missing": c["missing_ranks"],
                "unmatched": c["unmatched_ranks"],
                "state": c["state"],
                "verdict": c["verdict"],
            }
            for c in report["communications"]
        ),
        "ranks": [
            {
                "rank": r["rank"],
                "ops": r["ops"],
                "counts": r["counts"],
                "first_bad": r["first_bad"] and (r["first_bad"]["exec_order"], r["first_bad"]["op_name"]),
                "reached_by": r["reached_by"],
            }
            for r in report["ranks"]
        ],
        "broken": sorted(u["rank"] for u in report["unreadable"]),
    }


def by_members(rows):
    return sorted(rows, key=lambda row: (row["members"], row["api"], row["group"], row["seq"]))


def check(step_dir):
    core = of_core(step_dir)
    oracle = reference.analyse(step_dir)
    oracle["communications"] = by_members(oracle["communications"])
    assert core == {key: oracle[key] for key in core}


def check_step(step):
    with tempfile.TemporaryDirectory() as folder:
        check(write_step(folder, step))


@given(strategies.single_rank_dumps())
@some(150)
def test_single_ranks(step):
    check_step(step)


@given(strategies.steps())
@some(15)
def test_training_steps(step):
    check_step(step)


@given(strategies.steps(tp=2, max_ranks=4, min_faults=1))
@some(8)
def test_tensor_parallel(step):
    check_step(step)


@given(strategies.steps(pp=2, max_ranks=4, min_faults=1))
@some(8)
def test_pipelines(step):
    check_step(step)


@given(strategies.steps(dp=2, ep=2, max_ranks=4, min_faults=1))
@some(8)
def test_experts(step):
    check_step(step)


@given(programs())
@some(250)
def test_programs(program):
    step = step_of(program)
    assume(step.ranks)
    check_step(step)


@given(st.lists(strategies.single_rank_dumps(6), min_size=2, max_size=3))
@some(60)
def test_unrelated_ranks(steps):
    """Ranks whose dumps have nothing to do with each other: everything mismatches."""
    step = steps[0]
    step.ranks = {i: s.ranks[0] for i, s in enumerate(steps)}
    check_step(step)


def dumps():
    """Step folders with real dumps: tests/data, and those below the folder that OVF_CORPUS names."""
    here = Path(__file__).parent / "data"
    roots = [here, *([Path(os.environ["OVF_CORPUS"])] if "OVF_CORPUS" in os.environ else [])]
    found = {p.parent.parent for root in roots for p in root.rglob("dump.json")}
    return sorted(found)


@pytest.mark.parametrize("step_dir", dumps(), ids=lambda p: "/".join(p.parts[-2:]))
def test_real_dumps(step_dir):
    check(step_dir)
