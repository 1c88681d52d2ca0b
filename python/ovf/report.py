"""The answer as Python objects: frozen views of the JSON contract, field by field (see docs/report.md)."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ovf._core import Table

Verdict = Literal["overflow", "clean", "no_evidence"]
Kind = Literal["compute", "communication", "parameter", "input", "corruption", "missing_rank"]
Number = float | None

_T = TypeVar("_T")


def _number(value: float | str | None) -> Number:
    """A statistic: the JSON writes non-finite ones as strings."""
    return None if value is None else float(value)


def _take(cls: type[_T], data: Mapping[str, Any], **made: Any) -> _T:  # noqa: ANN401 - fields of any type
    """An instance of `cls` from the keys of `data` that it knows."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]  # always a dataclass
    return cls(**{k: v for k, v in data.items() if k in known and k not in made}, **made)


@dataclass(frozen=True)
class Value:
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
        stats = {k: _number(data[k]) for k in ("max", "min", "mean", "norm")}
        made_by = data.get("made_by")
        return cls(data["slot"], data["dtype"], tuple(data["shape"]), class_=data["class"], made_by=made_by, **stats)


@dataclass(frozen=True)
class Frame:
    """One line of a call stack."""

    file: str
    line: int | None
    function: str | None
    code: str | None
    library: bool


@dataclass(frozen=True)
class Hint:
    """A likely cause, what to look at next, and where the knowledge is from."""

    likely: str
    check: str
    source: str


@dataclass(frozen=True)
class Before:
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


@dataclass(frozen=True)
class RankOp:
    """An op on a rank; `exec_order` is its place in the rank's file, from 0."""

    rank: int
    op_name: str
    exec_order: int


@dataclass(frozen=True)
class Finding:
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
    record: str = field(default="", repr=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], record: str) -> Finding:
        """From the JSON contract."""
        return _take(
            cls,
            data,
            record=record,
            why_not_certain=tuple(data["why_not_certain"]),
            inputs=tuple(Value.from_json(v) for v in data["inputs"]),
            forward_inputs=tuple(Value.from_json(v) for v in data["forward_inputs"]),
            outputs=tuple(Value.from_json(v) for v in data["outputs"]),
            scalars=tuple((s, v) for s, v in data["scalars"]),
            construct_chain=tuple(data["construct_chain"]),
            stack=tuple(_take(Frame, f) for f in data["stack"]),
            stack_info=tuple(data["stack_info"]),
            before=tuple(Before.from_json(b) for b in data["before"]),
            hint=_take(Hint, data["hint"]) if data["hint"] else None,
            members=tuple(_take(RankOp, m) for m in data["members"]),
            missing_ranks=tuple(data["missing_ranks"]),
        )


@dataclass(frozen=True)
class PathStep:
    """One step from the origin outward: `via` is `origin`, `data` or `communication`."""

    rank: int
    op_name: str
    exec_order: int
    via: str
    omitted: int
    symptom: str | None


@dataclass(frozen=True)
class Hop:
    """A communication that brought the overflow to ranks that did not have it.

    Attributes:
        api: API name.
        from_rank: Rank that gave it.
        op_name, exec_order: Op of the giver.
        to: Ranks that got it for the first time.
        arrivals: `exec_order` of the op by which each of them got it.
    """

    api: str
    from_rank: int
    op_name: str
    exec_order: int
    to: tuple[int, ...]
    arrivals: tuple[int, ...]


@dataclass(frozen=True)
class Spread:
    """How far the first overflow went: ops after it, ranks, hops in order, and where somebody would notice."""

    ops: int
    ranks: tuple[int, ...]
    hops: tuple[Hop, ...]
    symptom: RankOp | None
    symptom_kind: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spread:
        """From the JSON contract."""
        hops = tuple(
            Hop(h["api"], h["from"], h["op_name"], h["exec_order"], tuple(h["to"]), tuple(h["arrivals"]))
            for h in data["hops"]
        )
        symptom = _take(RankOp, data["symptom"]) if data["symptom"] else None
        return cls(data["ops"], tuple(data["ranks"]), hops, symptom, data["symptom_kind"])


@dataclass(frozen=True)
class Note:
    """One remark: kind, sentence, ranks and ops it concerns, how often."""

    kind: str
    text: str
    ranks: tuple[int, ...]
    ops: tuple[RankOp, ...]
    count: int


