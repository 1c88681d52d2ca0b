"""Tar files, plain or packed, local or behind a URL.

Random access: a local tar that is not packed is indexed by hopping from header to header.

One pass: a packed tar, or a tar behind a URL, is read once from front to back, whatever the order of its members. A
dump is summarised when it passes. A construct.json or stack.json that comes behind its dump is used when it passes, if
the summary has anything to look up; one that comes before its dump is held until then, up to `_HELD` bytes altogether
(tar writes the files of a folder together, so it is a rank's worth). Only what did not fit, and belongs to a rank
of the listed findings, costs a second pass, which ends at the last such file. Memory: besides what is held, one file more
than `threads`.

Python's tarfile reads the headers. What it does not do is done here: it ends quietly at anything that is no header, so
the end mark is looked for; it trusts sizes in headers, so headers are bounded and places must go forward.
"""

from __future__ import annotations

import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ovf import _core
from ovf.remote.archive import ArchiveFiles, Names, below, stem
from ovf.remote.errors import at, one_line
from ovf.remote.files import LEAVE_OUT, NOT_WRITTEN, absent, small_enough
from ovf.remote.source import Source
from ovf.remote.step import CONTEXT, DUMPS, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from typing import BinaryIO

    from ovf.remote.archive import Opener
    from ovf.remote.source import Request, Summaries
    from ovf.remote.step import Rank, Step

#: Bytes of the headers of one member: far more than any needs.
_HEADERS = 64 << 20
#: Bytes of files that came before their dump.
_HELD = 256 << 20
#: Bytes read at once.
_CHUNK = 1 << 20

_CUT = "the archive ends early: what stood behind the cut is not read"


class _Member(tarfile.TarInfo):
    """Tells on its tar file whether the end mark was seen: tarfile ends quietly at anything that is no header."""

    @classmethod
    def fromtarfile(cls, tarfile: Any) -> Any:  # noqa: ANN401, A002 - tarfile's signature
        """See `tarfile.TarInfo`."""
        try:
            return super().fromtarfile(tarfile)
        except Exception as error:
            tarfile.ended = type(error).__name__ == "EOFHeaderError"
            raise


class _Guard:
    """A file object that refuses to give more than a header's bytes while headers are read, and keeps what broke it."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - anything with read
        self._file = file
        self._left = _HEADERS
        self.problem: str | None = None
        self.data = False

    def header(self) -> None:
        """From here on a header is read."""
        self.data = False
        self._left = _HEADERS

    def _allow(self, size: int) -> None:
        if self.data:
            return
        self._left -= size
        if self._left < 0:
            msg = f"a header of more than {_HEADERS >> 20} MiB, which no archive of a dump has: refused"
            raise OSError(msg)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; an end where the file is broken."""
        self._allow(size)
        if self.problem is not None:
            return b""
        try:
            got: bytes = self._file.read(size)
        except Exception as error:  # noqa: BLE001 - clients raise what they like; said in the report
            self.problem = one_line(error)
            return b""
        return got

    def seek(self, place: int, whence: int = 0) -> int:
        """Of the file below."""
        return int(self._file.seek(place, whence))

    def tell(self) -> int:
        """Of the file below."""
        return int(self._file.tell())

    def close(self) -> None:
        """The file below is closed by whoever opened it."""


