"""Any place that fsspec reaches: http(s)://, s3://, gs://, memory://, sftp://, chained URLs.

Credentials, endpoints and other options come from where the store's own tools take them, from fsspec's configuration
(`FSSPEC_S3_ENDPOINT_URL=...`, `~/.config/fsspec`), or from `storage_options`; ovf keeps none.

A file is read whole, in ranges of 8 MiB side by side where it is large and its server gives ranges. A server that
promises ranges and sends something else is asked once more for the whole file; one that drops a connection is asked
again. A listing asks for the folders that may hold steps and ranks, never for what lies inside a rank's folder (tensor
dumps hold a file an op).
"""

from __future__ import annotations

import dataclasses
import io
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ovf.remote.errors import MissingExtraError, at, causes, status_of
from ovf.remote.files import Files, small_enough
from ovf.remote.step import CONTEXT, DEPTH, DUMPS, PACKED, RANK_FOLDERS, WANTED, is_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future
    from typing import TypeVar

    from ovf.remote.step import Step

    T = TypeVar("T")

#: Bytes asked for at once.
BLOCK = 8 << 20
#: Blocks on their way at once.
AHEAD = 8
#: Folders listed at once.
_LISTINGS = 16
#: Seconds before asking again, doubled each time.
_PAUSE = 0.2
_TRIES = 3


