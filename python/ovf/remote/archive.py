"""What archives have in common: whose names are taken, what is refused, how much is held.

Nothing is ever written, so a hostile name can overwrite nothing; names that lead out of the archive, links, devices and
sparse files are passed over all the same, and said so. What is unpacked in memory is bounded: one file by
`_core.LARGEST`, everything by a thousand times the packed size, headers and directories by constants here and there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.remote.files import Files
from ovf.remote.step import RANK_FOLDERS, is_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

    Opener = Callable[[], BinaryIO]

#: How an archive's name ends.
TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
ZIPS = (".zip",)

#: Names that are kept; a step of a million ranks has fewer.
_NAMES = 4_000_000
#: Parts and letters of a name.
_DEEPEST, _LONGEST = 32, 4096


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
        if folder or not parts or not is_wanted(parts[-1]):
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
        """The folder that everything lies in, with `/`, or nothing: down to several things, a step or a rank."""
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


class ArchiveFiles(Files):
    """An archive whose members can be read at random."""

    def __init__(self, path: str, names: Names, cut: str | None = None) -> None:
        """Lay out the names of the archive at `path`."""
        self.archive = path
        self._names = names
        self.top = names.top()
        self.path = f"{path}/{self.top}".rstrip("/")
        self.root = f"{stem(path)}/{self.top}".rstrip("/")
        self.notes = names.notes()
        self.cut = cut

    def names(self) -> Iterable[str]:
        """See `Files`."""
        return below(self.top, self._names.known)

    def read(self, name: str) -> bytes:
        """See `Files`."""
        refused = self._names.refused.get(self.top + name)
        if refused is not None:
            raise OSError(refused)
        return self.member(self.top + name)

    def member(self, name: str) -> bytes:
        """The content of a member; `FileNotFoundError` where there is none."""
        raise NotImplementedError


def stem(path: str) -> str:
    """The archive's path without what says that it is one."""
    ends = sorted((*TARS, *ZIPS), key=len, reverse=True)
    return next((path[: -len(end)] for end in ends if path.lower().endswith(end)), path)


def below(top: str, names: Iterable[str]) -> list[str]:
    """Names below `top`."""
    return [name[len(top) :] for name in names if name.startswith(top) and name != top]
