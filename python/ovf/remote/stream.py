"""Tar files that are read from front to back, whatever the order of their members: packed ones, and those behind a URL.

A dump is summarised when it passes. A construct.json or stack.json that comes behind its dump is used when it passes, if
the summary has anything to look up; one that comes before its dump is held until then, up to `_HELD` bytes altogether
(tar writes the files of a folder together, so it is a rank's worth). Only what did not fit, and belongs to a rank
of the listed findings, costs a second pass, which ends at the last such file. Memory: besides what is held, one file more
than `threads`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ovf import _core
from ovf.remote.archive import Names, below, stem
from ovf.remote.errors import at
from ovf.remote.files import LEAVE_OUT, NOT_WRITTEN, absent, written
from ovf.remote.source import Source
from ovf.remote.step import CONTEXT, DUMPS, SUMMARY, Rank, steps_of
from ovf.remote.tar import TarPass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from concurrent.futures import Future
    from typing import BinaryIO

    from ovf.remote.archive import Opener
    from ovf.remote.source import Request, Summaries
    from ovf.remote.step import Step

#: Bytes of files that came before their dump.
_HELD = 256 << 20


@dataclass
class _Folder:
    """A rank's folder while the tar passes."""

    dumps: dict[str, Future[bytes]] = field(default_factory=dict)
    #: construct.json or stack.json that came before a dump.
    held: dict[str, bytes] = field(default_factory=dict)


class TarStream(Source):
    """A tar that is read from front to back."""

    def __init__(self, path: str, opener: Opener) -> None:
        """Nothing is read yet."""
        self.path = path
        self._opener = opener
        self._folders: dict[str, _Folder] = {}
        self._held = 0
        self._left: set[str] = set()
        self._top = ""
        self._known: set[str] = set()
        self._refused: dict[str, str] = {}

    def steps(self, request: Request) -> list[Step]:
        """See `Source`; the one pass is here, so the dumps are summarised, too."""
        names = Names(self.path)
        room = threading.BoundedSemaphore(request.workers + 1)
        pool = ThreadPoolExecutor(request.workers, thread_name_prefix="ovf-read")
        try:
            with self._passing(names, request) as passing:
                for name in passing.files():
                    if _chosen(name, request):
                        room.acquire()
                        self._take(name, passing.content(), request, pool, room)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown(wait=True)
        self._known, self._refused, self._top = names.known, names.refused, names.top()
        root = f"{stem(self.path)}/{self._top}".rstrip("/")
        steps = steps_of(root, below(self._top, names.known))
        return [step.remarked(names.notes(), passing.cut) for step in steps]

    def summaries(self, step: Step, request: Request) -> Summaries:
        """See `Source`; made while the tar passed, but for folders whose rank was not known then."""
        made: Summaries = {}
        again: dict[str, Rank] = {}
        for rank in step.ranks:
            name = self._top + rank.dump
            future = self._folders.get(name.rpartition("/")[0], _Folder()).dumps.get(name)
            known = name.endswith(SUMMARY) or _rank_of(name, self.path) == (rank.rank, rank.label)
            if future is not None and known:
                made[rank.rank] = future.result()
            elif name in self._known:
                again[name] = rank
            else:
                why = self._refused.get(name)
                advice = NOT_WRITTEN if why is None else LEAVE_OUT
                text = f"{self.path}/{name}"
                made[rank.rank] = absent(rank, text, why or "no such file or directory", advice, request.rules)
        for name, data in self._again(again, request):
            made[again[name].rank] = self._summary(name, data, again[name].rank, again[name].label, request)
            self._left.add(name.rpartition("/")[0])
        return dict(sorted(made.items()))

    def completed(self, step: Step, summaries: Summaries, request: Request) -> Summaries:
        """See `Source`; a second pass, for what did not fit the first time."""
        wanted: dict[str, int] = {}
        for rank in step.ranks:
            if rank.rank in summaries and (self._top + rank.dump).rpartition("/")[0] in self._left:
                wanted.update({self._top + name: rank.rank for name in (rank.construct, rank.stack) if name})
        made = dict(summaries)
        for name, data in self._again(wanted, request):
            made[wanted[name]] = _add(made[wanted[name]], name, data, request)
        return made if wanted else {}

    def _take(
        self, name: str, data: bytes, request: Request, pool: ThreadPoolExecutor, room: threading.BoundedSemaphore
    ) -> None:
        """A file has passed; `room` was taken for it."""
        folder = self._folders.setdefault(name.rpartition("/")[0], _Folder())
        if name.endswith(SUMMARY) or name.rpartition("/")[2].startswith(DUMPS):
            rank, label = _rank_of(name, self.path)
            folder.dumps[name] = _submitted(pool, room, self._summary, name, data, rank, label, request)
            for other, held in folder.held.items():
                self._held -= len(held)
                folder.dumps[name] = pool.submit(_later, folder.dumps[name], other, held, request)
            folder.held.clear()
        elif folder.dumps:
            dump = next(reversed(folder.dumps))
            folder.dumps[dump] = _submitted(pool, room, _later, folder.dumps[dump], name, data, request)
        else:
            room.release()
            if self._held + len(data) > _HELD:
                self._left.add(name.rpartition("/")[0])
                return
            self._held += len(data)
            folder.held[name] = data

    def _summary(self, name: str, data: bytes, rank: int, label: str, request: Request) -> bytes:
        if name.endswith(SUMMARY):
            place = Rank(rank, label, name, None, None)
            return written(data, place, f"{self.path}/{name}", request.rules)
        return _core.summarize(
            data, rank=rank, label=label, path=f"{self.path}/{name}", rules=request.rules, wants=request.kept
        )

    def _again(self, wanted: Collection[str], request: Request) -> Iterator[tuple[str, bytes]]:
        """Name and content of the wanted files, in another pass that ends at the last of them."""
        left = set(wanted)
        if not left:
            return
        with self._passing(Names(self.path), request) as passing:
            for name in passing.files():
                if name in left:
                    yield name, passing.content()
                    left.discard(name)
                    if not left:
                        return

    @contextlib.contextmanager
    def _passing(self, names: Names, request: Request) -> Iterator[TarPass]:
        """A pass over the tar."""
        try:
            file = self._opener()
        except OSError as error:
            raise at(self.path, error) from error
        with file:
            request.counters.add(total=_length(file) or 0)
            try:
                unpacked = _core.Unpacker(_Counted(file, request))
            except Exception as error:  # clients raise what they like
                raise at(self.path, error) from error
            yield TarPass(self.path, unpacked, names)


