"""A place that holds steps, and the two steps of an analysis over it.

Map: every rank's dump is read and summarised where it lies. Reduce: the summaries become the report. A report shows
module chain and code of its listed findings only, so where files can be read at random the summaries are made without
construct.json and stack.json (together often as large as the dump), reduced once to learn which ranks have a finding,
completed for those ranks, and reduced again; a reduction takes milliseconds.
"""

from __future__ import annotations

import abc
import json
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ovf import _core

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ovf.remote.step import Step

Summaries = dict[int, bytes]
"""The summary of each rank."""


@dataclass
class Counters:
    """Bytes read and bytes in all, as they are stored; counted by many threads, readable from any."""

    bytes: int = 0
    total: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, read: int = 0, total: int = 0) -> None:
        """Count."""
        with self._lock:
            self.bytes += read
            self.total += total


@dataclass(frozen=True)
class Request:
    """How to analyse: as `find_first_overflow` was asked.

    Attributes:
        step: Only this step, by number or folder; all by default.
        ranks: Only these; all by default.
        rules: A file of rules; `None` for the built-in ones.
        threads: Ranks summarised at once; `None` for one a processor.
        also: What else the report shall hold, by name.
        chart: Whether the atlas is wanted.
        counters: Where progress is counted.
    """

    step: str | None = None
    ranks: Collection[int] | None = None
    rules: str | None = None
    threads: int | None = None
    also: tuple[str, ...] = ()
    chart: bool = False
    counters: Counters = field(default_factory=Counters)

    @property
    def kept(self) -> list[str]:
        """What a summary holds beyond the answer."""
        return [*self.also, "trend", *(["chart"] if self.chart else [])]

    @property
    def workers(self) -> int:
        """Ranks summarised at once."""
        return self.threads or os.cpu_count() or 1


class Source(abc.ABC):
    """A place that holds the ranks of steps.

    Attributes:
        path: The place as the user named it.
    """

    path: str

    @abc.abstractmethod
    def steps(self, request: Request) -> list[Step]:
        """Its steps, in order.

        Raises:
            FileNotFoundError: It does not exist.
            DumpFormatError: It holds no dump in any known layout.
            OSError: It cannot be read.
        """

    @abc.abstractmethod
    def summaries(self, step: Step, request: Request) -> Summaries:
        """The summary of every rank of the step; that of a rank that cannot be read says why."""

    def completed(self, step: Step, summaries: Summaries, request: Request) -> Summaries:  # noqa: ARG002 - for those that leave something out
        """These summaries with module chain and code, where `summaries` left them out."""
        return {}

    def analyze(
        self, step: Step, request: Request, *, trend: bool = False
    ) -> tuple[dict[str, Any], list[str], str | None]:
        """The report of a step, the records of its findings, and the atlas where it is wanted.

        Raises:
            ValueError: A rank that was asked for is not there.
        """
        step = step.only(request.ranks, self.path)
        summaries = self.summaries(step, request)
        data, records, atlas = _reduce(step, summaries, request, trend=trend)
        shown = {f["rank"] for f in data["findings"][: _core.DETAILED]}
        if request.chart:  # it shows where every op stands
            shown = set(summaries)
        completed = self.completed(step, {r: summaries[r] for r in sorted(shown)}, request) if shown else {}
        if completed:
            data, records, atlas = _reduce(step, {**summaries, **completed}, request, trend=trend)
        data["incomplete"] = data["incomplete"] or step.incomplete
        return data, records, atlas


def _reduce(
    step: Step, summaries: Mapping[int, bytes], request: Request, *, trend: bool
) -> tuple[dict[str, Any], list[str], str | None]:
    text, records, atlas = _core.reduce(
        list(summaries.values()),
        step_number=step.number,
        step_label=step.label,
        notes=list(step.notes),
        chosen=step.single,
        rules=request.rules,
        threads=request.threads,
        chart=request.chart,
        wants=[*request.also, *(["trend"] if trend else [])],
    )
    return json.loads(text), records, atlas
