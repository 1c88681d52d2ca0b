"""Hypothesis strategies: tensor statistics, ops, the dump of one rank, and whole steps.

Needs Hypothesis, `pip install "ovf-npu[testing]"`; nothing else in `ovf` does.

    from hypothesis import given
    from ovf.testing import strategies as dumps, write_step

    @given(step=dumps.steps(tp=2))
    def test_first_is_found(step, tmp_path_factory):
        step_dir = write_step(tmp_path_factory.mktemp("dump"), step)
        ...

Few choices are drawn and the rest follows from a seed, so examples shrink to small layouts. `hypothesis.strategies.from_type`
knows these types (`ovf.testing.registration`).
"""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401 - said clearly once, for all modules below
except ImportError as error:
    raise ImportError('ovf.testing.strategies needs Hypothesis: pip install "ovf-npu[testing]"') from error

from ovf.testing.strategies.encodings import encodings
from ovf.testing.strategies.ops import communication_ops, op_names, ops, single_rank_dumps
from ovf.testing.strategies.steps import damages, faults, layouts, steps, trainings
from ovf.testing.strategies.values import nested_values, odd_records, scalars, tensor_stats

__all__ = [
    "communication_ops",
    "damages",
    "encodings",
    "faults",
    "layouts",
    "nested_values",
    "odd_records",
    "op_names",
    "ops",
    "scalars",
    "single_rank_dumps",
    "steps",
    "tensor_stats",
    "trainings",
]
