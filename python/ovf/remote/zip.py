"""Zip files, local or behind a URL that gives ranges: a directory, and members that are read at random."""

from __future__ import annotations

import struct
import threading
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

from ovf.remote.archive import ArchiveFiles, Names
from ovf.remote.errors import at
from ovf.remote.files import small_enough

if TYPE_CHECKING:
    from typing import BinaryIO

    from ovf.remote.archive import Opener

#: Bytes of a directory: some millions of names.
_DIRECTORY = 256 << 20
#: Members may unpack to `_FREE` + `_RATIO` times their size.
_FREE, _RATIO = 256 << 20, 1000
#: Kind of file in a member's attributes, and a link's, as `zip -y` stores it.
_KIND, _LINK = 0o170000, 0o120000


class ZipFiles(ArchiveFiles):
    """A zip file."""

    def __init__(self, path: str, opener: Opener) -> None:
        """Read its directory.

        Raises:
            OSError: It cannot be read, or is no zip.
        """
        self._opener = opener
        self._own = threading.local()
        self.archive = path
        found = Names(path)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip().infolist():
            link = "is a link in the archive, not a file" if member.external_attr >> 16 & _KIND == _LINK else None
            name = found.enter(member.filename.replace("\\", "/"), folder=member.is_dir(), refused=link)
            if name is not None:
                self._members[name] = member
        super().__init__(path, found)

    def __reduce__(self) -> tuple[Any, ...]:
        """Opened anew on the other side."""
        return (ZipFiles, (self.archive, self._opener))

    def _zip(self) -> zipfile.ZipFile:
        """This thread's handle: threads do not wait for each other's reads."""
        opened: zipfile.ZipFile | None = getattr(self._own, "opened", None)
        if opened is None:
            try:
                file = _Directory(self._opener())
                opened = zipfile.ZipFile(file)
            except (zipfile.BadZipFile, struct.error, ValueError) as error:
                raise at(self.archive, OSError(f"not a zip file, or cut: {error}")) from error
            except Exception as error:
                raise at(self.archive, error) from error
            file.most = None
            self._own.opened = opened
        return opened

    def size(self, name: str) -> int | None:
        """See `Files`."""
        member = self._members.get(self.top + name)
        return None if member is None else member.file_size

    def member(self, name: str) -> bytes:
        """See `ArchiveFiles`."""
        member = self._members.get(name)
        if member is None:
            raise FileNotFoundError(name)
        small_enough(member.file_size)
        if member.file_size > _FREE + _RATIO * member.compress_size:
            msg = f"unpacks to more than {_RATIO} times its size, which no dump does: refused"
            raise OSError(msg)
        try:
            return self._zip().read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
            msg = f"is damaged in the archive: {error}"
            raise OSError(msg) from error
        except RuntimeError as error:
            msg = "is encrypted in the archive" if "encrypted" in str(error) else str(error)
            raise OSError(msg) from error


class _Directory:
    """A zip's file object; while its directory is read, no read is larger than one can be."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.most: int | None = _DIRECTORY
        self.seekable = file.seekable
        self.tell = file.tell
        self.seek = file.seek
        self.close = file.close

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        if self.most is not None and size > self.most:
            msg = f"a directory of more than {self.most >> 20} MiB, which no archive of a dump has: refused"
            raise OSError(msg)
        return self._file.read(size)