def _why_refused(member: tarfile.TarInfo) -> str | None:
    """Why a member is no plain file."""
    if member.issym() or member.islnk():
        return "is a link in the archive, not a file; archive it with --dereference --hard-dereference"
    if member.issparse():
        return "is a sparse file in the archive; archive it without --sparse"
    return None if member.isreg() else "is no regular file in the archive"


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members in order, not collected: an archive may hold millions.

    Raises:
        tarfile.TarError: What follows is no header; a header's sizes lead backwards.
    """
    before = -1
    while True:
        try:
            member = tar.next()
        except RecursionError:
            msg = "headers about headers without end"
            raise tarfile.ReadError(msg) from None
        if member is None:
            return
        if member.size < 0 or tar.offset <= before:
            msg = "the sizes in its headers lead backwards"
            raise tarfile.ReadError(msg)
        before = tar.offset
        yield member
        tar.members = []  # type: ignore[misc]


class TarFiles(ArchiveFiles):
    """A local tar that is not packed."""

    def __init__(self, path: str) -> None:
        """Index its headers.

        Raises:
            OSError: It cannot be read, or is no tar.
        """
        found = Names(path)
        self._places: dict[str, tuple[int, int]] = {}
        cut = None
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a path of any kind
                guard = _Guard(file)
                tar = tarfile.open(fileobj=guard, mode="r:", tarinfo=_Member, errors="surrogateescape")  # type: ignore[call-overload]  # noqa: SIM115 - the file is closed
                end = os.fstat(file.fileno()).st_size
                try:
                    for member in _members(tar):
                        name = found.enter(member.name, folder=member.isdir(), refused=_why_refused(member))
                        if name is not None:
                            self._places[name] = (member.offset_data, member.size)
                        guard.header()
                        if tar.offset > end:
                            break
                except tarfile.TarError as error:
                    cut = f"{_CUT} ({error})"
                cut = cut or (None if getattr(tar, "ended", False) else _CUT)
        except tarfile.TarError as error:
            raise at(path, OSError(f"not a tar file: {error}")) from error
        except OSError as error:
            raise at(path, error) from error
        super().__init__(path, found, cut)

    def size(self, name: str) -> int | None:
        """See `Files`."""
        place = self._places.get(self.top + name)
        return place and place[1]

    def member(self, name: str) -> bytes:
        """See `ArchiveFiles`."""
        if name not in self._places:
            raise FileNotFoundError(name)
        offset, size = self._places[name]
        small_enough(size)
        with open(self.archive, "rb") as file:  # noqa: PTH123 - a path of any kind
            file.seek(offset)
            return file.read(min(size, os.fstat(file.fileno()).st_size))


@dataclass
class _Folder:
    """A rank's folder while the tar passes."""

    dumps: dict[str, Future[bytes]] = field(default_factory=dict)
    #: construct.json or stack.json that came before a dump.
    held: dict[str, bytes] = field(default_factory=dict)


