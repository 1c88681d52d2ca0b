"""The simulator environment, where it exists."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("ovf") is None:
    # Nothing here needs the compiled part of ovf: a checkout that was not built will do.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from build_env import real_cann
from simulator import Simulator


@pytest.fixture(scope="session")
def simulator() -> Simulator:
    place = os.environ.get("OVF_NPU_ENV")
    if not place:
        pytest.skip("OVF_NPU_ENV is not set: build it with python tests/npu/build_env.py DIR")
    root = Path(place).resolve()
    if not (root / "env.json").exists():
        pytest.skip(f"{root} is not finished: run python tests/npu/build_env.py {root}")
    found = real_cann()
    if found is not None:
        pytest.skip(f"this machine has a CANN of its own ({found}); the simulator must not shadow it")
    if os.environ.get("CI"):
        pytest.skip("the simulator environment is never used in CI")
    return Simulator(root)
