"""Headers of tar files, and tars that can be read at random: local ones that are not packed.

Python's tarfile reads the headers. What it does not do is done here: it ends quietly at anything that is no header, so
the end mark is looked for; it trusts sizes in headers, so headers are bounded and places must go forward.
"""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING, Any

from ovf.remote.archive import ArchiveFiles, Names
from ovf.remote.errors import at, one_line
from ovf.remote.files import small_enough

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of the headers of one member: far more than any needs.
_HEADERS = 64 << 20
#: Bytes read at once.
_CHUNK = 1 << 20

#: Headers about one member's header: one of the archive, one of the member, a long name, a long link.
_DEPTH = 8
#: tarfile's own class, under a name that a parameter does not hide.
_HeaderError = tarfile.HeaderError

_CUT = "the archive ends early: what stood behind the cut is not read"


class _Member(tarfile.TarInfo):
    """Bounds headers about headers, and tells on its tar file whether the end mark was seen."""

    @classmethod
    def fromtarfile(cls, tarfile: Any) -> Any:  # noqa: ANN401 - tarfile's signature
        """See `tarfile.TarInfo`."""
        depth = getattr(tarfile, "depth", 0)
        if depth > _DEPTH:
            msg = "headers about headers without end"
            raise _HeaderError(msg)
        tarfile.depth = depth + 1
        try:
            return super().fromtarfile(tarfile)
        except Exception as error:
            tarfile.ended = type(error).__name__ == "EOFHeaderError"
            raise
        finally:
            tarfile.depth = depth


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
        member = tar.next()
        if member is None:
            return
        if member.size < 0 or tar.offset <= before:
            msg = "the sizes in its headers lead backwards"
            raise tarfile.ReadError(msg)
        before = tar.offset
        yield member
        tar.members = []  # type: ignore[attr-defined]


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
        return None if place is None else place[1]

    def member(self, name: str) -> bytes:
        """See `ArchiveFiles`."""
        if name not in self._places:
            raise FileNotFoundError(name)
        offset, size = self._places[name]
        small_enough(size)
        with open(self.archive, "rb") as file:  # noqa: PTH123 - a path of any kind
            file.seek(offset)
            return file.read(min(size, os.fstat(file.fileno()).st_size))


class TarPass:
    """A tar read once from front to back.

    Attributes:
        cut: After the pass: why it is not whole, if so.
    """

    def __init__(self, path: str, file: Any, names: Names) -> None:  # noqa: ANN401 - anything with read
        """Read the first header.

        Args:
            path: The tar's, for messages.
            file: Its unpacked bytes.
            names: Gets the names of its members.

        Raises:
            OSError: It is no tar.
        """
        self.cut: str | None = None
        self._path = path
        self._names = names
        self._guard = _Guard(file)
        try:
            self._tar = tarfile.open(  # noqa: SIM115 - has nothing of its own to close
                fileobj=self._guard,  # type: ignore[call-overload]
                mode="r|",
                bufsize=_CHUNK,
                tarinfo=_Member,
                errors="surrogateescape",
            )
        except (tarfile.TarError, OSError) as error:
            text = self._guard.problem or f"not a tar file: {one_line(error)}"
            raise at(path, OSError(text)) from error
        self._stream: Any = self._tar.fileobj
        self._member = tarfile.TarInfo()

    def files(self) -> Iterator[str]:
        """The files that belong to a dump, in the tar's order; `content` is that of the one given last.

        Raises:
            OSError: A header is larger than any.
        """
        why = None
        try:
            for member in _members(self._tar):
                self._guard.data = True
                name = self._names.enter(member.name, folder=member.isdir(), refused=_why_refused(member))
                if name is not None:
                    self._member = member
                    yield name
                if not self._skip():
                    break
                self._guard.header()
        except tarfile.TarError as error:
            why = str(error)
        except OSError as error:
            raise at(self._path, error) from error
        why = self._guard.problem or why
        if why or not getattr(self._tar, "ended", False):
            self.cut = f"{_CUT} ({why})" if why else _CUT

    def content(self) -> bytes:
        """The file's bytes; what there is of them where the archive is cut.

        Raises:
            OSError: It is too large to be held.
        """
        small_enough(self._member.size)
        self._stream.seek(self._member.offset_data)
        chunks: list[bytes] = []
        left = self._member.size
        while left > 0 and (chunk := self._stream.read(min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)

    def _skip(self) -> bool:
        """Read on to the next header; whether there is so much. tarfile itself would count up to any size."""
        while (left := self._tar.offset - self._stream.tell()) > 0:
            if not self._stream.read(min(left, _CHUNK)):
                return False
        return True
