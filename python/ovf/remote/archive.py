"""A step, a dump root or a rank in a tar or zip file, read without unpacking it to disk.

Nothing is ever written, so a hostile name can overwrite nothing; names that lead out of the archive, links, devices and
sparse files are passed over all the same, and said so. What is unpacked in memory is bounded: one file by
`_core.LARGEST`, everything by a thousand times the packed size, headers by `_HEADERS`.

Random access: a zip has a directory, and an unpacked local tar gets one by hopping from header to header. Both are
`Files` like an object store.

One pass: a packed tar, or a tar behind a URL, is read once from front to back, whatever the order of its members. A
dump is summarised when it passes. A construct.json or stack.json that comes behind its dump is used when it passes, if
the summary has anything to look up; one that comes before its dump is held until then, up to `_HELD` bytes altogether
(tar writes the files of a folder together, so it is a rank's worth). Only what did not fit, and what belongs to a
rank of the listed findings, costs a second pass, which ends at the last such file.
"""

from __future__ import annotations

import os
import struct
import tarfile
import threading
import zipfile
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from ovf import _core
from ovf.remote.errors import at, one_line
from ovf.remote.files import LEAVE_OUT, NOT_WRITTEN, Files, absent
from ovf.remote.source import Source
from ovf.remote.step import CONTEXT, DUMPS, PACKED, RANK_FOLDERS, WANTED, Rank, Step, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ovf.remote.source import Request, Summaries

    Opener = Callable[[], BinaryIO]

#: How an archive's name ends.
TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
ZIPS = (".zip",)

#: Bytes of one header, or of a directory of names: far more than any needs.
_HEADERS = 64 << 20
#: Bytes of files that came before their dump.
_HELD = 256 << 20
#: Bytes read at once.
_CHUNK = 1 << 20
#: Names that are kept; a step of a million ranks has fewer.
_NAMES = 4_000_000
#: Parts and letters of a name.
_DEEPEST, _LONGEST = 32, 4096
#: Zip members may unpack to this many times their size beyond `_HELD`.
_RATIO = 1000


class Names:
    """Names of an archive's members that may belong to a dump, and what was passed over."""

    def __init__(self, path: str) -> None:
        """Start empty; `path` is the archive's, for messages."""
        self._path = path
        self.known: set[str] = set()
        self.refused: dict[str, str] = {}
        self._outside = 0
        self._twice: list[str] = []

    def enter(self, name: str, *, folder: bool, refused: str | None = None) -> str | None:
        """Take a member's name.

        Returns:
            The name in plain form when the file's content is wanted, else `None`.
        """
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if name.startswith("/") or ".." in parts or len(parts) > _DEEPEST or len(name) > _LONGEST:
            self._outside += 1
            return None
        parts = [part.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for part in parts]
        self._folders(parts if folder else parts[:-1])
        if folder or not parts or parts[-1] not in WANTED:
            return None
        plain = "/".join(parts)
        if refused is not None:
            self.refused[plain] = refused
            return None
        if plain in self.known:
            self._twice.append(plain)
            return None
        self._add(plain)
        return plain

    def _folders(self, parts: list[str]) -> None:
        """Folders down to a rank's; what lies inside one is not looked at."""
        for i, part in enumerate(parts, 1):
            self._add("/".join(parts[:i]) + "/")
            if part.startswith(RANK_FOLDERS):
                return

    def _add(self, name: str) -> None:
        self.known.add(name)
        if len(self.known) > _NAMES:
            msg = f"{self._path}: holds more than {_NAMES:,} names of ranks, which no dump does"
            raise OSError(msg)

    def top(self) -> str:
        """The folder that everything lies in, `/` behind it, or nothing: down to where there is more than one thing,
        a step or a rank."""
        top = ""
        while True:
            here = {name[len(top) :].partition("/")[0] for name in self.known if name.startswith(top) and name != top}
            only = next(iter(here)) if len(here) == 1 else ""
            if f"{top}{only}/" not in self.known or only.startswith((*RANK_FOLDERS, "step")):
                return top
            top += f"{only}/"

    def notes(self) -> tuple[str, ...]:
        """What was passed over."""
        notes = []
        if self._outside:
            notes.append(f"the archive has {self._outside} names that lead out of it or too deep: passed over")
        if self._twice:
            first = self._twice[0]
            notes.append(f"{first}: the archive holds this name more than once; the first one counts")
        return tuple(notes)


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


