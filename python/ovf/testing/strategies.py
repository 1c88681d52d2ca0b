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

import math
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        'ovf.testing.strategies needs Hypothesis: pip install "ovf-npu[testing]"'
    ) from error

from ovf.testing import values
from ovf.testing.damage import Damage
from ovf.testing.encoding import Encoding, NonFinite, Numbers, StackLayout
from ovf.testing.fault import Fault, FaultPlace
from ovf.testing.layout import Layout
from ovf.testing.recorder import FRAMES
from ovf.testing.step import Level, Op, Step
from ovf.testing.training import P2P, Schedule, Training, simulated_step
from ovf.testing.values import P2POp, ProcessGroup, Scalar, TensorStat, Value, to_json

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
HEADER = ("task", "level", "framework", "dump_data_dir", "data")

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
    plain = draw(
        ops(st.builds("{}.{}.{}.forward".format, _PREFIXES, _IDENTIFIERS, st.just(number)))
    )
    body = dict(plain.body)
    body["input_args"] = [taken, *draw(st.lists(nested_values(), max_size=1))]
    return plain._replace(body=body)


@st.composite
def single_rank_dumps(
    draw: DrawFn, max_ops: int = 12, *, encoded: SearchStrategy[Encoding] | None = None
) -> Step:
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


@st.composite
def encodings(draw: DrawFn) -> Encoding:
    """Draw a spelling.

    Args:
        draw: given by Hypothesis.

    Returns:
        Any spelling that a writer of dumps has used, with header keys in any order.
    """
    header = draw(st.permutations(HEADER))
    return Encoding(
        indent=draw(st.sampled_from((1, 2, 4, None))),
        non_finite=draw(st.sampled_from(get_args(NonFinite))),
        numbers=draw(st.sampled_from(get_args(Numbers))),
        stack=draw(st.sampled_from(get_args(StackLayout))),
        construct=draw(st.booleans()),
        header=tuple(header if draw(st.booleans()) else HEADER),
    )


@st.composite
def layouts(
    draw: DrawFn,
    *,
    ranks: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    max_ranks: int = 8,
) -> Layout:
    """Draw a parallel layout.

    Args:
        draw: given by Hypothesis.
        ranks: the number of ranks; any up to `max_ranks` by default.
        tp: tensor-parallel size, if it is to be fixed; likewise `pp`, `dp` and `ep`.
        pp: pipeline-parallel size.
        dp: data-parallel size.
        ep: expert-parallel size, a divisor of `dp`.
        max_ranks: the most ranks.

    Returns:
        A layout with the sizes asked for.

    Raises:
        ValueError: no layout has them.
    """
    most = ranks or max(max_ranks, (tp or 1) * (pp or 1) * (dp or 1))
    sizes = range(1, most + 1)
    fitting = [
        (t, p, d, e)
        for t in ([tp] if tp else sizes)
        for p in ([pp] if pp else sizes)
        for d in ([dp] if dp else sizes)
        if (t * p * d == ranks if ranks else t * p * d <= most)
        for e in ([ep] if ep else sizes)
        if d % e == 0
    ]
    if not fitting:
        raise ValueError(f"no layout has {ranks=} {tp=} {pp=} {dp=} {ep=} {max_ranks=}")
    fitting.sort(key=lambda sizes: (math.prod(sizes), sizes))
    return Layout(*draw(st.sampled_from(fitting)), seed=draw(st.integers(0, 3)))