class Storage(Files):
    """A folder, or one dump file, behind a URL."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Find the file system of a URL; nothing is read.

        Args:
            url: Any URL fsspec knows.
            options: Options of its file system.

        Raises:
            MissingExtraError: fsspec, or the package that its scheme needs, is not installed.
            ValueError: No such scheme, or not a URL of it.
        """
        self.path = url.rstrip("/")
        self._system, self._base = _open(url, dict(options or {}))
        self._base = self._base.rstrip("/") if self._base.strip("/") else self._base
        self._sizes: dict[str, int | None] = {}
        self._ranges: bool | None = None if self._system.protocol in _WEB else True
        last = self.path.rpartition("/")[2]
        #: The one file that the URL names.
        self.only = last if last.endswith(tuple(".json" + end for end in PACKED)) else None
        if self.only is not None:
            self._base = self._base.rpartition("/")[0]
            self.path = self.path.rpartition("/")[0]
        first = self.path.partition("::")[0]  # of a chained URL, what is read last
        self.root = first.partition("://")[2] or first

    def text(self, name: str) -> str:
        """See `Files`."""
        first, chained, rest = self.path.partition("::")
        return f"{first}/{name}{chained}{rest}" if name else self.path

    def names(self) -> Iterable[str]:
        """See `Files`."""
        if self.only is not None:
            return self._beside(self.only)
        found: set[str] = set()
        level = [""]
        with ThreadPoolExecutor(_LISTINGS, thread_name_prefix="ovf-list") as pool:
            for _ in range(DEPTH):
                below: list[str] = []
                for folder, entries in zip(level, pool.map(self._list, level), strict=True):
                    below += self._enter(folder, entries, found)
                level = below
        return found

    def _beside(self, only: str) -> Iterable[str]:
        """The one file under the name of a dump, and what belongs to it. Nothing is listed: not every server lists."""
        try:
            self._sizes[only] = self._asked(self._system.info, f"{self._base}/{only}").get("size")
        except Exception as error:
            raise at(self.text(only), error) from error
        spelled = (name + end for name in CONTEXT for end in PACKED)
        return [DUMPS[0], *(name for name in spelled if self._asked(self._system.exists, f"{self._base}/{name}"))]

    def steps(self, names: Iterable[str]) -> list[Step]:
        """See `Files`; a lone file that lies in no rank's folder is called by its name."""
        steps = super().steps(names)
        if self.only is None:
            return steps
        rank = steps[0].ranks[0]
        label = rank.label if rank.label.startswith("rank") else self.only
        return [dataclasses.replace(steps[0], ranks=(dataclasses.replace(rank, label=label, dump=self.only),))]

    def _enter(self, folder: str, entries: list[tuple[str, bool, int | None]], found: set[str]) -> list[str]:
        """Take what a listing says; the folders that are worth a listing of their own."""
        above = f"{folder}/" if folder else ""
        folders = []
        for name, is_folder, size in entries:
            if is_folder:
                found.add(f"{above}{name}/")
                folders.append(name)
            elif is_wanted(name):
                found.add(above + name)
                self._sizes[above + name] = size
        is_rank = any(above + name in found for name in WANTED) or folder.rpartition("/")[2].startswith(RANK_FOLDERS)
        if is_rank:
            return []
        ranks = [name for name in folders if name.startswith(RANK_FOLDERS)]
        return [above + name for name in ranks or folders]

    def _list(self, folder: str) -> list[tuple[str, bool, int | None]]:
        """Name, whether it is a folder, and size, of each entry; nothing for a folder that is not there any more."""
        place = f"{self._base}/{folder}" if folder else self._base
        try:
            rows = self._asked(self._system.ls, place, detail=True)
        except FileNotFoundError as error:
            if folder:
                return []
            raise at(self.path, error) from error
        except Exception as error:  # clients raise what they like
            raise at(self.text(folder), error) from error
        entries = []
        for row in rows:
            name = row["name"].rstrip("/").rpartition("/")[2].partition("?")[0]
            if name and row["name"].rstrip("/") != place:
                entries.append((name, row["type"] == "directory", row.get("size")))
        return entries

    def size(self, name: str) -> int | None:
        """See `Files`."""
        return self._sizes.get(name)

    def read(self, name: str) -> bytes:
        """See `Files`."""
        place = f"{self._base}/{name}"
        size = self._sizes.get(name)
        if size is None:  # the web lists names alone
            size = self._asked(self._system.info, place).get("size")
        small_enough(size or 0)
        if size is not None and size > 2 * BLOCK and self._gives_ranges(place, size):
            whole = self._in_ranges(place, size)
            if whole is not None:
                return whole
        return bytes(self._asked(self._system.cat_file, place))

    def _gives_ranges(self, place: str, size: int) -> bool:
        """Whether ranges of a file can be had. Stores give them; a web server is tried with one byte, once."""
        if self._ranges is None:
            try:
                with self._asked(self._system.open, place, "rb", block_size=1, cache_type="none", size=size) as file:
                    file.seek(1)
                    self._ranges = len(file.read(1)) == 1
            except ValueError:
                self._ranges = False
        return self._ranges

    def _in_ranges(self, place: str, size: int) -> bytes | None:
        """The file in ranges side by side; `None` when the server sends something else.

        Raises:
            OSError: Another file stands there at the end.
        """
        before = self._state(place)
        whole = io.BytesIO()
        for first in range(0, size, AHEAD * BLOCK):
            starts = list(range(first, min(first + AHEAD * BLOCK, size), BLOCK))
            ends = [min(start + BLOCK, size) for start in starts]
            pieces = self._asked(self._system.cat_ranges, [place] * len(starts), starts, ends, on_error="raise")
            for piece, start, end in zip(pieces, starts, ends, strict=True):
                if len(piece) != end - start:
                    return None
                whole.write(piece)
        if self._state(place) != before:
            msg = "changed while it was read: the job is still writing; analyse again when it is done"
            raise OSError(msg)
        return whole.getvalue()  # shares the buffer

    def _state(self, place: str) -> list[Any]:
        """What tells one version of a file from another, as far as its store tells."""
        self._system.invalidate_cache(place)
        told = self._asked(self._system.info, place)
        return [
            told.get(key) for key in ("size", "ETag", "etag", "LastModified", "Last-Modified", "mtime", "generation")
        ]

    def opened(self, *, seekable: bool) -> Any:  # noqa: ANN401 - a file of any library
        """The one file that the URL names, read ahead in blocks where its server gives ranges.

        Raises:
            OSError: It cannot be opened, or `seekable` is wanted and the server gives no ranges.
        """
        try:
            size = self._asked(self._system.info, self._base).get("size")
            ranges = size is not None and self._gives_ranges(self._base, size)
            if seekable == ranges:
                block = (1 << 20) if ranges else 0  # 0: as a stream
                return self._asked(self._system.open, self._base, "rb", block_size=block)
        except Exception as error:
            raise at(self.path, error) from error
        if seekable:
            raise at(self.path, OSError("the server gives no ranges of it, which a zip needs; serve a tar"))

        def fetch(start: int, end: int) -> bytes:
            # By name: s3fs has another parameter in front.
            got: bytes = self._asked(self._system.cat_file, self._base, start=start, end=end)
            return got

        return _Ahead(fetch, size or 0)

    def _asked(self, call: Callable[..., T], *args: Any, **options: Any) -> T:  # noqa: ANN401 - passed on
        """Call, and again when a connection breaks."""
        pause = _PAUSE
        for _ in range(_TRIES - 1):
            try:
                return call(*args, **options)
            except Exception as error:  # clients raise what they like
                if not _passing(error):
                    raise
            time.sleep(pause)
            pause *= 2
        return call(*args, **options)


