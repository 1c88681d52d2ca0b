"""Files that can be read at random, each for itself: an object store, a zip, an indexed tar.

Memory: dumps are asked for several at a time, so that a distant store is not waited for one by one, but no more bytes
are held than `threads` dumps of the largest size.
"""

from __future__ import annotations

import abc
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ovf import _core
from ovf.remote.errors import one_line
from ovf.remote.source import Source
from ovf.remote.step import steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ovf.remote.source import Request, Summaries
    from ovf.remote.step import Rank, Step

    T = TypeVar("T")

#: Dumps asked for at once, where they are small.
_REQUESTS = 16
#: Bytes that may always be held.
_FLOOR = 64 << 20

NOT_WRITTEN = "the rank's dump was not written: was PrecisionDebugger.stop() reached?"
LEAVE_OUT = "check the access, or leave the rank out with --ranks"


class Files(abc.ABC):
    """A tree of files.

    Attributes:
        path: The tree's root, as a report shows it.
        root: The path that names step and rank where the root is one of them.
    """

    path: str
    root: str

    @abc.abstractmethod
    def names(self) -> Iterable[str]:
        """Names below the root that may belong to a dump, `/` behind a folder.

        Raises:
            OSError: The root cannot be listed.
        """

    @abc.abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes as stored, where they are known without asking."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """The content of one file.

        Raises:
            OSError: It cannot be read; any other error of the file system behind it.
        """

    def text(self, name: str) -> str:
        """The file as a report shows it."""
        return f"{self.path}/{name}" if name else self.path


class FilesSource(Source):
    """Steps in a tree of files."""

    def __init__(self, files: Files) -> None:
        """Wrap a tree."""
        self.files = files
        self.path = files.path
        self._known: set[str] = set()

    def steps(self) -> list[Step]:
        """See `Source`."""
        self._known = set(self.files.names())
        return steps_of(self.files.root, self._known)

    def summaries(self, step: Step, request: Request) -> Summaries:
        """See `Source`; without module chain and code."""
        sizes = {r.rank: self.files.size(r.dump) or 0 for r in step.ranks if r.dump in self._known}
        request.counters.add(total=sum(sizes.values()))
        room = _Room(max(_FLOOR, request.workers * max(sizes.values(), default=0)))
        processors = threading.Semaphore(request.workers)

        def one(rank: Rank) -> bytes:
            with room.hold(sizes.get(rank.rank, 0)):
                return summary_of(self.files, rank, request, processors, there=rank.dump in self._known)

        return each(step.ranks, one, max(_REQUESTS, request.workers))

    def completed(self, step: Step, summaries: Summaries, request: Request) -> Summaries:
        """See `Source`."""
        ranks = [r for r in step.ranks if r.rank in summaries and (r.construct or r.stack)]
        return each(ranks, lambda rank: with_context(self.files, rank, summaries[rank.rank], request), request.workers)


def each(ranks: Iterable[Rank], call: Callable[[Rank], bytes], threads: int) -> Summaries:
    """`call` for every rank, several at a time; ranks not begun are left out as soon as one raises or Ctrl-C comes."""
    ranks = list(ranks)
    pool = ThreadPoolExecutor(max_workers=max(1, min(threads, len(ranks))), thread_name_prefix="ovf-read")
    try:
        futures = {rank.rank: pool.submit(call, rank) for rank in ranks}
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        return {rank: future.result() for rank, future in futures.items()}
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def summary_of(
    files: Files, rank: Rank, request: Request, processors: threading.Semaphore, *, there: bool = True
) -> bytes:
    """The summary of one rank without module chain and code."""
    text = files.text(rank.dump)
    if not there:
        return absent(rank, text, "no such file or directory", NOT_WRITTEN, request)
    try:
        dump = files.read(rank.dump)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        return absent(rank, text, one_line(error), LEAVE_OUT, request)
    with processors:
        made = _core.summarize(dump, rank=rank.rank, label=rank.label, path=text, rules=request.rules)
    request.counters.add(read=len(dump))
    return made


def with_context(files: Files, rank: Rank, summary: bytes, request: Request) -> bytes:
    """The summary with module chain and code; a file that cannot be read is a remark in it."""
    found: list[bytes | None] = []
    remarks: list[str] = []
    for name in (rank.construct, rank.stack):
        try:
            found.append(files.read(name) if name else None)
        except (OSError, ValueError, RuntimeError) as error:
            found.append(None)
            remarks.append(f"{files.text(name or '')}: {one_line(error)}")
    construct, stack = found
    return _core.with_context(summary, construct, stack, remarks=remarks, rules=request.rules)


def absent(rank: Rank, path: str, message: str, advice: str, request: Request) -> bytes:
    """The summary of a rank whose dump cannot be had."""
    return _core.absent(
        rank=rank.rank, label=rank.label, path=path, message=message, help=advice, rules=request.rules
    )


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
