"""What can be wrong with the folders of a step rather than with its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Damage:
    """What is wrong with the folders of a step, not with its values.

    Attributes:
        missing: ranks that were not dumped.
        kept_bytes: ranks whose `dump.json` is cut, with the bytes that remain; 0 leaves an empty
            file, a negative number takes that many from its end.
        process: the process id for the folder of a single rank, `proc<id>`, as written when no
            process group was ever made.
    """

    missing: frozenset[int] = frozenset()
    kept_bytes: Mapping[int, int] = field(default_factory=dict)
    process: int | None = None

    def folder(self, rank: int) -> str:
        """Give the name of a rank's folder."""
        return f"rank{rank}" if self.process is None else f"proc{self.process}"
