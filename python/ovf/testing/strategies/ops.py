"""Strategies of ops and of the dump of one rank."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from ovf.testing import values
from ovf.testing.recorder import FRAMES
from ovf.testing.step import Level, Op, Step
from ovf.testing.strategies.encodings import encodings
from ovf.testing.strategies.values import FLOATS, nested_values, scalars, tensor_stats
from ovf.testing.values import P2POp, ProcessGroup, Scalar, TensorStat, Value

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

    from ovf.testing.encoding import Encoding

_IDENTIFIERS = st.sampled_from(
    ("linear", "matmul", "exp", "softmax", "to", "add_", "topk", "__add__", "layer_norm", "where")
)
_PREFIXES = st.sampled_from(
    ("Functional", "Tensor", "Torch", "VF", "NPU", "Aten", "MindSpeed", "Triton", "Mint", "Jit")
)
_CUSTOM = st.sampled_from(("torch.foo", "my_pkg.ops.fused", "Primitive.conv2d.Conv2d", "ops.rope"))
_MODULE = st.builds(
    lambda root, path, kind: ".".join((root, *path, kind)),
    st.sampled_from(("Module", "Module.0", "Module.module", "Cell")),
    st.lists(
        st.sampled_from(("layers", "0", "11", "_fsdp_wrapped_module", "forward", "mlp", "fc1")),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(("Linear", "MLP", "TransformerLayer", "FSDPBlock")),
)
_NUMBER = st.integers(0, 30)


@cache
def op_names() -> SearchStrategy[str]:
    """Draw the name of an op that is no communication, in any of the grammars dumps use.

    Returns:
        A strategy of names; `parameters_grad` names are among them.
    """
    direction = st.sampled_from(("forward", "backward"))
    return st.one_of(
        st.builds("{}.{}.{}.{}".format, _PREFIXES, _IDENTIFIERS, _NUMBER, direction),
        st.builds("{}.{}.forward".format, _CUSTOM, _NUMBER),
        st.builds("{}.{}.{}".format, _MODULE, direction, _NUMBER),
        st.builds("{}.parameters_grad".format, _MODULE),
        st.builds("{}.parameters_grad.{}".format, _MODULE, _NUMBER),
        st.builds("Torch.ops.aten.linear_{}_0".format, _NUMBER),
    )


@cache
def _any_list() -> SearchStrategy[list[Value]]:
    return st.lists(nested_values(), min_size=1, max_size=3)


@st.composite
def ops(draw: DrawFn, names: SearchStrategy[str] | None = None) -> Op:
    """Draw one well-formed op; nothing ties its outputs to its inputs.

    Args:
        draw: given by Hypothesis.
        names: names to draw from, those of `op_names` by default.

    Returns:
        An op whose record has the keys that its name calls for. Keys that a real dump may lack
        are sometimes missing.
    """
    name = draw(names if names is not None else op_names())
    body: dict[str, Value]
    if ".parameters_grad" in name:
        body = {"weight": [draw(tensor_stats())], "bias": [draw(st.none() | tensor_stats())]}
        return Op(name, body)
    if ".backward" in name:
        body = {"input": draw(_any_list()), "output": draw(_any_list())}
        return Op(name, _without_some(draw, body))
    body = {
        "input_args": draw(_any_list()),
        "input_kwargs": draw(st.just({}) | st.builds(dict, dim=scalars(), out=nested_values())),
        "output": draw(_any_list()),
    }
    if name.startswith(("Module", "Cell")):
        body["parameters"] = {"weight": draw(tensor_stats())}
    body = _without_some(draw, body)
    if draw(st.integers(0, 9)) == 0:
        body["is_recompute"] = True
    return Op(name, body, frames=FRAMES[draw(st.sampled_from(("norm", "linear", "gelu")))])


def _without_some(draw: DrawFn, body: dict[str, Value]) -> dict[str, Value]:
    """Drop one key in ten, as data modes, scopes and crashes do."""
    return {key: value for key, value in body.items() if draw(st.integers(0, 9)) != 0}


_GROUP = ProcessGroup((0, 1), "7d2a90c1")
_COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "all_gather",
    "broadcast",
    "recv",
    "irecv",
    "send",
    "batch_isend_irecv",
)


@st.composite
def communication_ops(draw: DrawFn, number: int = 0, sent: TensorStat | None = None) -> Op:
    """Draw a communication of rank 0 with rank 1, its buffers null or full of garbage.

    Args:
        draw: given by Hypothesis.
        number: the call number in its name.
        sent: what rank 0 contributes; drawn if absent.

    Returns:
        An op of `Distributed` with arguments where the real call has them.
    """
    api = draw(st.sampled_from(_COLLECTIVES))
    floats = tensor_stats(dtypes=FLOATS)
    mine = sent if sent is not None else draw(floats)
    buffer = draw(st.none() | floats)
    got = draw(floats)
    peer = Scalar("int", 1)
    kwargs: dict[str, Value] = {"group": _GROUP}
    tail: list[Value] = [_GROUP]
    if api in {"recv", "irecv", "send"}:
        kwargs, tail = {}, []
    args: list[Value]
    output: list[Value]
    if api in {"all_reduce", "broadcast"}:
        args, output = [mine], [got]
    elif api == "send":
        args, output = [mine, peer], [mine, peer]
    elif api in {"recv", "irecv"}:
        args, output = [buffer, peer], [got, peer]
    elif api == "all_gather":
        args, output = [[buffer, buffer], mine], [[mine, got], mine]
    elif api == "batch_isend_irecv":
        record = P2POp("isend", 1, mine, _GROUP.group_id)
        received = P2POp("irecv", 1, got, _GROUP.group_id)
        args = [[record, received._replace(tensor=draw(floats))]]
        output, kwargs, tail = [[record, received]], {}, []
    else:
        args, output = [buffer, mine], [got, mine]
    name = f"Distributed.{api}.{number}.forward"
    body: dict[str, Value] = {
        "input_args": args,
        "input_kwargs": kwargs,
        "output": [*output, *tail],
    }
    return Op(name, body, frames=FRAMES["tp_reduce"])


@st.composite
def _masking_op(draw: DrawFn, number: int, taken: TensorStat) -> Op:
    """Draw an op that asks for -inf, one that fills memory, or one over uninitialised memory."""
    finite = taken._replace(max=1.0, min=-1.0, mean=0.0, norm=2.0)
    masked = finite._replace(min=-math.inf, mean=-math.inf, norm=math.inf)
    infinite = Scalar("float", -math.inf)
    shape = Scalar("torch.Size", list(taken.shape))
    choices: tuple[tuple[str, list[Value], TensorStat], ...] = (
        ("Tensor.masked_fill", [finite, infinite], masked),
        ("Torch.full", [shape, infinite], masked._replace(max=-math.inf)),
        ("Torch.where", [finite, finite, infinite], masked),
        ("Torch.triu", [masked], masked),
        ("Torch.softmax", [masked, Scalar("int", -1)], finite._replace(min=0.0)),
        ("Torch.empty", [shape], values.nan(taken.dtype, taken.shape)),
        ("Tensor.zero_", [values.nan(taken.dtype, taken.shape)], finite),
    )
    api, args, output = draw(st.sampled_from(choices))
    body: dict[str, Value] = {"input_args": args, "input_kwargs": {}, "output": [output]}
    return Op(f"{api}.{number}.forward", body, frames=FRAMES["mask"])


@st.composite
def _flowing_op(draw: DrawFn, number: int, taken: TensorStat) -> Op:
    """Draw an op that reads an earlier value, named in any grammar."""
    plain = draw(ops(st.builds("{}.{}.{}.forward".format, _PREFIXES, _IDENTIFIERS, st.just(number))))
    body = dict(plain.body)
    body["input_args"] = [taken, *draw(st.lists(nested_values(), max_size=1))]
    return plain._replace(body=body)


@st.composite
def single_rank_dumps(draw: DrawFn, max_ops: int = 12, *, encoded: SearchStrategy[Encoding] | None = None) -> Step:
    """Draw the dump of one rank: well-formed ops in any order, with values that flow.

    What the first overflow is, only an analysis can tell: `truth` says nothing here.

    Args:
        draw: given by Hypothesis.
        max_ops: the most ops to draw.
        encoded: spellings to draw from, any by default.

    Returns:
        A step whose only rank is 0. Names are distinct; ops read earlier outputs or fresh values;
        asked-for -inf, garbage buffers, null statistics and missing keys occur.
    """
    pool = [draw(tensor_stats(classes=("finite",), dtypes=FLOATS))]
    found: dict[str, Op] = {}
    for number in range(draw(st.integers(0, max_ops))):
        taken = draw(st.sampled_from(pool))
        op = draw(
            st.one_of(
                _flowing_op(number, taken),
                _masking_op(number, taken),
                communication_ops(number, taken),
                ops(),
            )
        )
        if op.name in found:
            continue
        found[op.name] = op
        output = op.body.get("output")
        made = output if isinstance(output, list) else []
        pool.extend(stat for stat in made if _is_float(stat))
    level: Level = "mix" if any(name.startswith(("Module", "Cell")) for name in found) else "L1"
    encoding = draw(encoded if encoded is not None else encodings())
    return Step({0: list(found.values())}, level=level, encoding=encoding)


def _is_float(stat: Value) -> bool:
    return isinstance(stat, TensorStat) and stat.dtype in FLOATS and 0 not in stat.shape
