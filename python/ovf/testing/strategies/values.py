"""Strategies of values: tensor statistics, scalars, odd records, anything nested."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from hypothesis import strategies as st

from ovf.testing import values
from ovf.testing.values import Scalar, TensorStat, Value, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

ValueClass: TypeAlias = Literal["finite", "+inf", "-inf", "nan", "unknown"]

FLOATS = tuple(values.SIGNIFICAND_BITS)
INTEGERS = ("torch.int64", "torch.int32", "torch.uint8")
TENSOR_TYPES = (
    "torch.Tensor",
    "torch.Tensor",
    "torch.Tensor",
    "torch.distributed.tensor.DTensor",
    "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "mindspore.Tensor",
)

_SHAPES = st.lists(st.integers(0, 8), max_size=3).map(tuple)
_FINITE = st.floats(-60000, 60000, width=16)


@st.composite
def tensor_stats(
    draw: DrawFn,
    classes: Sequence[ValueClass] = get_args(ValueClass),
    dtypes: Sequence[str] = (*FLOATS, *INTEGERS, "torch.bool"),
    types: Sequence[str] = TENSOR_TYPES,
) -> TensorStat:
    """Draw the statistics of a tensor.

    Args:
        draw: given by Hypothesis.
        classes: classes of value to draw from; integers and booleans are always finite.
        dtypes: dtypes to draw from.
        types: classes of tensor to draw from.

    Returns:
        Statistics whose maximum is not below their minimum, as a dump holds them. A finite float
        tensor may have an infinite norm, which is no evidence of anything.
    """
    shape = draw(_SHAPES)
    dtype = draw(st.sampled_from(dtypes))
    kind = draw(st.sampled_from(types))
    grad = draw(st.booleans())
    value_class = draw(st.sampled_from(classes))
    if value_class == "unknown" or 0 in shape:
        return TensorStat(dtype, shape, None, None, None, None, grad, kind)
    if dtype == "torch.bool":
        low, high = sorted(draw(st.tuples(st.booleans(), st.booleans())))
        return TensorStat(dtype, shape, high, low, type=kind)
    if dtype in INTEGERS:
        least = 0 if dtype == "torch.uint8" else -(2**31)
        low_int, high_int = sorted(draw(st.tuples(*[st.integers(least, 255)] * 2)))
        return TensorStat(dtype, shape, high_int, low_int, type=kind)
    low_float, high_float = sorted(draw(st.tuples(_FINITE, _FINITE)))
    mean: float = (low_float + high_float) / 2
    norm = draw(st.sampled_from((1.5, 3.25, math.inf)))
    if value_class == "nan":
        low_float = high_float = mean = norm = math.nan
    elif value_class == "+inf":
        high_float = mean = norm = math.inf
    elif value_class == "-inf":
        low_float = mean = -math.inf
        norm = math.inf
    return TensorStat(dtype, shape, high_float, low_float, mean, norm, grad, kind)


@cache
def scalars() -> SearchStrategy[Scalar]:
    """Draw Python arguments: numbers of any size, non-finite ones too, texts, slices, dtypes.

    Returns:
        A strategy of scalar records.
    """
    ends = st.none() | st.integers(-4, 4)
    return st.one_of(
        st.builds(Scalar, st.just("int"), st.integers(-(10**30), 10**30)),
        st.builds(Scalar, st.just("float"), st.floats()),
        st.builds(Scalar, st.just("bool"), st.booleans()),
        st.builds(Scalar, st.just("str"), st.text(max_size=12)),
        st.builds(Scalar, st.just("slice"), st.tuples(ends, ends, ends).map(list)),
        st.just(Scalar("ellipsis", "...")),
        st.just(Scalar("torch.dtype", "torch.float16")),
        st.just(Scalar("torch.distributed.ReduceOp", "RedOpType.SUM")),
        st.just(Scalar("torch.Size", [2, 3])),
    )


@cache
def odd_records() -> SearchStrategy[Value]:
    """Draw what stands for a value in rarer dumps: tensors with digests only, saved data, nothing.

    Returns:
        A strategy of plain values.
    """
    digest: dict[str, Value] = {
        "type": "torch.Tensor",
        "dtype": "torch.float16",
        "shape": [2],
        "requires_grad": False,
    }
    saved: dict[str, Value] = {"data_name": "Torch.exp.0.forward.input.0.pt"}
    return st.one_of(
        st.none(),
        st.just({}),
        st.just({**digest, "md5": "0x0123456789abcdef"}),
        st.just({**digest, "tensor_stat_index": 7}),
        st.just({"type": "torch.ProcessGroup"}),
        st.just({"type": "torch.memory_format", "format": "torch.channels_last"}),
        tensor_stats().map(lambda stat: {**_record(stat), "md5": "0a1b2c3d"}),
        tensor_stats().map(lambda stat: {**_record(stat), **saved}),
    )


def _record(stat: TensorStat) -> dict[str, Value]:
    record = to_json(stat)
    if not isinstance(record, dict):  # pragma: no cover - `to_json` makes a dict of a tensor
        raise TypeError(type(record))
    return record


@cache
def nested_values() -> SearchStrategy[Value]:
    """Draw any value, nested to a small depth.

    Returns:
        A strategy of values.
    """
    leaves = st.one_of(tensor_stats(), scalars(), odd_records())
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(("hidden", "mask", "0", "null")), inner, max_size=2)
        ),
        max_leaves=4,
    )
