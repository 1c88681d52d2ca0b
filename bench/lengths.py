"""A long dump of one rank, from two short ones: the clean step many times over, then the one with the fault.

The copies differ in their call numbers. It is what a rank dumps that accumulates gradients over many rounds, and some ten
times faster to make than by simulating each op.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# An op stands two levels deep, indented by one space a level.
_NAME = re.compile(rb'(\n  "[\w.]+?\.)(\d+)(\.(?:forward|backward)": )')
_BEGIN = b'\n "data": {'
_END = b"\n }\n}"


def lengthen(clean: Path, faulty: Path, copies: int) -> int:
    """Put copies of a clean dump before a faulty one, in its file.

    Args:
        clean: `dump.json` of a clean step, indented by one space.
        faulty: that of the same step with a fault; it is rewritten.
        copies: how many steps the new one is made of, the faulty one included.

    Returns:
        What was added to the call numbers of the faulty step.
    """
    body, rest = clean.read_bytes(), faulty.read_bytes()
    body = body[body.index(_BEGIN) + len(_BEGIN) : body.rindex(_END)]
    head, rest = rest[: rest.index(_BEGIN) + len(_BEGIN)], rest[rest.index(_BEGIN) + len(_BEGIN) :]
    pieces = _NAME.split(body)
    stride = max(int(number) for number in pieces[2::4]) + 1
    with faulty.open("wb") as out:
        out.write(head)
        for copy in range(copies - 1):
            out.write(b"".join(_numbered(pieces, copy * stride)) + b",")
        out.write(b"".join(_numbered(_NAME.split(rest), (copies - 1) * stride)))
    return (copies - 1) * stride


def _numbered(pieces: list[bytes], added: int) -> Iterator[bytes]:
    yield pieces[0]
    for before, number, behind, text in zip(pieces[1::4], pieces[2::4], pieces[3::4], pieces[4::4], strict=True):
        yield before + str(int(number) + added).encode() + behind + text
