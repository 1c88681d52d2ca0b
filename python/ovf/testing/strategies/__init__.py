"""Hypothesis strategies: tensor statistics, ops, the dump of one rank, and whole steps.

Needs Hypothesis, `pip install "ovf-npu[testing]"`; nothing else in `ovf` does.

    from hypothesis import given
    from ovf.testing import strategies as dumps, write_step

    @given(step=dumps.steps(tp=2))
    def test_first_is_found(step, tmp_path_factory):
        step_dir = write_step(tmp_path_factory.mktemp("dump"), step)
        ...

Few choices are drawn and the rest follows from a seed, so examples shrink to small layouts. To let
`hypothesis.strategies.from_type` know these types, name `register_types` as an entry point of the
group `hypothesis`.
"""

from __future__ import annotations

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError('ovf.testing.strategies needs Hypothesis: pip install "ovf-npu[testing]"') from error

from ovf.testing.encoding import Encoding
from ovf.testing.layout import Layout
from ovf.testing.step import Op, Step
from ovf.testing.strategies.encodings import encodings
from ovf.testing.strategies.ops import communication_ops, op_names, ops, single_rank_dumps
from ovf.testing.strategies.steps import damages, faults, layouts, steps, trainings
from ovf.testing.strategies.values import nested_values, odd_records, scalars, tensor_stats
from ovf.testing.values import Scalar, TensorStat

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
    "register_types",
    "scalars",
    "single_rank_dumps",
    "steps",
    "tensor_stats",
    "trainings",
]


def register_types() -> None:
    """Teach `hypothesis.strategies.from_type` the types of this package.

    Meant as an entry point, which Hypothesis calls by itself:

        [project.entry-points.hypothesis]
        ovf = "ovf.testing.strategies:register_types"
    """
    st.register_type_strategy(TensorStat, tensor_stats())
    st.register_type_strategy(Scalar, scalars())
    st.register_type_strategy(Op, ops())
    st.register_type_strategy(Encoding, encodings())
    st.register_type_strategy(Layout, layouts())
    st.register_type_strategy(Step, steps())
