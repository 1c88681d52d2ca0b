"""A finding as frozen tuples with names: where it is, what it shows, why (see docs/report.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["compute", "communication", "parameter", "input", "corruption", "missing_rank"]
Number = float | None

_T = TypeVar("_T")


def number(value: float | str | None) -> Number:
    """A statistic: the JSON writes non-finite ones as strings."""
    return None if value is None else float(value)


def take(cls: type[_T], data: Mapping[str, Any], **made: Any) -> _T:  # noqa: ANN401 - fields of any type
    """An instance of `cls` from the keys of `data` that it knows."""
    fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]  # always a tuple with names
    return cls(**{name: data[name] for name in fields if name in data and name not in made}, **made)


class Value(NamedTuple):
    """One tensor of a finding's op.

    Attributes:
        slot: Where in the op: `input_args[0]`, `parameters.weight`, `output[0]`.
        dtype: `float16`, ...
        shape: Sizes by dimension.
        max, min, mean, norm: Statistics as dumped; `None` where missing. `mean` and `norm` can overflow by themselves.
        class_: `finite`, `-inf`, `+inf`, `nan` or `unknown`.
        made_by: Of an input: the op before it whose output has the same dtype, shape and statistics.
    """

    slot: str
    dtype: str
    shape: tuple[int, ...]
    max: Number
    min: Number
    mean: Number
    norm: Number
    class_: str
    made_by: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Value:
        """From the JSON contract."""
        stats = {k: number(data[k]) for k in ("max", "min", "mean", "norm")}
        made_by = data.get("made_by")
        return cls(data["slot"], data["dtype"], tuple(data["shape"]), class_=data["class"], made_by=made_by, **stats)


class Frame(NamedTuple):
    """One line of a call stack."""

    file: str
    line: int | None
    function: str | None
    code: str | None
    library: bool


class Hint(NamedTuple):
    """A likely cause, what to look at next, and where the knowledge is from."""

    likely: str
    check: str
    source: str


class Before(NamedTuple):
    """An op shortly before a finding on its rank: its input and output of the largest magnitude."""

    op_name: str
    exec_order: int
    input: Value | None
    output: Value | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Before:
        """From the JSON contract."""
        sides = {side: Value.from_json(data[side]) if data[side] else None for side in ("input", "output")}
        return cls(data["op_name"], data["exec_order"], **sides)


class RankOp(NamedTuple):
    """An op on a rank; `exec_order` is its place in the rank's file, from 0."""

    rank: int
    op_name: str
    exec_order: int


class Finding(NamedTuple):
    """One origin.

    Attributes:
        rank: Global rank.
        step: Step number, `None` when the path names no step.
        op_name: Key in `dump.json`.
        exec_order: Place in the rank's file, from 0.
        kind: What sort of origin.
        certainty: `certain` when the dump shows it, `likely` when it leaves something out.
        why_not_certain: What it leaves out.
        severity: `nan`, `+inf`, `-inf`, or `unknown` for register records.
        phase: `forward`, `backward` or `optimizer`.
        reason: One sentence.
        slot: The bad input that nobody produced, for readers of outside values.
        inputs, outputs: The op's tensors; empty where none was recorded (a receive has no input).
        forward_inputs: Of a backward op: inputs of the forward call it belongs to, where recorded.
        scalars: Numbers given as arguments: (slot, text).
        module: Path of the innermost module around it.
        construct_chain: The op, its module, that one's module, ... up to the root.
        stack: Call stack, innermost first.
        stack_info: The same as recorded lines.
        hint: Likely cause, or `None`.
        before: The ops before it on its rank, in file order; empty beyond the first findings of a rank.
        only_in_recompute: It ran in activation recomputation.
        members: Other members or ranks that show the same.
        missing_ranks: Ranks whose data is not in the dump, for `missing_rank`.
        concurrent: Not ordered against the first (for the first: against some other).
        layer: Findings on the longest chain before it.
        depth: Communications on the longest chain before it.
        reach_ops: Non-finite ops it leads to, all ranks.
        reach_ranks: Ranks it reaches.
        record: The dump's record as JSON text (with bare NaN); empty beyond the first findings.
    """

    rank: int
    step: int | None
    op_name: str
    exec_order: int
    kind: Kind
    certainty: Literal["certain", "likely"]
    why_not_certain: tuple[str, ...]
    severity: str
    phase: str
    reason: str
    slot: str | None
    inputs: tuple[Value, ...]
    forward_inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    scalars: tuple[tuple[str, str], ...]
    module: str | None
    construct_chain: tuple[str, ...]
    stack: tuple[Frame, ...]
    stack_info: tuple[str, ...]
    hint: Hint | None
    before: tuple[Before, ...]
    only_in_recompute: bool
    members: tuple[RankOp, ...]
    missing_ranks: tuple[int, ...]
    concurrent: bool
    layer: int
    depth: int
    reach_ops: int
    reach_ranks: int
    record: str = ""

    def __repr__(self) -> str:
        """All but the record, which may be long."""
        shown = (f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True) if name != "record")
        return f"Finding({', '.join(shown)})"

    @classmethod
    def from_json(cls, data: Mapping[str, Any], record: str) -> Finding:
        """From the JSON contract."""
        return take(
            cls,
            data,
            record=record,
            why_not_certain=tuple(data["why_not_certain"]),
            inputs=tuple(Value.from_json(v) for v in data["inputs"]),
            forward_inputs=tuple(Value.from_json(v) for v in data["forward_inputs"]),
            outputs=tuple(Value.from_json(v) for v in data["outputs"]),
            scalars=tuple((s, v) for s, v in data["scalars"]),
            construct_chain=tuple(data["construct_chain"]),
            stack=tuple(take(Frame, f) for f in data["stack"]),
            stack_info=tuple(data["stack_info"]),
            before=tuple(Before.from_json(b) for b in data["before"]),
            hint=take(Hint, data["hint"]) if data["hint"] else None,
            members=tuple(take(RankOp, m) for m in data["members"]),
            missing_ranks=tuple(data["missing_ranks"]),
        )