class TarFiles(Files):
    """A local tar that is not packed."""

    def __init__(self, path: str) -> None:
        """Index its headers.

        Raises:
            OSError: It cannot be read, or is no tar.
        """
        self._path = path
        found = Names(path)
        self._places: dict[str, tuple[int, int]] = {}
        with open(path, "rb") as file:  # noqa: PTH123 - a path of any kind
            guard = _Guard(file)
            try:
                with tarfile.open(fileobj=guard, mode="r:", tarinfo=_Member, errors="surrogateescape") as tar:  # type: ignore[arg-type]
                    for member in _members(tar):
                        name = found.enter(member.name, folder=member.isdir(), refused=_why_refused(member))
                        if name is not None:
                            self._places[name] = (member.offset_data, member.size)
                        guard.header()
                    self.cut = None if getattr(tar, "ended", False) else CUT
            except tarfile.TarError as error:
                raise at(path, OSError(f"not a tar file: {error}")) from error
            except OSError as error:
                raise at(path, error) from error
        self._top = found.top()
        self._names = found
        self.path = f"{path}/{self._top}".rstrip("/")
        self.root = f"{stem(path)}/{self._top}".rstrip("/")
        self.notes = found.notes()

    def names(self) -> Iterable[str]:
        """See `Files`."""
        return below(self._top, self._names.known)

    def size(self, name: str) -> int | None:
        """See `Files`."""
        return self._places[self._top + name][1]

    def read(self, name: str) -> bytes:
        """See `Files`."""
        offset, size = self._places[self._top + name]
        small_enough(size)
        with open(self._path, "rb") as file:  # noqa: PTH123 - a path of any kind
            file.seek(offset)
            return file.read(size)

    def refused(self, name: str) -> str | None:
        """See `Files`."""
        return self._names.refused.get(self._top + name)


