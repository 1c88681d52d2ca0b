"""The answer as Python objects: views of the JSON contract, field by field (see docs/report.md).

The parts of a report are tuples with names, in rooms of their own (`ovf.finding`, `ovf.spread`, `ovf.evidence`,
`ovf.extra`), made when they are asked for: many a caller wants the verdict alone.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False  # typing itself takes longer to import than a small dump to read
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    from ovf._core import Table
    from ovf.evidence import Note, RankSummary, Unreadable, Verdict
    from ovf.extra import LevelCount, LeveledOp, Levels, NearMiss
    from ovf.finding import Before, Finding, Frame, Hint, RankOp, Value
    from ovf.spread import Communication, Hop, PathStep, Spread

    StrPath = str | os.PathLike[str]

__all__ = [
    "Before",
    "Communication",
    "Finding",
    "Frame",
    "Hint",
    "Hop",
    "LevelCount",
    "LeveledOp",
    "Levels",
    "NearMiss",
    "Note",
    "PathStep",
    "RankOp",
    "RankSummary",
    "Report",
    "Spread",
    "Unreadable",
    "Value",
    "Verdict",
]

_ROOMS = ("finding", "spread", "evidence", "extra")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the names are typed above
    """A part of a report, from its room (PEP 562)."""
    if name in __all__:
        import importlib  # noqa: PLC0415 - only when a name is used

        for room in _ROOMS:
            found = getattr(importlib.import_module(f"ovf.{room}"), name, None)
            if found is not None:
                return found
    msg = f"module 'ovf.report' has no attribute {name!r}"
    raise AttributeError(msg)


class Report:
    """The answer for one step of a dump.

    Attributes are read from the JSON contract; `to_dict()` is that contract itself.
    """

    def __init__(
        self,
        data: dict[str, Any] | Callable[[], tuple[dict[str, Any], list[str]]],
        records: list[str] | None = None,
        *,
        head: tuple[Verdict, bool] | None = None,
        ops: Callable[[], Table] | None = None,
        source: StrPath | Sequence[StrPath] = (),
        allow_incomplete_ranks: bool = False,
        atlas: str | Callable[[], str] = "",
    ) -> None:
        """Wrap the contract's data.

        Args:
            data: What `to_dict` gives, or how to get it and the records.
            records: The dump's records of the findings, as JSON.
            head: Its verdict and whether it is incomplete, where that is known without the rest.
            ops: Reads the step again for the table of all its ops; `None` where it cannot be.
            source: The dump, where nothing is written.
            allow_incomplete_ranks: Whether `exit_code` accepts missing, cut and unreadable ranks.
            atlas: The atlas as JSON, or how to get it.
        """
        self._told = data
        self._told_records = records
        self._head = head
        self._ops = ops
        self._atlas = atlas
        self._source = source
        self._allow_incomplete = allow_incomplete_ranks

    @functools.cached_property
    def _told_all(self) -> tuple[dict[str, Any], list[str]]:
        return self._told() if callable(self._told) else (self._told, self._told_records or [])

    @property
    def _data(self) -> dict[str, Any]:
        return self._told_all[0]

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Origins, the first overflow first."""
        from ovf.finding import Finding  # noqa: PLC0415 - only when asked for

        data, records = self._told_all
        return tuple(Finding.from_json(f, r) for f, r in zip(data["findings"], records, strict=True))

    @property
    def verdict(self) -> Verdict:
        """`overflow`, `clean`, or `no_evidence` when nothing in the dump can be judged."""
        verdict: Verdict = self._head[0] if self._head else self._data["verdict"]
        return verdict

    @property
    def first(self) -> Finding | None:
        """The first overflow."""
        return self.findings[0] if self.findings else None

    @property
    def incomplete(self) -> bool:
        """Whether evidence is missing: unreadable or cut files, ranks that are not dumped."""
        return self._head[1] if self._head else bool(self._data["incomplete"])

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
        if found is None:
            return None
        from ovf.extra import NearMiss  # noqa: PLC0415 - only when asked for
        from ovf.finding import take  # noqa: PLC0415 - only when asked for

        return tuple(take(NearMiss, n, shape=tuple(n["shape"])) for n in found)

    @property
    def levels(self) -> Levels | None:
        """Levels as msProbe has them; `None` unless asked for (`also=["levels"]`)."""
        found = self._data.get("levels")
        if found is None:
            return None
        from ovf.extra import Levels  # noqa: PLC0415 - only when asked for

        return Levels.from_json(found)

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
            import json  # noqa: PLC0415 - only when asked for

            return _core.report_table(json.dumps(self._data), table)
        if self._ops is None:
            msg = "the ops stand in the dump, and this report was not made from one"
            raise ValueError(msg)
        return self._ops()

    @property
    def path(self) -> tuple[PathStep, ...]:
        """From the first overflow to where somebody would notice."""
        from ovf.finding import take  # noqa: PLC0415 - only when asked for
        from ovf.spread import PathStep  # noqa: PLC0415 - only when asked for

        return tuple(take(PathStep, p) for p in self._data["path"])

    @property
    def spread(self) -> Spread | None:
        """How far it went."""
        data = self._data["spread"]
        if not data:
            return None
        from ovf.spread import Spread  # noqa: PLC0415 - only when asked for

        return Spread.from_json(data)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Remarks: intended and healed values, missing ranks, what did not match."""
        from ovf.evidence import Note  # noqa: PLC0415 - only when asked for

        return tuple(Note.from_json(n) for n in self._data["notes"])

    @property
    def ranks(self) -> tuple[RankSummary, ...]:
        """Every rank, ascending."""
        from ovf.evidence import RankSummary  # noqa: PLC0415 - only when asked for

        return tuple(RankSummary.from_json(r) for r in self._data["ranks"])

    @property
    def communications(self) -> tuple[Communication, ...]:
        """Communications with a bad value or without all members."""
        from ovf.spread import Communication  # noqa: PLC0415 - only when asked for

        return tuple(Communication.from_json(c) for c in self._data["communications"])

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Files that could not be read, or not to their end."""
        from ovf.evidence import Unreadable  # noqa: PLC0415 - only when asked for
        from ovf.finding import take  # noqa: PLC0415 - only when asked for

        return tuple(take(Unreadable, u) for u in self._data["unreadable"])

    @property
    def findings_omitted(self) -> int:
        """Findings beyond those that are listed."""
        return int(self._data["findings_omitted"])

    @property
    def steps_omitted(self) -> int:
        """Steps that were not looked at."""
        return int(self._data["steps_omitted"])

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
        import json  # noqa: PLC0415 - only when asked for

        copy: dict[str, Any] = json.loads(json.dumps(self._data))
        return copy

    def json(self) -> str:
        """The JSON contract as text: strict JSON, the same bytes for the same dump."""
        import json  # noqa: PLC0415 - only when asked for

        return json.dumps(self._data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"

    def to_json(self, path: StrPath) -> None:
        """Write the JSON contract to a new file.

        Args:
            path: The file. It must not exist, and must not lie in the dump.

        Raises:
            FileExistsError: The file exists; nothing is overwritten.
            ValueError: The file would lie in the dump directory.
            OSError: It cannot be written.
        """
        self._write(path, self.json())

    def atlas(self) -> dict[str, Any]:
        """Every op of every rank, as plain data (docs/report.md, "Atlas").

        Raises:
            ValueError: The dump was read again for it, and has changed; or there is nothing to read again.
            OSError: It was read again for it, and the operating system refused.
        """
        import json  # noqa: PLC0415 - only when asked for

        atlas: dict[str, Any] = json.loads(self._drawn())
        return atlas

    def html(self) -> str:
        """One page that opens without a network: the verdict, a map of all ranks, the path, the tables.

        Raises:
            ValueError, OSError: As for `atlas`.
        """
        from ovf.render.html import html  # noqa: PLC0415 - only for this form

        return html(self, self._drawn())

    def to_html(self, path: StrPath) -> None:
        """Write that page to a new file.

        Args:
            path: The file. It must not exist, and must not lie in the dump.

        Raises:
            FileExistsError: The file exists; nothing is overwritten.
            ValueError: The file would lie in the dump directory, or as for `atlas`.
            OSError: It cannot be written.
        """
        self._write(path, self.html())

    def _write(self, path: StrPath, text: str) -> None:
        from ovf.output import write_new  # noqa: PLC0415 - only when asked for

        write_new(path, text, self._source)

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