_WEB = ("http", "https", ("http", "https"))


class _Ahead:
    """A file read from front to back, a few blocks on their way ahead of the reader."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._fetch = fetch
        self._pool = ThreadPoolExecutor(AHEAD // 2, thread_name_prefix="ovf-ahead")
        self._coming: deque[Future[bytes]] = deque()
        self._next = 0
        self._block = memoryview(b"")

    def __enter__(self) -> _Ahead:  # noqa: PYI034 - nothing is made from it
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes."""
        if not self._block:
            while self._next < self.size and len(self._coming) < AHEAD // 2:
                end = min(self._next + BLOCK, self.size)
                self._coming.append(self._pool.submit(self._whole, self._next, end))
                self._next = end
            if self._coming:
                self._block = memoryview(self._coming.popleft().result())
        got, self._block = self._block[:size], self._block[size:]
        return bytes(got)

    def _whole(self, start: int, end: int) -> bytes:
        block = self._fetch(start, end)
        if len(block) != end - start:
            msg = f"the server sent {len(block):,} bytes where {end - start:,} were asked for"
            raise OSError(msg)
        return block


def _passing(error: BaseException) -> bool:
    """Whether asking again may help: a broken connection or an overloaded server, not a refused one."""
    chain = causes(error)
    names = " ".join(type(e).__name__ for e in chain)
    if any(isinstance(e, ConnectionRefusedError) for e in chain) or "Connector" in names:
        return False
    status = next((s for s in map(status_of, chain) if s), None)
    if status is not None:
        return status == 429 or status >= 500  # noqa: PLR2004 - HTTP's
    broken = any(isinstance(e, (ConnectionResetError, TimeoutError)) for e in chain)
    return broken or "Disconnected" in names or "Payload" in names


def _open(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """File system and path of a URL."""
    scheme = url.partition("://")[0].rpartition("::")[2]
    try:
        import fsspec  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing(url, "fsspec") from None
    try:
        system, place = fsspec.core.url_to_fs(url, **options)
        system.invalidate_cache()  # file systems live on with what they listed before
    except ImportError as error:
        raise _missing(url, str(error)) from error
    except ValueError as error:
        if "Protocol not known" in str(error):
            known = ", ".join(f"{name}://" for name in ("http", "https", "s3", "gs", "abfs", "sftp", "memory"))
            msg = f"{url}: unsupported scheme {scheme!r}; fsspec knows {known} and more"
        else:
            msg = f"{url}: {' '.join(str(error).split())}"
        raise ValueError(msg) from error
    except Exception as error:  # clients raise what they like
        raise at(url, error) from error
    return system, str(place)


def _missing(url: str, said: str) -> MissingExtraError:
    error = MissingExtraError(f"{url}: a package for this scheme is not installed ({' '.join(said.split())})")
    error.help = "pip install 'ovf-npu[remote]' brings http(s):// and s3://; other schemes need the package named above"
    return error
