"""msProbe's levels: its situations, its exceptions, and that nothing is decided by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ovf
from small import INF, NAN, collective, grad, loss_chain, op, recv, t, write_rank
from test_cli import run

DATA = Path(__file__).parent / "data"


def normed(top, norm):
    return {**t(top, 0.0), "Norm": norm}


@pytest.fixture
def step(tmp_path):
    data = {
        "Torch.exp.0.forward": op([t(1.0, 0.0)], [t(INF, 0.0)]),
        "Torch.relu.0.forward": op([t(INF, 0.0)], [t(INF, 0.0)]),
        "Torch.nan_to_num.0.forward": op([t(INF, 0.0)], [t(1.0, 0.0)]),
        "Torch.mul.0.forward": op([normed(1.0, 1.0), normed(1.0, NAN)], [normed(200.0, 100.1)]),
        "Torch.mul.1.forward": op([normed(1.0, 1.0)], [normed(200.0, 100.0)]),
        "Torch.zero.0.forward": op([normed(0.0, 0.0)], [normed(200.0, 101.0)]),
        "Torch.mean.0.forward": op([t(1.0, 0.0)], [{**t(1.0, 0.0), "Mean": INF}]),
        "Torch.empty.0.forward": op([], [t(NAN, NAN)]),
        "Torch.list.0.forward": op([[t(NAN, NAN)]], [t(1.0, 0.0)]),
        "Torch.dict.0.forward": op([{"a": t(NAN, NAN)}], [t(1.0, 0.0)]),
        **dict([recv(t(NAN, NAN), 1)]),
        **dict([collective("all_reduce", t(1.0, 0.0), t(NAN, NAN))]),
        "Torch.exp.0.backward": grad([t(1.0, 1.0)], [t(NAN, NAN)]),
    }
    return write_rank(tmp_path / "step0" / "rank0", data)


EXPECTED = {
    "Torch.exp.0.forward": ("critical", "made"),
    "Distributed.all_reduce.0.forward": ("critical", "made"),
    "Torch.mean.0.forward": ("critical", "made"),
    "Torch.exp.0.backward": ("critical", "made"),
    "Torch.relu.0.forward": ("high", "carried"),
    "Torch.mul.0.forward": ("high", "norm_jump"),
    "Torch.zero.0.forward": ("high", "norm_jump"),
    "Torch.nan_to_num.0.forward": ("medium", "ended"),
    "Torch.list.0.forward": ("medium", "ended"),
}


def test_the_levels_of_a_step(step):
    levels = ovf.find_first_overflow(step, also=["levels"]).levels
    assert {o.op_name: (o.level, o.scene) for o in levels.ops} == EXPECTED
    assert [o.level for o in levels.ops] == sorted(
        (o.level for o in levels.ops), key=["critical", "high", "medium"].index
    )
    assert {c.scene: c.count for c in levels.counts} == {"made": 4, "carried": 1, "ended": 2, "norm_jump": 2}
    ratio = next(o.norm_ratio for o in levels.ops if o.op_name == "Torch.mul.0.forward")
    assert ratio == pytest.approx(100.1)
    assert levels.ops_omitted == 0


def test_the_column_of_the_table_is_the_same(step):
    lines = b"".join(ovf.op_table(step).text("jsonl")).decode().splitlines()
    found = {row["op_name"]: row["level"] for row in map(json.loads, lines) if row["level"]}
    assert found == {name: level for name, (level, _) in EXPECTED.items()}


def test_only_when_asked_and_nothing_else_changes():
    plain = ovf.find_first_overflow(DATA / "fully_masked_row").to_dict()
    asked = ovf.find_first_overflow(DATA / "fully_masked_row", also=["levels"]).to_dict()
    assert "levels" not in plain
    levels = asked.pop("levels")
    assert asked == plain
    assert sum(c["count"] for c in levels["counts"]) == len(levels["ops"]) + levels["ops_omitted"]


def test_a_mask_is_critical_to_them_and_clean_to_us():
    done = run("check", DATA / "clean_log_mask", "--levels")
    assert done.returncode == 0
    assert "critical" in done.stdout
    assert "CLEAN" in done.stdout
    data = json.loads(run("check", DATA / "clean_log_mask", "--levels", "--json").stdout)
    assert data["verdict"] == "clean"
    assert data["levels"]["ops"][0]["level"] == "critical"


def test_a_user_may_move_the_threshold(tmp_path, step):
    rules = tmp_path / "rules.json"
    row = {"level": "medium", "scene": "tenfold", "bad_output": False, "bad_input": False, "norm_over": 10.0}
    rules.write_text(json.dumps({"schema_version": 1, "levels": [row]}))
    levels = ovf.find_first_overflow(step, also=["levels"], rules=rules).levels
    assert {o.op_name for o in levels.ops if o.scene == "tenfold"} == {
        "Torch.mul.0.forward",
        "Torch.mul.1.forward",
        "Torch.zero.0.forward",
    }


def test_threads_do_not_matter():
    texts = {
        json.dumps(ovf.find_first_overflow(DATA / "experts_all_to_all", also=["levels", "near"], threads=n).to_dict())
        for n in (1, 2, 5)
    }
    assert len(texts) == 1


def test_a_step_without_overflow_has_no_loss_of_levels(tmp_path):
    data = {**loss_chain(t(1.0, 0.0))}
    report = ovf.find_first_overflow(write_rank(tmp_path / "step0" / "rank0", data), also=["levels"])
    assert [c.scene for c in report.levels.counts] == ["made", "carried", "ended", "norm_jump"]