def _submitted(pool: ThreadPoolExecutor, room: threading.BoundedSemaphore, call: Any, *arguments: Any) -> Future[bytes]:  # noqa: ANN401 - passed on
    """Run in the pool, and give the room back."""
    future: Future[bytes] = pool.submit(call, *arguments)
    future.add_done_callback(lambda _: room.release())
    return future


def _chosen(name: str, request: Request) -> bool:
    """Whether a file may belong to a step and rank that were asked for, as far as its folders tell."""
    parts = name.split("/")
    rank = parts[-2] if len(parts) > 1 else ""
    if request.ranks is not None and rank.startswith("rank") and _number(rank) not in {None, *request.ranks}:
        return False
    step = parts[-3] if len(parts) > 2 else ""  # noqa: PLR2004 - step, rank, file
    if request.step is None or not step.startswith("step"):
        return True
    return request.step.rpartition("/")[2] in {step, step.removeprefix("step")}


def _rank_of(name: str, path: str) -> tuple[int, str]:
    """Rank and label of a dump by its folder; those of process folders are known only when all have passed."""
    if name.endswith(SUMMARY):
        last = name.rpartition("/")[2].removesuffix(SUMMARY)
        return _number(last) or 0, last
    folder = name.rpartition("/")[0].rpartition("/")[2] or stem(path).rpartition("/")[2]
    return _number(folder) or 0, folder


def _number(folder: str) -> int | None:
    """`rank7` and `rank_7` as 7, `rank` as 0."""
    if not folder.startswith("rank"):
        return None
    digits = folder[len("rank") :].removeprefix("_")
    if folder == "rank":
        return 0
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _later(before: Future[bytes], name: str, data: bytes, request: Request) -> bytes:
    """The summary with what a context file says; a pool begins its tasks in order, so `before` has begun."""
    return _add(before.result(), name, data, request)


def _add(summary: bytes, name: str, data: bytes, request: Request) -> bytes:
    construct = name.rpartition("/")[2].startswith(CONTEXT[0])
    files = (data, None) if construct else (None, data)
    return _core.with_context(summary, *files, chart=request.chart, rules=request.rules)


class _Counted:
    """A file whose bytes are counted as they are read."""

    def __init__(self, file: BinaryIO, request: Request) -> None:
        self._file = file
        self._counters = request.counters

    def read(self, size: int) -> bytes:
        """Up to `size` bytes."""
        got = self._file.read(size)
        self._counters.add(read=len(got))
        return got


def _length(file: Any) -> int | None:  # noqa: ANN401 - a file of any library
    """Bytes of a file, where it is known."""
    size: int | None = getattr(file, "size", None)
    if size is None:
        with contextlib.suppress(OSError, AttributeError):  # a stream of a server's
            size = os.fstat(file.fileno()).st_size
    return size