@dataclass(frozen=True)
class Unreadable:
    """A dump that could not be read, or not to its end; `ops_used` of it were used all the same."""

    rank: int
    path: str
    line: int | None
    column: int | None
    message: str
    help: str | None
    ops_used: int

    def __str__(self) -> str:
        """`path:line:column: message`."""
        place = self.path if self.line is None else f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class RankSummary:
    """One rank in numbers: ops by state, first bad op, completeness.

    `strip`, where it was asked for, is the rank's execution drawn small: the worst state in each of at most 256 equal
    parts of its ops, a letter each (`o`rigin, `p`ropagated, `a`bsorbed, `i`ntended, `g`arbage, `u`nknown, `.` clean).
    """

    rank: int
    label: str
    completeness: str
    has_statistics: bool
    task: str | None
    level: str | None
    ops: int
    counts: Mapping[str, int]
    first_bad: RankOp | None
    reached_by: str | None
    strip: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankSummary:
        """From the JSON contract."""
        bad = data["first_bad"]
        return _take(cls, data, first_bad=_take(RankOp, bad) if bad else None)


@dataclass(frozen=True)
class Communication:
    """One communication with a bad value or without all members.

    Attributes:
        api: API name.
        op_name: Key in the first member's dump.
        group_ranks, group_id: The process group; empty for the default group.
        seq: Order of issue within the group.
        members: Every member's op.
        source_ranks: Their contribution was bad.
        propagated_ranks: Clean contribution (or none), bad result.
        normal_ranks: Nothing bad.
        missing_ranks: Not dumped.
        unmatched_ranks: Dumped, but without this call.
        state: How well it matched.
        verdict: `overflow`, `origin`, `entered`, `absorbed`, `garbage`, `intended` or `clean`.
    """

    api: str
    op_name: str
    group_ranks: tuple[int, ...]
    group_id: str
    seq: int
    members: tuple[RankOp, ...]
    source_ranks: tuple[int, ...]
    propagated_ranks: tuple[int, ...]
    normal_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    unmatched_ranks: tuple[int, ...]
    state: str
    verdict: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Communication:
        """From the JSON contract."""
        lists = (
            "group_ranks",
            "source_ranks",
            "propagated_ranks",
            "normal_ranks",
            "missing_ranks",
            "unmatched_ranks",
        )
        made: dict[str, Any] = {k: tuple(data[k]) for k in lists}
        return _take(cls, data, members=tuple(_take(RankOp, m) for m in data["members"]), **made)


@dataclass(frozen=True)
class NearMiss:
    """A finite value close to the end of its dtype (`limit`), or one that grew suddenly (`growth`).

    Attributes:
        rank, op_name, exec_order: Where.
        kind: `limit` or `growth`.
        slot, dtype, shape: The tensor.
        value: Max or Min, whichever is larger in magnitude.
        limit: Largest finite number of the dtype.
        share: Magnitude over `limit`.
        growth: Magnitude over the largest input's; `None` without one.
        before_first: It stands before the first op of its rank that shows an overflow.
    """

    rank: int
    op_name: str
    exec_order: int
    kind: Literal["limit", "growth"]
    slot: str
    dtype: str
    shape: tuple[int, ...]
    value: float
    limit: float
    share: float
    growth: float | None
    before_first: bool


@dataclass(frozen=True)
class LevelCount:
    """Ops that msProbe's graph view marks for one reason: `scene`, `level`, `count`."""

    scene: str
    level: str
    count: int


@dataclass(frozen=True)
class LeveledOp:
    """An op that msProbe's graph view marks; `norm_ratio` is its largest output norm over its largest input norm."""

    rank: int
    op_name: str
    exec_order: int
    level: Literal["critical", "high", "medium"]
    scene: str
    norm_ratio: Number


@dataclass(frozen=True)
class Levels:
    """The step in the words of msProbe's graph view: counts by reason, and the worst ops."""

    counts: tuple[LevelCount, ...]
    ops: tuple[LeveledOp, ...]
    ops_omitted: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Levels:
        """From the JSON contract."""
        ops = tuple(_take(LeveledOp, o, norm_ratio=_number(o["norm_ratio"])) for o in data["ops"])
        return cls(tuple(_take(LevelCount, c) for c in data["counts"]), ops, data["ops_omitted"])


