"""Steps and ranks as a list of names lays them out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ovf import _core

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: How a packed file's name goes on; a plain file stands before a packed one.
PACKED = ("", ".gz", ".zst")
#: Files that hold a rank's ops.
DUMPS = ("dump.json", "debug.json")
#: Files that say where in the program an op stands.
CONTEXT = ("construct.json", "stack.json")
#: Every name that is looked at.
WANTED = frozenset(name + end for name in (*DUMPS, *CONTEXT) for end in PACKED)
#: How the name of a written summary ends (`ovf summarize`); it stands for a rank's folder.
SUMMARY = ".ovfs"
#: Folder names that stand for a rank begin so.
RANK_FOLDERS = ("rank", "proc", "pid")
#: Steps may lie below this many phase folders, and ranks below a step.
DEPTH = 5


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank's files, by names below the place they lie in.

    Attributes:
        rank: Global rank.
        label: Folder name.
        dump: Name of its dump, there or not.
        construct, stack: Names of the other two; `None` where they are not there.
    """

    rank: int
    label: str
    dump: str
    construct: str | None
    stack: str | None


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: its number and folder, its ranks ascending, remarks about its folder.

    Attributes:
        number: In `step<N>`; `None` when no name says so.
        label: Folder below the root.
        ranks: Its ranks.
        single: The path names one rank: the others are left out by choice.
        notes: What was passed over and why.
        incomplete: Something of the place it lies in could not be read, so that ranks may be missing unseen.
    """

    number: int | None
    label: str
    ranks: tuple[Rank, ...]
    single: bool
    notes: tuple[str, ...]
    incomplete: bool = False

    def remarked(self, notes: Iterable[str], cut: str | None) -> Step:
        """The same step with remarks about the place it lies in; `cut` says why it is not whole."""
        more = (*notes, *([cut] if cut else []))
        return dataclasses.replace(self, notes=(*self.notes, *more), incomplete=self.incomplete or cut is not None)

    def only(self, ranks: Collection[int] | None, path: str) -> Step:
        """The same step with only these ranks.

        Raises:
            ValueError: One of them is not there.
        """
        if ranks is None:
            return self
        there = [r.rank for r in self.ranks]
        for rank in ranks:
            if rank not in there:
                msg = f"{path}: no rank {rank} in this step; it has {', '.join(map(str, there))}"
                raise ValueError(msg)
        return dataclasses.replace(self, ranks=tuple(r for r in self.ranks if r.rank in ranks), single=True)


def is_wanted(name: str) -> bool:
    """Whether a file may belong to a dump, by the last part of its name."""
    return name in WANTED or name.endswith(SUMMARY)


def steps_of(root: str, names: Iterable[str]) -> list[Step]:
    """The steps in a list of names, by the rules of a local directory.

    Args:
        root: Path that stands for the folder the names are below: its last parts may name a step and a rank.
        names: Relative to it, `/` between parts and behind a folder.

    Raises:
        DumpFormatError: No layout fits.
    """
    known = set(names)
    steps = []
    for number, label, single, notes, rows in _core.layout(root, sorted(known)):
        # Summaries in a folder that names no step tell themselves which step they are of.
        told = number is None and all(dump.endswith(SUMMARY) for *_, dump in rows)
        ranks = tuple(_rank(*row, known) for row in rows)
        steps.append(Step(number, "" if told else label, ranks, single, tuple(notes)))
    return steps


def _rank(rank: int, label: str, dump: str, known: set[str]) -> Rank:
    folder = dump.rpartition("/")[0]

    def beside(name: str) -> str | None:
        spelled = (f"{folder}/{name}{end}" if folder else name + end for end in PACKED)
        return next((s for s in spelled if s in known), None)

    construct, stack = (beside(name) for name in CONTEXT)
    return Rank(rank, label, dump, construct, stack)