@st.composite
def faults(draw: DrawFn, training: Training) -> Fault:
    """Draw a fault that has a place in a step.

    Args:
        draw: given by Hypothesis.
        training: the step.

    Returns:
        The fault.
    """
    layout = training.layout
    places: list[FaultPlace] = [
        "forward", "backward", "masked_row", "corruption", "weight", "batch", "optimizer",
    ]  # fmt: skip
    if layout.tp > 1:
        places.append("tp_all_reduce")
    if layout.dp > 1:
        places.append("dp_all_reduce")
    if layout.pp > 1:
        places.append("recv")
    if layout.ep > 1:
        places.append("expert")
        if "tp_all_reduce" in places:
            places.remove("tp_all_reduce")
    place = draw(st.sampled_from(places))
    stage = layout.tp * layout.dp
    low = stage if place == "recv" else 0
    high = stage if place == "batch" else layout.ranks
    rank = draw(st.integers(low, high - 1))
    layers = len(training.stage_layers(layout.place(rank).pp))
    return Fault(
        place,
        rank,
        draw(st.integers(0, training.micro_batches - 1)),
        draw(st.integers(0, layers - 1)),
    )


@st.composite
def trainings(
    draw: DrawFn, layout: Layout, *, min_faults: int = 0, max_faults: int = 2
) -> Training:
    """Draw a small training step over a layout.

    Args:
        draw: given by Hypothesis.
        layout: the layout.
        min_faults: the fewest planted faults.
        max_faults: the most planted faults.

    Returns:
        The step, not yet simulated.
    """
    training = Training(
        layout,
        layers=layout.pp * draw(st.integers(1, 2)),
        micro_batches=draw(st.integers(1, 3)),
        schedule=draw(st.sampled_from(get_args(Schedule))),
        p2p=draw(st.sampled_from(get_args(P2P))),
        level=draw(st.sampled_from(("L1", "mix"))),
        dtype=draw(st.sampled_from(FLOATS[:3])),
        hidden=8 * layout.tp,
        sequence=5,
        heads=2 * layout.tp,
        vocabulary=19,
        warm_up=draw(st.booleans()),
        garbage_buffers=draw(st.booleans()),
        numbered_parameters_grad=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )
    count = draw(st.integers(min_faults, max_faults))
    planted = draw(st.lists(faults(training), min_size=count, max_size=count, unique=True))
    return training.with_faults(planted)


@st.composite
def steps(
    draw: DrawFn,
    *,
    ranks: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    max_ranks: int = 8,
    min_faults: int = 0,
    max_faults: int = 2,
    damaged: bool = True,
    encoded: SearchStrategy[Encoding] | None = None,
) -> Step:
    """Draw a multi-rank step, simulated, with its right answer.

    Args:
        draw: given by Hypothesis.
        ranks: the number of ranks; any up to `max_ranks` by default.
        tp: tensor-parallel size, if it is to be fixed; likewise `pp`, `dp` and `ep`.
        pp: pipeline-parallel size.
        dp: data-parallel size.
        ep: expert-parallel size.
        max_ranks: the most ranks.
        min_faults: the fewest planted faults.
        max_faults: the most planted faults.
        damaged: whether ranks may be missing or cut, which can hide the right answer; `truth`
            is about the step as it ran.
        encoded: spellings to draw from, any by default.

    Returns:
        The step; `write_step` writes it in its own spelling and with its own damage.
    """
    layout = draw(layouts(ranks=ranks, tp=tp, pp=pp, dp=dp, ep=ep, max_ranks=max_ranks))
    step = simulated_step(draw(trainings(layout, min_faults=min_faults, max_faults=max_faults)))
    step.encoding = draw(encoded if encoded is not None else encodings())
    if damaged:
        step.damage = draw(damages(layout))
    return step


@st.composite
def damages(draw: DrawFn, layout: Layout) -> Damage:
    """Draw what a step's folders lack: mostly nothing.

    Args:
        draw: given by Hypothesis.
        layout: the layout of the step.

    Returns:
        The damage; at least one rank is left.
    """
    if layout.ranks == 1:
        return Damage(process=draw(st.none() | st.integers(2, 99999)))
    if draw(st.integers(0, 2)) > 0:
        return Damage()
    some = st.sets(st.integers(0, layout.ranks - 1), max_size=min(2, layout.ranks - 1))
    cut = draw(st.dictionaries(st.integers(0, layout.ranks - 1), st.integers(0, 20000), max_size=1))
    return Damage(frozenset(draw(some)), cut)


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
