"""Watches a dump that a job is still writing, and gives the first verdict that the finished dump would give, too.

msProbe writes dump.json anew, in place, at every flush: it cuts the file to nothing and writes all ops so far. So a
file may be empty, half written, whole but of a step that is still running, or final. Only of a step that is over is
there a verdict:

* A file counts when it was the same (inode, size, time of change) in two looks, before reading and after it, and is
  whole: msProbe's JSON has its end only when all of it is written. Files are read, not mapped: reading beyond the
  new end of a mapped file would kill the process.
* A rank's part of a step is over when the rank has begun a later step: msProbe writes a step's last flush before it
  makes the next step's folder. For the last step there is no such sign. It counts as over when nothing in the step
  has changed for `settle` seconds; ten times as long where something says that more is to come: a rank's number of
  ops is one at which msProbe flushes in the middle of a step (a multiple of 1000), or records name ranks that have no
  dump yet.
* A last step with a file that is not whole gets no verdict at all, however long nothing happens: the job may only be
  slow. That is said once; `ovf check` judges what is there. Where the rank has begun a later step nobody will write the
  file again: the step is judged without what is lost, and the report says so.
* Steps of one phase are judged in order.

A whole file in the middle of a step is never judged, because more ops can change the answer: a value may be healed
later, a mask may be used, another rank's flush may show an origin that happened before.
"""

from __future__ import annotations

import functools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovf import _core
from ovf.analyzer import listed
from ovf.report import Report
from ovf.seen import last_good, seen_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ovf.analyzer import Extra, StrPath, StrPaths

#: Counts of ops at which msProbe flushes in the middle of a step are multiples of this.
_FLUSH_OPS = 1000
#: How many times longer to wait where more is likely to come.
_PATIENCE = 10

#: Looks in a row that must have seen a file as it is.
_LOOKS = 2
#: Ranks named in one line.
_NAMED = 8

