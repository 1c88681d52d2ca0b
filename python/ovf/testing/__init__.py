"""Dumps to test against: a writer, a simulated multi-rank step with planted faults, strategies.

Write a step whose first overflow is known:

    from ovf.testing import Fault, Layout, Training, write_training

    truth = write_training("dump", Training(Layout(tp=2, pp=2), faults=(Fault("forward", 3),)))

or, from a shell, `python -m ovf.testing dump --tp 2 --pp 2 --fault forward:3`. Property tests draw
steps from `ovf.testing.strategies`, which needs Hypothesis: `pip install "ovf-npu[testing]"`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ovf.testing.damage import Damage
from ovf.testing.encoding import Encoder, Encoding
from ovf.testing.fault import PLACES, Fault, FaultPlace
from ovf.testing.layout import Layout, Place
from ovf.testing.size import measure, scaled
from ovf.testing.step import Op, Origin, Step, Truth
from ovf.testing.training import Training, simulate, simulated_step
from ovf.testing.values import (
    P2POp,
    ProcessGroup,
    Scalar,
    TensorStat,
    Value,
    has_non_finite,
    to_json,
)
from ovf.testing.writer import RankWriter, write_step, write_training

if TYPE_CHECKING:
    from types import ModuleType

    # Not in `__all__`: a star import must work without Hypothesis.
    from ovf.testing import strategies as strategies

__all__ = [
    "PLACES",
    "Damage",
    "Encoder",
    "Encoding",
    "Fault",
    "FaultPlace",
    "Layout",
    "Op",
    "Origin",
    "P2POp",
    "Place",
    "ProcessGroup",
    "RankWriter",
    "Scalar",
    "Step",
    "TensorStat",
    "Training",
    "Truth",
    "Value",
    "has_non_finite",
    "measure",
    "scaled",
    "simulate",
    "simulated_step",
    "to_json",
    "write_step",
    "write_training",
]


def __getattr__(name: str) -> ModuleType:
    """Import the strategies when they are first asked for: they need Hypothesis."""
    if name == "strategies":
        return importlib.import_module("ovf.testing.strategies")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
