"""The values a dump records: tensor statistics, scalars, process groups, point-to-point records.

A value is what stands among an op's inputs or outputs. The records here hold what msProbe writes,
no element of any tensor; `to_json` gives the plain object that a JSON reader gets back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

Number: TypeAlias = "bool | int | float | str | None"
"""A statistic: a string stands for a non-finite number in dumps of old writers."""

NAN = math.nan
INF = math.inf

# Significand bits of each floating dtype: statistics are exact in the tensor's own precision.
SIGNIFICAND_BITS = {
    "torch.float16": 11,
    "torch.bfloat16": 8,
    "torch.float32": 24,
    "torch.float64": 53,
}


class TensorStat(NamedTuple):
    """The summary of one tensor.

    Attributes:
        dtype: the dtype with its prefix, such as `torch.float16`.
        shape: the sizes, empty for a scalar tensor.
        max: the largest element; NaN if any element is NaN, None where none was computed.
        min: the smallest element, likewise.
        mean: the mean; None for integers and booleans.
        norm: the 2-norm, likewise; it may overflow while every element is finite.
        requires_grad: whether the tensor takes part in autograd.
        type: the class of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    max: Number
    min: Number
    mean: Number = None
    norm: Number = None
    requires_grad: bool = False
    type: str = "torch.Tensor"


class Scalar(NamedTuple):
    """A Python argument that is no tensor: `{"type": "float", "value": 0.1}`."""

    type: str
    value: object


class ProcessGroup(NamedTuple):
    """A process group argument.

    Attributes:
        ranks: the global ranks of the members, in group order.
        group_id: the identity every member's dump agrees on, eight hexadecimal digits.
    """

    ranks: tuple[int, ...]
    group_id: str


class P2POp(NamedTuple):
    """One record of a `batch_isend_irecv` list.

    Attributes:
        op: `isend` or `irecv`.
        peer: the global rank at the other end.
        tensor: what is sent, or the buffer to receive into.
        group_id: the identity of the group.
        tag: the message tag.
    """

    op: str
    peer: int
    tensor: TensorStat | None
    group_id: str
    tag: int = 0


Value: TypeAlias = (
    "TensorStat | Scalar | ProcessGroup | P2POp | bool | int | float | str"
    " | Sequence[Value] | Mapping[str, Value] | None"
)
"""Any value: a record, a nested list or dict of values, or a bare JSON scalar."""


def is_non_finite(value: object) -> bool:
    """Tell whether a statistic is NaN or infinite, as a number or as a string in any case.

    Args:
        value: the statistic as a dump holds it.

    Returns:
        True for NaN and infinities; False for finite numbers, None and any other text.
    """
    if isinstance(value, str):
        return value.strip().lower().lstrip("+-") in {"nan", "inf", "infinity"}
    return isinstance(value, float) and not math.isfinite(value)


def has_non_finite(value: object) -> bool:
    """Tell whether any tensor inside a value, at any depth, has a non-finite maximum or minimum.

    Args:
        value: a value of this module, or the plain object a JSON reader gave for one.

    Returns:
        Whether there is one. Scalars, means and norms are no evidence.
    """
    if isinstance(value, TensorStat):
        return is_non_finite(value.max) or is_non_finite(value.min)
    if isinstance(value, P2POp):
        return has_non_finite(value.tensor)
    if isinstance(value, Mapping):
        if "Max" in value or "Min" in value:
            return is_non_finite(value.get("Max")) or is_non_finite(value.get("Min"))
        return any(map(has_non_finite, value.values()))
    if isinstance(value, list | tuple) and not isinstance(value, Scalar | ProcessGroup):
        return any(map(has_non_finite, value))
    return False


def to_json(value: Value) -> object:  # noqa: PLR0911 - a return for each type of value
    """Give the plain object that a reader gets back from a value written with bare tokens.

    Args:
        value: any value.

    Returns:
        Dicts, lists, strings, numbers, booleans and None.
    """
    if isinstance(value, TensorStat):
        return {
            "type": value.type,
            "dtype": value.dtype,
            "shape": list(value.shape),
            "Max": value.max,
            "Min": value.min,
            "Mean": value.mean,
            "Norm": value.norm,
            "requires_grad": value.requires_grad,
        }
    if isinstance(value, Scalar):
        return {"type": value.type, "value": value.value}
    if isinstance(value, ProcessGroup):
        return {
            "type": "torch.ProcessGroup",
            "group_ranks": list(value.ranks),
            "group_id": value.group_id,
        }
    if isinstance(value, P2POp):
        return {
            "class_type": "torch.distributed.P2POp",
            "tensor": to_json(value.tensor),
            "op": value.op,
            "peer": value.peer,
            "tag": value.tag,
            "group_id": value.group_id,
        }
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def seeded(*parts: object) -> Random:
    """Make a source of randomness that depends on nothing but what it is for.

    Args:
        parts: the seed and what the values are for.

    Returns:
        The source; the same parts always give the same values.
    """
    return Random(" ".join(map(str, parts)))  # noqa: S311 - test data, not secrets


def draw(
    rng: Random,
    dtype: str,
    shape: tuple[int, ...],
    scale: float = 4.0,
    *,
    requires_grad: bool = True,
) -> TensorStat:
    """Draw finite statistics of a tensor centred near zero.

    Args:
        rng: the source of randomness; five draws are taken.
        dtype: a floating dtype.
        shape: the sizes.
        scale: a power of two above the largest element; the result is then exact in `dtype`.
        requires_grad: whether the tensor takes part in autograd.

    Returns:
        The statistics, `scale / 2 <= max < scale` and `-scale < min <= -scale / 2`.
    """
    bits = SIGNIFICAND_BITS[dtype]
    half = 1 << (bits - 1)
    unit = scale / (half << 1)
    random = rng.random
    return TensorStat(
        dtype,
        shape,
        (half + int(random() * half)) * unit,
        (half + int(random() * half)) * -unit,
        int((random() - 0.5) * half) * unit * 0.125,
        (half + int(random() * half)) * unit * 8.0,
        requires_grad,
    )


def nan(dtype: str, shape: tuple[int, ...], *, requires_grad: bool = True) -> TensorStat:
    """Give the statistics of a tensor that holds a NaN.

    Args:
        dtype: a floating dtype.
        shape: the sizes.
        requires_grad: whether the tensor takes part in autograd.

    Returns:
        All four statistics NaN, as NaN spreads to each of them.
    """
    return TensorStat(dtype, shape, NAN, NAN, NAN, NAN, requires_grad)


def overflown(stat: TensorStat) -> TensorStat:
    """Replace a tensor's largest element by +Inf.

    Args:
        stat: finite statistics.

    Returns:
        The same tensor with an infinite maximum, mean and norm.
    """
    return stat._replace(max=INF, mean=INF, norm=INF)


def constant(
    dtype: str,
    shape: tuple[int, ...],
    value: float,
    *,
    requires_grad: bool = False,
) -> TensorStat:
    """Give the statistics of a tensor filled with one value.

    Args:
        dtype: a floating dtype.
        shape: the sizes.
        value: the value of every element.
        requires_grad: whether the tensor takes part in autograd.

    Returns:
        The statistics.
    """
    norm = abs(value) * math.sqrt(math.prod(shape))
    return TensorStat(dtype, shape, value, value, value, norm, requires_grad)
