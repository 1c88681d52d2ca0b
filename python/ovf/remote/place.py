"""Which files, or which source, a path means."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovf.remote.archive import TARS, ZIPS
from ovf.remote.files import FilesSource
from ovf.remote.local import LocalFiles
from ovf.remote.stream import TarStream
from ovf.remote.tar import TarFiles
from ovf.remote.zip import ZipFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from ovf.remote.files import Files
    from ovf.remote.source import Source

#: First bytes of a packed tar: gzip, zstd.
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


def source_of(path: str, options: Mapping[str, Any] | None = None) -> Source:
    """The source behind a URL or an archive.

    Args:
        path: A URL, or a local archive.
        options: Options of the URL's file system.

    Raises:
        OSError: The archive cannot be read.
        ValueError: No such scheme, or a package that it needs is not installed.
    """
    files = files_of(path, options)
    if files is not None:
        return FilesSource(files)
    if not _is_url(path):
        return TarStream(path, functools.partial(_open, path))
    from ovf.remote.storage import Storage  # noqa: PLC0415 - for URLs only

    storage = Storage(path, options)
    return TarStream(storage.path, functools.partial(storage.opened, seekable=False))


def files_of(path: str, options: Mapping[str, Any] | None = None) -> Files | None:
    """Files that can be read at random; `None` for a tar that is packed or behind a URL.

    Raises:
        OSError, ValueError: As for `source_of`.
    """
    name = path.partition("::")[0].rstrip("/").lower()  # of a chained URL, what is read last
    if _is_url(path):
        if name.endswith(TARS):
            return None
        from ovf.remote.storage import Storage  # noqa: PLC0415 - for URLs only

        storage = Storage(path, options)
        if name.endswith(ZIPS):
            return ZipFiles(storage.path, functools.partial(storage.opened, seekable=True))
        return storage
    if not name.endswith((*TARS, *ZIPS)) or os.path.isdir(path):  # noqa: PTH112 - a path of any kind
        return LocalFiles(path)
    if name.endswith(ZIPS):
        return ZipFiles(path, functools.partial(_open, path))
    with _open(path) as file:
        packed = file.read(4).startswith(_PACKED)
    return None if packed else TarFiles(path)


def _is_url(path: str) -> bool:
    return "://" in path or "::" in path


def _open(path: str) -> BinaryIO:
    return Path(path).open("rb")
