"""A step with more data-parallel replicas, from one with two: the others are copies of the second.

The copies differ from it where ranks are named: in process groups and in the peers of sends and receives. What a replica
computes is the same, so the answer stays what it was. That is some hundred times faster than simulating each rank.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ovf.testing import Layout

# An op stands two levels deep, indented by one space a level.
_COMMUNICATION = re.compile(rb'\n  "Distributed\.(\w+)\..*?(?=\n  "|\n })', re.DOTALL)
_GROUP = re.compile(rb'"group_ranks": \[[\d\s,]*\](,\s*)"group_id": "(\w+)"')
_PEER = re.compile(rb'("type": "int",\s*"value": )(\d+)')


def widen(step: Path, layout: Layout, replicas: int) -> Layout:
    """Add replicas to a step in place.

    Args:
        step: a step folder with a dump for every rank of `layout`, indented by one space, with synchronous sends.
        layout: what it was made with; `dp` is 2.
        replicas: the new `dp`.

    Returns:
        The new layout. A rank of replica 0 at (tp, 0, pp) is now `layout.rank` of the same place.
    """
    wide = replace(layout, dp=replicas)
    folders = [step / f"old{rank}" for rank in range(layout.ranks)]
    for rank, folder in enumerate(folders):
        (step / f"rank{rank}").rename(folder)
    for rank, folder in enumerate(folders):
        place = layout.place(rank)
        text = (folder / "dump.json").read_bytes()
        pieces = list(_pieces(text, layout, rank))
        for replica in range(1, replicas) if place.dp else [0]:
            new = wide.rank(place._replace(dp=replica))
            target = step / f"rank{new}"
            target.mkdir()
            (target / "dump.json").write_bytes(b"".join(_spell(piece, wide, new, replica) for piece in pieces))
            for name in ("stack.json", "construct.json"):
                if (folder / name).exists():
                    os.link(folder / name, target / name)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    return wide


def _pieces(text: bytes, layout: Layout, rank: int) -> Iterator[bytes | tuple[str, bytes] | int]:
    """Cut a dump where it names ranks: text, an axis with what stands between its ranks and its id, or a peer."""
    axis_of = {layout.group(axis, rank).group_id: axis for axis in ("tp", "dp")}  # type: ignore[arg-type]
    done = 0
    for op in _COMMUNICATION.finditer(text):
        is_pair = op[1] in {b"send", b"recv"}
        for found in (_PEER if is_pair else _GROUP).finditer(text, op.start(), op.end()):
            yield text[done : found.start()]
            done = found.end()
            if is_pair:
                yield found[1]
                yield int(found[2])
            else:
                yield axis_of[found[2].decode()], found[1]
    yield text[done:]


def _spell(piece: bytes | tuple[str, bytes] | int, wide: Layout, rank: int, replica: int) -> bytes:
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, int):
        # A peer is at the same place of another stage; the old layout has two replicas.
        old = replace(wide, dp=2).place(piece)
        return str(wide.rank(old._replace(dp=replica))).encode()
    axis, between = piece
    group = wide.group(axis, rank)  # type: ignore[arg-type]
    space = between[1:]
    ranks = b",".join(space + b" " + str(member).encode() for member in group.ranks)
    return b'"group_ranks": [' + ranks + space + b"]" + between + b'"group_id": "' + group.group_id.encode() + b'"'
