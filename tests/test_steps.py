"""Several steps: the overview, the numbers people follow, and from the last good step to the first bad one."""

from __future__ import annotations

import json

import pytest

import ovf
from small import NAN, grad, op, t, write_rank, write_step
from test_cli import run

ONE = t(1.0, 1.0, shape=())


def scalar_t(value):
    return {**t(value, value, "torch.float32", shape=()), "Mean": value, "Norm": abs(value)}


def training(loss, norm, *, micro_batches=1, bad=False):
    """Forward, loss, backward, then the norm of the gradients."""
    data = {}
    for i in range(micro_batches):
        out = t(NAN, NAN) if bad else t(2.0, -2.0)
        data[f"Torch.matmul.{i}.forward"] = op([t(1.0, -1.0)], [out])
        data[f"Functional.cross_entropy.{i}.forward"] = op([out], [scalar_t(loss + i)])
        data[f"Functional.cross_entropy.{i}.backward"] = grad([ONE], [out])
        data[f"Torch.matmul.{i}.backward"] = grad([out], [out])
    data["Torch.norm.0.forward"] = op([t(1.0, 0.0)], [scalar_t(norm / 2)])
    data["Torch.norm.1.forward"] = op([t(1.0, 0.0)], [scalar_t(norm)])
    return data


@pytest.fixture
def root(tmp_path):
    for step in (0, 1, 2, 10):
        bad = step >= 2
        rows = {
            r: training(
                NAN if bad and r else 4.0 - step + r,
                NAN if bad else 1.0 + step + r,
                micro_batches=2,
                bad=bad and r == 1,
            )
            for r in (0, 1)
        }
        write_step(tmp_path / f"step{step}", rows)
    return tmp_path


def test_the_overview(root):
    steps = ovf.steps(root)
    assert [(s.step, s.verdict) for s in steps] == [(0, "clean"), (1, "clean"), (2, "overflow"), (10, "overflow")]
    assert (steps[2].first.rank, steps[2].first.op_name) == (1, "Torch.matmul.0.forward")
    # Mean over two ranks and two micro batches; the larger rank's largest norm.
    assert [s.loss.value for s in steps[:2]] == [5.0, 4.0]
    assert [s.gradient_norm.value for s in steps[:2]] == [2.0, 3.0]
    assert steps[0].loss.count == 4
    assert (steps[0].loss.op_name, steps[0].loss.rank) == ("Functional.cross_entropy.0.forward", 0)
    assert steps[2].loss.value != steps[2].loss.value
    assert (steps[2].loss.rank, steps[2].gradient_norm.rank) == (1, 0)
    assert steps[0].gradient_norm.op_name == "Torch.norm.1.forward"


def test_check_links_the_first_bad_step_to_the_last_good_one(root):
    report = ovf.find_first_overflow(root)
    data = report.to_dict()
    assert data["step"] == 2
    assert data["last_good"] == {"step": 1, "step_label": "step1", "loss": 4.0, "gradient_norm": 3.0}
    assert data["steps_omitted"] == 1
    assert [(s["step_label"], s["loss"]) for s in data["steps"]] == [("step0", 5.0), ("step1", 4.0), ("step2", "NaN")]
    assert data["steps"][2]["first"] == {"rank": 1, "op_name": "Torch.matmul.0.forward", "exec_order": 0}
    done = run("check", root)
    assert done.returncode == 1
    assert "last good step1: loss 4 -> nan, gradient norm 3 -> nan in step2" in done.stdout
    assert "(1 later step not looked at: ovf steps)" in done.stdout


def test_one_step_has_no_table_and_no_trend(root):
    report = ovf.find_first_overflow(root, step=2)
    assert report.to_dict()["last_good"] is None
    assert "trend" not in report.to_dict()
    assert "STEPS" not in run("check", root, "--step", 2).stdout


def test_the_command(root):
    done = run("steps", root)
    assert done.returncode == 1
    assert "FIRST BAD STEP  step2   rank 1   Torch.matmul.0.forward" in done.stdout
    assert run("steps", root, "--exit-zero").returncode == 0
    data = json.loads(run("steps", root, "--json").stdout, parse_constant=pytest.fail)
    assert (data["first_bad"], data["last_good"]["step_label"]) == ("step2", "step1")
    assert data["steps"][2]["loss"]["value"] == "NaN"
    assert data["steps"][3]["gradient_norm"]["value"] == "NaN"
    assert run("steps", root / "step0").returncode == 0
    assert run("steps", root / "nowhere").returncode == 2


def test_threads_do_not_matter(root):
    texts = {run("steps", root, "--json", "--threads", n).stdout for n in (1, 2, 7)}
    assert len(texts) == 1


def test_norms_of_weights_where_no_norm_is_dumped(tmp_path):
    data = {
        "Module.fc.Linear.forward.0": op([t(1.0, 0.0)], [t(1.0, 0.0)]),
        "Module.fc.Linear.backward.0": grad([t(1.0, 0.0)], [t(1.0, 0.0)]),
        "Module.fc.Linear.parameters_grad": {
            "weight": [{**t(1.0, 0.0), "Norm": 3.0}],
            "bias": [{**t(1.0, 0.0), "Norm": 4.0}],
        },
    }
    (step,) = ovf.steps(write_rank(tmp_path / "step0" / "rank0", data, level="L0"))
    assert (step.gradient_norm.value, step.gradient_norm.op_name) == (5.0, None)


def test_a_loss_by_name_where_no_gradient_is_dumped(tmp_path):
    data = {
        "Torch.matmul.0.forward": op([t(1.0, 0.0)], [scalar_t(7.0)]),
        "Functional.mse_loss.0.forward": op([t(1.0, 0.0)], [scalar_t(2.5)]),
        "Module.loss.MSELoss.forward.0": op([t(1.0, 0.0)], [scalar_t(2.5)]),
    }
    (step,) = ovf.steps(write_rank(tmp_path / "step0" / "rank0", data))
    assert (step.loss.value, step.loss.count) == (2.5, 1)
    assert step.gradient_norm is None


def test_a_dump_without_numbers_to_follow(tmp_path):
    data = {"Torch.matmul.0.forward": op([t(1.0, 0.0)], [t(1.0, 0.0)])}
    for step in (0, 1):
        write_rank(tmp_path / f"step{step}" / "rank0", data)
    done = run("steps", tmp_path)
    assert done.returncode == 0
    assert "no overflow in 2 steps" in done.stdout
    assert "loss" not in done.stdout


def test_damage_in_one_step_is_that_step_s(root):
    (root / "step1" / "rank0" / "dump.json").write_text("{")
    steps = ovf.steps(root)
    assert [s.incomplete for s in steps] == [False, True, False, False]
    assert run("steps", root).returncode == 2
    assert run("steps", root, "--allow-incomplete-ranks").returncode == 1


def test_many_steps_in_windows(tmp_path):
    for step in range(25):
        write_rank(tmp_path / f"step{step}" / "rank0", training(float(step), 1.0))
    assert [s.loss.value for s in ovf.steps(tmp_path, threads=4)] == [float(s) for s in range(25)]