Signature = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of change of dump.json, construct.json and stack.json."""


@dataclass
class _Rank:
    label: str
    files: tuple[Path, Path, Path]
    signature: Signature
    looks: int = 1
    """Looks in a row that saw this signature."""
    summary: bytes | None = None
    """Made of the files with this signature."""
    told: dict[str, Any] = field(default_factory=dict)
    """What the summary is about."""

    @property
    def is_whole(self) -> bool:
        """Its summary is of a file that ended as JSON ends."""
        return bool(self.told.get("completeness") == "complete")


@dataclass
class _Step:
    number: int | None
    label: str
    changed: float
    """When a look last saw anything new."""
    notes: list[str] = field(default_factory=list)
    single: bool = False
    ranks: dict[int, _Rank] = field(default_factory=dict)
    judged: tuple[Signature, ...] | None = None
    """What the last verdict was about."""
    said: set[str] = field(default_factory=set)

    @property
    def phase(self) -> str:
        return self.label.rpartition("/")[0]

    @property
    def signatures(self) -> tuple[Signature, ...]:
        return tuple(rank.signature for rank in self.ranks.values())


class Watch:
    """Looks at a dump again and again; between looks it holds the summaries of what did not change."""

    def __init__(
        self,
        path: StrPaths,
        *,
        step: int | str | None = None,
        ranks: Iterable[int] | None = None,
        rules: StrPath | None = None,
        threads: int | None = None,
        settle: float = 10.0,
        allow_incomplete_ranks: bool = False,
        also: Iterable[Extra] = (),
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch `path`, which need not exist yet.

        Args:
            path: As for `find_first_overflow`.
            step: As there.
            ranks: As there.
            rules: As there.
            threads: As there.
            settle: Seconds without a change after which the last step counts as over.
            allow_incomplete_ranks: As for `find_first_overflow`.
            also: As for `find_first_overflow`.
            say: Called with a line about what happens.
            clock: Seconds that never go back.
        """
        _core.effective_rules(rules)  # what is wrong with a rules file is said at once
        self._paths = listed(path)
        self._step = None if step is None else str(step)
        self._wanted = None if ranks is None else set(ranks)
        self._rules = rules
        self._threads = threads or os.cpu_count() or 1
        self._settle = settle
        self._allow_incomplete = allow_incomplete_ranks
        self._also = sorted(set(also))
        self._say = say
        self._clock = clock
        self._steps: dict[str, _Step] = {}
        self._verdicts: dict[str, dict[str, Any]] = {}
        self._said: set[str] = set()

    def until_overflow(self, interval: float) -> Report:
        """Look every `interval` seconds until a step has an overflow.

        Returns:
            The report of that step.

        Raises:
            ovf.RulesError, ValueError, OSError: As for `find_first_overflow`; a dump that is not there yet is no error.
        """
        while True:
            report = self.look()
            if report is not None:
                return report
            time.sleep(interval)

    def look(self) -> Report | None:
        """One look: the report of the first step that is over and has an overflow, else None."""
        self._see()
        waiting: set[str] = set()
        for step in self._steps.values():
            if not self._is_asked(step) or step.judged == step.signatures or step.phase in waiting:
                continue
            report = self._judge(step)
            if report is None:
                waiting.add(step.phase)
            elif report.verdict == "overflow":
                return report
        return None

    def _is_asked(self, step: _Step) -> bool:
        return self._step is None or self._step in {step.label, str(step.number)}

    # --- seeing -------------------------------------------------------------------------------------------------------

    def _see(self) -> None:
        try:
            found = _core.sources(self._paths)
        except (FileNotFoundError, _core.DumpFormatError) as error:
            self._say_once(self._said, f"waiting for a dump: {error}")
            return
        known, self._steps = self._steps, {}
        for number, label, single, notes, sources in found:
            step = known.get(label) or _Step(number, label, self._clock())
            self._steps[label] = step
            step.notes, step.single = notes, single
            if step.judged is not None and self._is_closed(step, found):
                continue  # judged, and msProbe has gone on: it is not looked at again
            self._see_ranks(step, sources)

    def _see_ranks(self, step: _Step, sources: Iterable[tuple[Any, ...]]) -> None:
        known, step.ranks = step.ranks, {}
        for rank, label, *paths in sources:
            if self._wanted is not None and rank not in self._wanted:
                continue
            dump, construct, stack = (Path(p) for p in paths)
            files = (dump, construct, stack)
            seen = known.get(rank)
            signature = _signature(files)
            if seen is None or seen.signature != signature or seen.files != files:
                step.ranks[rank] = _Rank(label, files, signature)
                step.changed = self._clock()
            else:
                seen.looks += 1
                step.ranks[rank] = seen
        if set(known) - set(step.ranks):
            step.changed = self._clock()

    def _is_closed(self, step: _Step, found: Iterable[tuple[Any, ...]]) -> bool:
        """Whether every rank of the step has begun a later step of its phase."""
        return bool(step.ranks) and all(self._has_gone_on(step, rank, found) for rank in step.ranks)

    def _has_gone_on(self, step: _Step, rank: int, found: Iterable[tuple[Any, ...]]) -> bool:
        return step.number is not None and any(
            number is not None
            and number > step.number
            and label.rpartition("/")[0] == step.phase
            and any(source[0] == rank for source in sources)
            for number, label, _, _, sources in found
        )

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, step: _Step) -> Report | None:
        """The report of a step that is over; None while it may still change."""
        later = [(s.number, s.label, None, None, [(r,) for r in s.ranks]) for s in self._steps.values()]
        still_open = {number: rank for number, rank in step.ranks.items() if not self._has_gone_on(step, number, later)}
        quiet = self._clock() - step.changed
        if not self._stands(step, still_open) or (still_open and quiet < self._settle) or not self._summarise(step):
            return None
        cut = [f"rank {number}" for number, rank in still_open.items() if not rank.is_whole]
        if cut:
            named = ", ".join(cut[:_NAMED]) + (" ..." if len(cut) > _NAMED else "")
            self._say_once(
                step.said,
                f"{step.label}: no verdict, not whole: {named}; when no job writes it any more, `ovf check` judges it",
            )
            return None
        patient = not still_open or quiet >= _PATIENCE * self._settle
        if not patient and any(rank.told["ops"] % _FLUSH_OPS == 0 for rank in still_open.values()):
            return None
        report = self._report(step)
        if report.incomplete and not patient:
            return None
        step.judged = step.signatures
        self._say(f"{step.label}: {report.verdict}, {len(step.ranks)} ranks, {report.total_ops:,} ops")
        return report

    def _stands(self, step: _Step, still_open: dict[int, _Rank]) -> bool:
        """Every rank was the same in two looks, and those that may still write have a dump."""
        there = all(rank.signature[0] is not None for rank in still_open.values())
        return bool(step.ranks) and there and all(rank.looks >= _LOOKS for rank in step.ranks.values())

    def _summarise(self, step: _Step) -> bool:
        """Summarise the ranks that changed; False where a file changed meanwhile."""
        fresh = [(number, rank) for number, rank in step.ranks.items() if rank.summary is None]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="ovf-watch") as pool:
            made = list(pool.map(lambda item: self._summary(step, *item), fresh))
        for (_, rank), summary in zip(fresh, made, strict=True):
            if summary is not None:
                rank.summary = summary
                rank.told = json.loads(_core.about(summary, rules=self._rules))
        # What was read first may have changed while the rest was read.
        return None not in made and all(_signature(rank.files) == rank.signature for rank in step.ranks.values())

    def _summary(self, step: _Step, number: int, rank: _Rank) -> bytes | None:
        dump, construct, stack = rank.files
        if _signature(rank.files) != rank.signature:
            return None
        summary = _core.summarize(
            dump,
            rank=number,
            label=rank.label,
            construct=construct,
            stack=stack,
            step_number=step.number,
            step_label=step.label,
            rules=self._rules,
            map=False,
        )
        return summary if _signature(rank.files) == rank.signature else None

    def _report(self, step: _Step) -> Report:
        reduce = functools.partial(
            _core.reduce,
            [rank.summary for rank in step.ranks.values() if rank.summary is not None],
            step_number=step.number,
            step_label=step.label,
            notes=step.notes,
            chosen=step.single or self._wanted is not None,
            rules=self._rules,
            threads=self._threads,
        )
        asked = [label for label, other in self._steps.items() if self._is_asked(other)]
        text, records, _ = reduce(wants=[*self._also, *(["trend"] if len(asked) > 1 else [])])
        data = json.loads(text)
        self._verdicts[step.label] = seen_of(data)
        seen = [self._verdicts[label] for label in asked if label in self._verdicts]
        data["steps"], data["steps_omitted"], data["last_good"] = seen, len(asked) - len(seen), last_good(seen)
        return Report(
            data,
            records,
            source=self._paths,
            allow_incomplete_ranks=self._allow_incomplete,
            atlas=lambda: reduce(chart=True)[2] or "",
        )

    def _say_once(self, said: set[str], text: str) -> None:
        if text not in said:
            said.add(text)
            self._say(text)


def _signature(files: tuple[Path, Path, Path]) -> Signature:
    """What changes when one of the files is written."""
    return tuple(map(_status, files))


def _status(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
