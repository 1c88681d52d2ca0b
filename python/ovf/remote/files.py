"""Files that can be read at random, each for itself: a local folder, an object store, a zip, an indexed tar.

Memory: dumps are asked for several at a time, so that a distant store is not waited for one by one, but no more bytes
are held than `threads` dumps of the largest size.
"""

from __future__ import annotations

import abc
import json
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ovf import _core
from ovf.remote.errors import at, one_line
from ovf.remote.source import Source
from ovf.remote.step import SUMMARY, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ovf.remote.source import Request, Summaries
    from ovf.remote.step import Rank, Step

#: Dumps asked for at once, where they are small.
_REQUESTS = 16
#: Bytes that may always be held.
_FLOOR = 64 << 20

#: What to do about a dump that is not there, and about one that cannot be read.
NOT_WRITTEN = "the rank's dump was not written: was PrecisionDebugger.stop() reached?"
LEAVE_OUT = "check the access, or leave the rank out with --ranks"


class Files(abc.ABC):
    """A tree of files.

    Attributes:
        path: The tree's root, as a report shows it.
        root: The path that names step and rank where the root is one of them.
        notes: What was passed over and why.
        cut: Why names may be missing.
        whole: `summarise` leaves nothing to be completed.
    """

    path: str
    root: str
    notes: tuple[str, ...] = ()
    cut: str | None = None
    whole: bool = False

    @abc.abstractmethod
    def names(self) -> Iterable[str]:
        """Names below the root that may belong to a dump, `/` behind a folder.

        Raises:
            OSError: The root cannot be listed.
        """

    @abc.abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes that reading the file holds, where they are known without asking."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """The content of one file.

        Raises:
            OSError: It cannot be read; any other error of the file system behind it.
        """

    def refused(self, name: str) -> str | None:  # noqa: ARG002 - for those that refuse
        """Why a name that is there is not among `names`."""
        return None

    def text(self, name: str) -> str:
        """The file as a report shows it."""
        return f"{self.path}/{name}" if name else self.path

    def steps(self, names: Iterable[str]) -> list[Step]:
        """The steps that lie in such names."""
        return [step.remarked(self.notes, self.cut) for step in steps_of(self.root, names)]

    def summarise(
        self, rank: Rank, rules: str | None, wants: list[str], processors: threading.Semaphore | None = None
    ) -> bytes:
        """The summary of one rank, without module chain and code.

        Args:
            rank: Its files.
            rules: A file of rules.
            wants: What it holds beyond the answer.
            processors: Taken while a processor is used.
        """
        text = self.text(rank.dump)
        try:
            dump = self.read(rank.dump)
        except Exception as error:  # noqa: BLE001 - clients raise what they like; said in the report
            told = at(text, error)
            advice = NOT_WRITTEN if isinstance(told, FileNotFoundError) else LEAVE_OUT
            return absent(rank, text, told.strerror or "", advice, rules)
        with processors or threading.Semaphore():
            if rank.dump.endswith(SUMMARY):
                return written(dump, rank, text, rules)
            return _core.summarize(dump, rank=rank.rank, label=rank.label, path=text, rules=rules, wants=wants)

    def completed(self, rank: Rank, summary: bytes, request: Request) -> bytes:
        """The summary with module chain and code; a file that cannot be read is a remark in it."""
        remarks: list[str] = []

        def content(name: str | None) -> bytes | None:
            try:
                return self.read(name) if name else None
            except Exception as error:  # noqa: BLE001 - as above
                remarks.append(f"{self.text(name or '')}: {one_line(error)}")
                return None

        construct, stack = content(rank.construct), content(rank.stack)
        return _core.with_context(summary, construct, stack, remarks=remarks, chart=request.chart, rules=request.rules)


def small_enough(size: int) -> None:
    """Refuse what is not held in memory.

    Raises:
        OSError: It is too large.
    """
    if size > _core.LARGEST:
        msg = f"is more than {_core.LARGEST >> 30} GiB; unpack it to a local disk, where files are mapped"
        raise OSError(msg)


def absent(rank: Rank, path: str, message: str, advice: str, rules: str | None) -> bytes:
    """The summary of a rank whose dump cannot be had."""
    return _core.absent(rank=rank.rank, label=rank.label, path=path, message=message, help=advice, rules=rules)


def written(summary: bytes, rank: Rank, path: str, rules: str | None) -> bytes:
    """A written summary, if it can be used; else one that says why not."""
    try:
        told = json.loads(_core.about(summary, path=path, rules=rules))
    except _core.DumpFormatError as error:
        return absent(rank, path, str(error).removeprefix(f"{path}: "), error.help or LEAVE_OUT, rules)
    if told["rank"] != rank.rank:
        text = f"a summary of rank {told['rank']} under the name of rank {rank.rank}"
        return absent(rank, path, text, "give the file its own name again", rules)
    return summary


class FilesSource(Source):
    """Steps in a tree of files."""

    def __init__(self, files: Files) -> None:
        """Wrap a tree."""
        self.files = files
        self.path = files.path

    def steps(self, request: Request) -> list[Step]:  # noqa: ARG002 - names cost little
        """See `Source`."""
        return self.files.steps(self.files.names())

    def summaries(self, step: Step, request: Request) -> Summaries:
        """See `Source`; without module chain and code."""
        sizes = {rank.rank: self.files.size(rank.dump) or 0 for rank in step.ranks}
        request.counters.add(total=sum(sizes.values()))
        room = _Room(max(_FLOOR, request.workers * max(sizes.values(), default=0)))
        processors = threading.Semaphore(request.workers)

        def one(rank: Rank) -> bytes:
            with room.hold(sizes[rank.rank]):
                made = self.files.summarise(rank, request.rules, request.kept, processors)
            request.counters.add(read=sizes[rank.rank])
            return made

        return each(step.ranks, one, max(_REQUESTS, request.workers))

    def completed(self, step: Step, summaries: Summaries, request: Request) -> Summaries:
        """See `Source`."""
        if self.files.whole:
            return {}
        ranks = [rank for rank in step.ranks if rank.rank in summaries and (rank.construct or rank.stack)]
        return each(ranks, lambda rank: self.files.completed(rank, summaries[rank.rank], request), request.workers)


def each(ranks: Iterable[Rank], call: Callable[[Rank], bytes], threads: int) -> Summaries:
    """`call` for every rank, several at a time; ranks not begun are left out once one raises or Ctrl-C comes."""
    ranks = list(ranks)
    pool = ThreadPoolExecutor(max_workers=max(1, min(threads, len(ranks))), thread_name_prefix="ovf-read")
    try:
        futures = {rank.rank: pool.submit(call, rank) for rank in ranks}
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        return {rank: future.result() for rank, future in futures.items()}
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Room:
    """So many bytes may be held at once; one holder may always hold."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._holders = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._holders == 0 or self._held + size <= self._size)
            self._held += size
            self._holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._holders -= 1
                self._changed.notify_all()
