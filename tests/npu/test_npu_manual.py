"""The manual verification's logic, on a simulated CANN; nothing of it is a hardware result."""

from __future__ import annotations

import subprocess

import pytest
from simulator import ROOT

SCRIPT = ROOT / "manual_verify_force_overflow.py"


def run(simulator, kind, *arguments, **knobs):
    return subprocess.run(
        [simulator.python(kind), SCRIPT, *arguments],
        env=simulator.environment(**knobs),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["with", "without"])
def test_all_steps_pass(simulator, kind):
    done = run(simulator, kind, FORCE_OVERFLOW_CHECK="1")
    lines = [line for line in done.stdout.splitlines() if "ASCEND_HOME_PATH" not in line]
    assert done.returncode == 0, done.stderr[-2000:]
    assert lines[-1] == "[simulated] verified"
    assert len([line for line in lines if line.startswith("[simulated] ok ")]) == 6
    assert all(line.startswith("[simulated]") for line in lines)


def test_a_switch_without_effect_is_found(simulator):
    done = run(simulator, "with", FORCE_OVERFLOW_CHECK="1", OVF_SIM_SWITCH="inert")
    assert done.returncode == 1
    assert "NOT verified: fp16 65504 + 65504 sets the register" in done.stdout


def test_off_is_not_a_failure_of_the_device(simulator):
    assert run(simulator, "with").returncode == 2
    assert run(simulator, "with", FORCE_OVERFLOW_CHECK="1", OVF_SIM_CANN="9.0.0").returncode == 2


def test_perf_alternates_and_calls_simulated_times_meaningless(simulator):
    arguments = ["--perf", "--pairs", "2", "--iterations", "2", "--size", "16"]
    done = run(simulator, "without", *arguments)
    lines = [line for line in done.stdout.splitlines() if "switch" in line or "median" in line]
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert [line.split("switch ")[1].split()[0] for line in lines[:4]] == ["on", "off", "off", "on"]
    assert all(line.startswith("[simulated, meaningless]") for line in lines)
    assert "ratio" in lines[4]