class TarStream(Source):
    """A tar that is read from front to back: packed, or behind a URL."""

    def __init__(self, path: str, opener: Opener) -> None:
        """Nothing is read yet."""
        self.path = path
        self._opener = opener
        self._names = Names(path)
        self._folders: dict[str, _Folder] = {}
        self._held = 0
        self._left: set[str] = set()
        self._top = ""
        self._cut: str | None = None

    def steps(self, request: Request) -> list[Step]:
        """See `Source`; the one pass is here, so the dumps are summarised, too."""
        with ThreadPoolExecutor(request.workers, thread_name_prefix="ovf-read") as pool:
            room = threading.BoundedSemaphore(request.workers + 1)
            try:
                for name, data in self._pass(request, lambda name: _chosen(name, request), room):
                    self._take(name, data, request, pool, room)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self._top = self._names.top()
        root = f"{stem(self.path)}/{self._top}".rstrip("/")
        steps = steps_of(root, below(self._top, self._names.known))
        return [step.remarked(self._names.notes(), self._cut) for step in steps]

    def summaries(self, step: Step, request: Request) -> Summaries:
        """See `Source`; made while the tar passed, but for folders whose rank was not known then."""
        made: Summaries = {}
        again: dict[str, Rank] = {}
        for rank in step.ranks:
            name = self._top + rank.dump
            future = self._folders.get(name.rpartition("/")[0], _Folder()).dumps.get(name)
            if future is not None and _rank_of(name, self.path) == (rank.rank, rank.label):
                made[rank.rank] = future.result()
            elif future is not None or name in self._names.known:
                again[name] = rank
            else:
                why = self._names.refused.get(name)
                advice = NOT_WRITTEN if why is None else LEAVE_OUT
                text = f"{self.path}/{name}"
                made[rank.rank] = absent(rank, text, why or "no such file or directory", advice, request.rules)
        for name, data in self._pass(request, again.__contains__, None, stop_after=len(again)) if again else ():
            rank = again[name]
            text = f"{self.path}/{name}"
            made[rank.rank] = _core.summarize(data, rank=rank.rank, label=rank.label, path=text, rules=request.rules)
            self._left.add(name.rpartition("/")[0])
        return made

    def completed(self, step: Step, summaries: Summaries, request: Request) -> Summaries:
        """See `Source`; a second pass, for what did not fit the first time."""
        wanted: dict[str, int] = {}
        for rank in step.ranks:
            if rank.rank in summaries and (self._top + rank.dump).rpartition("/")[0] in self._left:
                wanted.update({self._top + name: rank.rank for name in (rank.construct, rank.stack) if name})
        made = dict(summaries)
        for name, data in self._pass(request, wanted.__contains__, None, stop_after=len(wanted)) if wanted else ():
            made[wanted[name]] = _add(made[wanted[name]], name, data)
        return made if wanted else {}

    def _take(
        self, name: str, data: bytes, request: Request, pool: ThreadPoolExecutor, room: threading.BoundedSemaphore
    ) -> None:
        """A file has passed."""
        folder = self._folders.setdefault(name.rpartition("/")[0], _Folder())
        if name.rpartition("/")[2].startswith(DUMPS):
            folder.dumps[name] = pool.submit(self._summarise, name, data, request, room)
            for other, held in folder.held.items():
                self._held -= len(held)
                folder.dumps[name] = pool.submit(_later, folder.dumps[name], other, held, None)
            folder.held.clear()
        elif folder.dumps:
            dump = next(reversed(folder.dumps))
            folder.dumps[dump] = pool.submit(_later, folder.dumps[dump], name, data, room)
        else:
            room.release()
            if self._held + len(data) > _HELD:
                self._left.add(name.rpartition("/")[0])
                return
            self._held += len(data)
            folder.held[name] = data

    def _summarise(self, name: str, data: bytes, request: Request, room: threading.BoundedSemaphore) -> bytes:
        try:
            rank, label = _rank_of(name, self.path)
            return _core.summarize(data, rank=rank, label=label, path=f"{self.path}/{name}", rules=request.rules)
        finally:
            room.release()

    def _pass(
        self,
        request: Request,
        wanted: Callable[[str], bool],
        room: threading.BoundedSemaphore | None,
        stop_after: int = 0,
    ) -> Iterator[tuple[str, bytes]]:
        """Name and content of the wanted files, in the tar's order; before each is read, `room` is taken."""
        first = room is not None
        names = self._names if first else Names(self.path)
        given = 0
        try:
            file = self._opener()
        except Exception as error:
            raise at(self.path, error) from error
        with file:
            size = _length(file)
            request.counters.add(total=size or 0)
            counted = _Counted(file, request)
            try:
                guard = _Guard(_core.Unpacker(counted))
                tar = tarfile.open(  # noqa: SIM115 - has nothing of its own to close
                    fileobj=guard, mode="r|", bufsize=_CHUNK, tarinfo=_Member, errors="surrogateescape"  # type: ignore[call-overload]
                )
            except (tarfile.TarError, OSError) as error:
                raise at(self.path, OSError(f"not a tar file: {one_line(error)}")) from error
            if guard.problem is not None:
                raise at(self.path, OSError(guard.problem))
            cut = None
            try:
                for member in _members(tar):
                    guard.data = True
                    name = names.enter(member.name, folder=member.isdir(), refused=_why_refused(member))
                    if name is not None and wanted(name):
                        if room is not None:
                            room.acquire()
                        yield name, _content(tar, member)
                        given += 1
                        if given == stop_after:
                            return
                    if not _skip(tar):
                        break
                    guard.header()
            except tarfile.TarError as error:
                cut = str(error)
            except OSError as error:
                raise at(self.path, error) from error
            if first and (guard.problem or cut or not getattr(tar, "ended", False)):
                self._cut = f"{CUT} ({guard.problem})" if guard.problem else CUT


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


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The file's bytes; what there is of them where the archive is cut."""
    small_enough(member.size)
    stream: Any = tar.fileobj
    stream.seek(member.offset_data)
    chunks: list[bytes] = []
    left = member.size
    while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _skip(tar: tarfile.TarFile) -> bool:
    """Read on to the next header; whether there is so much. (tarfile itself would count to any size in steps.)"""
    stream: Any = tar.fileobj
    while (left := tar.offset - stream.tell()) > 0:
        if not stream.read(min(left, _CHUNK)):
            return False
    return True


def _later(before: Future[bytes], name: str, data: bytes, room: threading.BoundedSemaphore | None) -> bytes:
    """The summary with what a context file says; a pool runs its tasks in order, so `before` has begun."""
    try:
        return _add(before.result(), name, data)
    finally:
        if room is not None:
            room.release()


def _add(summary: bytes, name: str, data: bytes) -> bytes:
    construct = name.rpartition("/")[2].startswith(CONTEXT[0])
    return _core.with_context(summary, data, None) if construct else _core.with_context(summary, None, data)


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
    size = getattr(file, "size", None)
    if size is None and hasattr(file, "fileno"):
        return os.fstat(file.fileno()).st_size
    return size
