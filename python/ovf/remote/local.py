"""A folder on this machine's disks, as `Files`: what a task on a cluster's node sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ovf import _core
from ovf.remote.errors import at
from ovf.remote.files import Files
from ovf.remote.step import DEPTH, RANK_FOLDERS, WANTED, is_wanted

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from ovf.remote.step import Rank


class LocalFiles(Files):
    """A dump root, a step or a rank folder."""

    whole = True
    #: Whether large files may be mapped, where that is safe.
    map = True

    def __init__(self, path: str, host: str | None = None) -> None:
        """Nothing is read; `host` stands before the path in a report."""
        self._folder = path.rstrip("/") or "/"
        self.path = f"{host}:{self._folder}" if host else self._folder
        self.root = self._folder

    def _at(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def names(self) -> Iterable[str]:
        """See `Files`."""
        found: set[str] = set()
        self._enter("", DEPTH, found)
        return found

    def _enter(self, folder: str, depth: int, found: set[str]) -> None:
        above = f"{folder}/" if folder else ""
        try:
            entries = sorted(os.scandir(self._at(folder)), key=lambda entry: entry.name)
        except OSError as error:
            if folder:
                return
            raise at(self.path, error) from error
        folders = []
        for entry in entries:
            if entry.is_dir():
                found.add(f"{above}{entry.name}/")
                folders.append(entry.name)
            elif is_wanted(entry.name) and entry.is_file():
                found.add(above + entry.name)
        is_rank = folder.rpartition("/")[2].startswith(RANK_FOLDERS) or any(above + name in found for name in WANTED)
        if is_rank or depth == 1:
            return
        for name in [name for name in folders if name.startswith(RANK_FOLDERS)] or folders:
            self._enter(above + name, depth - 1, found)

    def size(self, name: str) -> int | None:
        """See `Files`."""
        try:
            return os.stat(self._at(name)).st_size  # noqa: PTH116 - a path of any kind
        except OSError:
            return None

    def read(self, name: str) -> bytes:
        """See `Files`."""
        with open(self._at(name), "rb") as file:  # noqa: PTH123 - a path of any kind
            return file.read()

    def summarise(
        self,
        rank: Rank,
        rules: str | None,
        wants: list[str],
        processors: threading.Semaphore | None = None,  # noqa: ARG002 - one at a time
    ) -> bytes:
        """See `Files`; with module chain and code."""
        return _core.summarize(
            self._at(rank.dump),
            rank=rank.rank,
            label=rank.label,
            path=self.text(rank.dump),
            rules=rules,
            map=self.map,
            wants=wants,
        )