class ZipFiles(Files):
    """A zip file, local or behind a URL that gives ranges."""

    def __init__(self, path: str, opener: Opener) -> None:
        """Read its directory.

        Raises:
            OSError: It cannot be read, or is no zip.
        """
        self._path = path
        self._opener = opener
        self._own = threading.local()
        found = Names(path)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip().infolist():
            kind = member.external_attr >> 16 & 0o170000
            link = "is a link in the archive, not a file" if kind == 0o120000 else None  # as `zip -y` stores it
            name = found.enter(member.filename.replace("\\", "/"), folder=member.is_dir(), refused=link)
            if name is not None:
                self._members[name] = member
        self._top = found.top()
        self._names = found
        self.cut = None
        self.path = f"{path}/{self._top}".rstrip("/")
        self.root = f"{stem(path)}/{self._top}".rstrip("/")
        self.notes = found.notes()

    def _zip(self) -> zipfile.ZipFile:
        """This thread's handle: threads do not wait for each other's reads."""
        opened: zipfile.ZipFile | None = getattr(self._own, "opened", None)
        if opened is None:
            try:
                opened = zipfile.ZipFile(_Directory(self._opener()))  # type: ignore[arg-type]
            except (zipfile.BadZipFile, struct.error, ValueError) as error:
                raise at(self._path, OSError(f"not a zip file: {error}")) from error
            except Exception as error:
                raise at(self._path, error) from error
            opened.fp.free()  # type: ignore[union-attr]
            self._own.opened = opened
        return opened

    def names(self) -> Iterable[str]:
        """See `Files`."""
        return below(self._top, self._names.known)

    def size(self, name: str) -> int | None:
        """See `Files`."""
        return self._members[self._top + name].file_size

    def read(self, name: str) -> bytes:
        """See `Files`."""
        member = self._members[self._top + name]
        small_enough(member.file_size)
        if member.file_size > _HELD + _RATIO * member.compress_size:
            msg = f"unpacks to more than {_RATIO} times its size, which no dump does: refused"
            raise OSError(msg)
        try:
            return self._zip().read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
            msg = f"damaged in the archive: {error}"
            raise OSError(msg) from error
        except RuntimeError as error:
            msg = "is encrypted in the archive" if "encrypted" in str(error) else str(error)
            raise OSError(msg) from error

    def refused(self, name: str) -> str | None:
        """See `Files`."""
        return self._names.refused.get(self._top + name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Opened anew on the other side."""
        return (ZipFiles, (self._path, self._opener))


class _Directory:
    """A zip's file object; while its directory is read, no single read is larger than a directory can be."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._most: int | None = _HEADERS * 4
        self.seekable = file.seekable
        self.tell = file.tell
        self.seek = file.seek
        self.close = file.close

    def free(self) -> None:
        """The directory has been read."""
        self._most = None

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        if self._most is not None and size > self._most:
            msg = f"a directory of more than {self._most >> 20} MiB, which no archive of a dump has: refused"
            raise OSError(msg)
        return self._file.read(size)


CUT = "the archive ends early: what stood behind the cut is not read"


def stem(path: str) -> str:
    """The archive's path without what says that it is one."""
    return next((path[: -len(end)] for end in sorted((*TARS, *ZIPS), key=len, reverse=True) if path.lower().endswith(end)), path)


def below(top: str, names: Iterable[str]) -> list[str]:
    """Names below `top`."""
    return [name[len(top) :] for name in names if name.startswith(top) and name != top]


def small_enough(size: int) -> None:
    """Refuse what is not held in memory.

    Raises:
        OSError: It is too large.
    """
    if size > _core.LARGEST:
        msg = f"is more than {_core.LARGEST >> 30} GiB; unpack it to a local disk, where files are mapped"
        raise OSError(msg)


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members in order, not collected: an archive may hold millions."""
    while (member := tar.next()) is not None:
        yield member
        tar.members = []  # type: ignore[misc]


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
        return [with_remarks(step, self._names.notes(), self._cut) for step in steps]

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
                made[rank.rank] = absent(rank, text, why or "no such file or directory", advice, request)
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
            made[wanted[name]] = _add(made[wanted[name]], name, data, request)
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
                folder.dumps[name] = pool.submit(_later, folder.dumps[name], other, held, request, None)
            folder.held.clear()
        elif folder.dumps:
            dump = next(reversed(folder.dumps))
            folder.dumps[dump] = pool.submit(_later, folder.dumps[dump], name, data, request, room)
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
                    tar.fileobj.seek(tar.offset)  # type: ignore[union-attr]
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
    """`rank7` and `rank_7` as 7."""
    digits = folder.removeprefix("rank").removeprefix("_")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The file's bytes; what there is of them where the archive is cut."""
    small_enough(member.size)
    file = tar.extractfile(member)
    chunks: list[bytes] = []
    try:
        while file is not None and (chunk := file.read(_CHUNK)):
            chunks.append(chunk)
    except tarfile.TarError:
        pass  # the dump is cut, which its summary says
    return b"".join(chunks)


def _later(before: Future[bytes], name: str, data: bytes, request: Request, room: threading.BoundedSemaphore | None) -> bytes:
    """The summary with what a context file says; a pool runs its tasks in order, so `before` has begun."""
    try:
        return _add(before.result(), name, data, request)
    finally:
        if room is not None:
            room.release()


def _add(summary: bytes, name: str, data: bytes, request: Request) -> bytes:
    construct = name.rpartition("/")[2].startswith(CONTEXT[0])
    pair = (data, None) if construct else (None, data)
    return _core.with_context(summary, *pair, rules=request.rules)