@dataclass(frozen=True)
class Origin:
    """Where a report came from: what is needed to read the step again."""

    paths: list[str | os.PathLike[str]]
    index: int
    ranks: list[int] | None
    rules: str | os.PathLike[str] | None
    threads: int | None
    map: bool


class Report:
    """The answer for one step of a dump.

    Attributes are read from the JSON contract; `to_dict()` is that contract itself.
    """

    def __init__(
        self,
        data: dict[str, Any],
        records: list[str],
        *,
        origin: Origin | None = None,
        source: Path | Sequence[Path] | None = None,
        allow_incomplete_ranks: bool = False,
        atlas: str | Callable[[], str] = "",
    ) -> None:
        """Wrap the contract's data; `records` are the dump's records of the findings, `atlas` JSON or how to get it."""
        self._data = data
        self._origin = origin
        self._atlas = atlas
        self._source = source
        self._allow_incomplete = allow_incomplete_ranks
        self.findings: tuple[Finding, ...] = tuple(
            Finding.from_json(f, r) for f, r in zip(data["findings"], records, strict=True)
        )

    @property
    def verdict(self) -> Verdict:
        """`overflow`, `clean`, or `no_evidence` when nothing in the dump can be judged."""
        verdict: Verdict = self._data["verdict"]
        return verdict

    @property
    def first(self) -> Finding | None:
        """The first overflow."""
        return self.findings[0] if self.findings else None

    @property
    def incomplete(self) -> bool:
        """Whether evidence is missing: unreadable or cut files, ranks that are not dumped."""
        return bool(self._data["incomplete"])

    @property
    def exit_code(self) -> int:
        """0 clean, 1 overflow, 2 no evidence, or incomplete evidence unless that was allowed."""
        if self.verdict == "no_evidence" or (self.incomplete and not self._allow_incomplete):
            return 2
        return 1 if self.verdict == "overflow" else 0

    @property
    def step(self) -> int | None:
        """Step number, `None` when the path names no step."""
        step: int | None = self._data["step"]
        return step

    @property
    def step_label(self) -> str:
        """Folder of the step below the path that was given."""
        return str(self._data["step_label"])

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """Every step that was looked at: (label, verdict)."""
        return tuple((s["step_label"], s["verdict"]) for s in self._data["steps"])

    @property
    def near(self) -> tuple[NearMiss, ...] | None:
        """Near misses, the nearest first; `None` unless asked for (`also=["near"]`)."""
        found = self._data.get("near")
        return None if found is None else tuple(_take(NearMiss, n, shape=tuple(n["shape"])) for n in found)

    @property
    def levels(self) -> Levels | None:
        """Levels as msProbe has them; `None` unless asked for (`also=["levels"]`)."""
        found = self._data.get("levels")
        return None if found is None else Levels.from_json(found)

    def to_arrow(self, table: Literal["ops", "findings", "communications"] = "findings") -> Table:
        """A table for any reader of the Arrow PyCapsule interface: `polars.DataFrame(report.to_arrow())`.

        Args:
            table: `findings` and `communications` hold what the report lists, a row each; `ops` reads the step again
                and holds every op of every rank. The columns are described in `docs/tables.md`.

        Returns:
            The table. Rows are made while it is read.

        Raises:
            ValueError: No such table, or the report was not made from a dump and `ops` is asked for.
            OSError, ovf.OvfError: The dump cannot be found any more.
        """
        from ovf import _core  # noqa: PLC0415 - a report may be read where the core is not used

        if table != "ops":
            return _core.report_table(json.dumps(self._data), table)
        if self._origin is None:
            msg = "the ops stand in the dump, and this report was not made from one"
            raise ValueError(msg)
        o = self._origin
        return _core.op_table(o.paths, [o.index], ranks=o.ranks, rules=o.rules, threads=o.threads, map=o.map)

    @property
    def path(self) -> tuple[PathStep, ...]:
        """From the first overflow to where somebody would notice."""
        return tuple(_take(PathStep, p) for p in self._data["path"])

    @property
    def spread(self) -> Spread | None:
        """How far it went."""
        data = self._data["spread"]
        return Spread.from_json(data) if data else None

    @property
    def notes(self) -> tuple[Note, ...]:
        """Remarks: intended and healed values, missing ranks, what did not match."""
        return tuple(
            Note(
                n["kind"],
                n["text"],
                tuple(n["ranks"]),
                tuple(_take(RankOp, o) for o in n["ops"]),
                n["count"],
            )
            for n in self._data["notes"]
        )

    @property
    def ranks(self) -> tuple[RankSummary, ...]:
        """Every rank, ascending."""
        return tuple(RankSummary.from_json(r) for r in self._data["ranks"])

    @property
    def communications(self) -> tuple[Communication, ...]:
        """Communications with a bad value or without all members."""
        return tuple(Communication.from_json(c) for c in self._data["communications"])

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Files that could not be read, or not to their end."""
        return tuple(_take(Unreadable, u) for u in self._data["unreadable"])

    @property
    def total_communications(self) -> int:
        """Communication records over all ranks."""
        return int(self._data["total_communications"])

    @property
    def total_ops(self) -> int:
        """Ops over all ranks."""
        return int(self._data["total_ops"])

    @property
    def total_bytes(self) -> int:
        """Bytes of all dumps."""
        return int(self._data["total_bytes"])

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract as plain Python data (non-finite numbers as strings). A copy."""
        copy: dict[str, Any] = json.loads(json.dumps(self._data))
        return copy

    def json(self) -> str:
        """The JSON contract as text: strict JSON, the same bytes for the same dump."""
        return json.dumps(self._data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON contract to a new file.

        Args:
            path: The file. It must not exist, and must not lie in the dump.

        Raises:
            FileExistsError: The file exists; nothing is overwritten.
            ValueError: The file would lie in the dump directory.
            OSError: It cannot be written.
        """
        write_new(Path(path), self.json(), self._source)

    def atlas(self) -> dict[str, Any]:
        """Every op of every rank, as plain data (docs/report.md, "Atlas").

        Raises:
            ValueError: The dump was read again for it, and has changed; or there is nothing to read again.
            OSError: It was read again for it, and the operating system refused.
        """
        atlas: dict[str, Any] = json.loads(self._drawn())
        return atlas

    def html(self) -> str:
        """One page that opens without a network: the verdict, a map of all ranks, the path, the tables.

        Raises:
            ValueError, OSError: As for `atlas`.
        """
        from ovf.render.html import html  # noqa: PLC0415 - only for this form

        return html(self, self._drawn())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write that page to a new file.

        Args:
            path: The file. It must not exist, and must not lie in the dump.

        Raises:
            FileExistsError: The file exists; nothing is overwritten.
            ValueError: The file would lie in the dump directory, or as for `atlas`.
            OSError: It cannot be written.
        """
        write_new(Path(path), self.html(), self._source)

    def _drawn(self) -> str:
        if callable(self._atlas):
            self._atlas = self._atlas()
        if not self._atlas:
            msg = "this report was made without an atlas: analyse again with chart=True"
            raise ValueError(msg)
        return self._atlas

    def __repr__(self) -> str:
        """The verdict and the first overflow."""
        first = self.first
        what = f"rank {first.rank} {first.op_name}" if first else "nothing"
        return f"<ovf.Report {self.verdict}: {what}>"


def write_new(path: Path, text: str | Iterable[bytes], dump: Path | Sequence[Path] | None) -> None:
    """Write a file that does not exist yet, never into the dump it was made from.

    Args:
        path: The file to make.
        text: Its content, or its pieces; if they fail, no file is left behind.
        dump: The dump's path or paths; `None` skips that check.

    Raises:
        FileExistsError: The file exists.
        ValueError: The file would lie in the dump directory.
        OSError: It cannot be written.
    """
    check_new(path, dump)
    with path.open("xb") as file:
        try:
            for piece in [text.encode()] if isinstance(text, str) else text:
                file.write(piece)
        except BaseException:
            path.unlink()
            raise


def check_new(path: Path, dump: Path | Sequence[Path] | None) -> None:
    """See whether a file may be made; the errors of `write_new`."""
    refuse_inside(path, [dump] if isinstance(dump, Path) else dump or ())
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def refuse_inside(path: Path, dumps: Sequence[Path]) -> None:
    """See to it that nothing is written where dumps lie.

    Raises:
        ValueError: `path` lies in one of them.
    """
    for dump in dumps:
        root = dump.resolve()
        root = root.parent if root.is_file() else root
        if root in path.resolve().parents:
            msg = f"{path}: lies in the dump directory {root}; ovf never writes there, choose another place"
            raise ValueError(msg)
