"""The place in torch_npu's C++ where a new stream gets the overflow switch.

``AclInterface.cpp`` defines ``AclrtCreateStreamWithConfig``; inside it one ``if`` asks
``!IsSupportInfNan()`` and its branch calls ``AclrtSetStreamOverflowSwitch(*stream, 1)``. The
place is found by that structure: comments and literals are masked, braces and parentheses are
matched, and white space does not count. Everything added is an insertion, so that taking it out
again gives the former bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PATH = "torch_npu/csrc/core/npu/interface/AclInterface.cpp"
HEADER = "torch_npu/csrc/core/npu/ForceOverflowCheck.h"
INCLUDE = f'#include "{HEADER}"'
CONDITION = " || c10_npu::ForceOverflowCheck()"
FUNCTION = "AclrtCreateStreamWithConfig"

_MASKED = re.compile(r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.VERBOSE | re.DOTALL)


class StructureError(Exception):
    """A source that does not have the shape its rule describes; the message is the reason."""


@dataclass(frozen=True)
class Insertion:
    """Text to put in front of the character at ``offset``."""

    offset: int
    text: str


def insert(text: str, insertions: list[Insertion]) -> str:
    """Apply insertions, the last place first, so that earlier offsets stay true."""
    for insertion in sorted(insertions, key=lambda i: i.offset, reverse=True):
        text = text[: insertion.offset] + insertion.text + text[insertion.offset :]
    return text


def mask(text: str) -> str:
    """Blank out comments and literals, keeping every offset and line break."""
    return _MASKED.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def closing(masked: str, opening: int) -> int:
    """Find the bracket that closes the one at ``opening``.

    Args:
        masked: Source without comments and literals.
        opening: Offset of ``(`` or ``{``.

    Returns:
        The offset of its partner.

    Raises:
        StructureError: The brackets do not balance.
    """
    pair = {"(": ")", "{": "}"}
    left, right = masked[opening], pair[masked[opening]]
    depth = 0
    for offset in range(opening, len(masked)):
        if masked[offset] == left:
            depth += 1
        elif masked[offset] == right:
            depth -= 1
            if depth == 0:
                return offset
    raise StructureError(f"unbalanced {left!r} at offset {opening}")


def function_body(masked: str, name: str) -> tuple[int, int]:
    """Find the one definition of a function.

    Returns:
        The offsets of its opening and closing brace.

    Raises:
        StructureError: There is no definition, or more than one.
    """
    bodies = []
    for match in re.finditer(rf"\b{name}\s*\(", masked):
        after = closing(masked, match.end() - 1) + 1
        brace = re.compile(r"\s*\{").match(masked, after)
        if brace is not None:
            opening = brace.end() - 1
            bodies.append((opening, closing(masked, opening)))
    if len(bodies) != 1:
        raise StructureError(f"found {len(bodies)} definitions of {name}, expected one")
    return bodies[0]


def _switch_conditions(masked: str) -> list[tuple[int, str]]:
    """List the ifs whose branch sets the switch: end of the condition, condition squeezed."""
    begin, end = function_body(masked, FUNCTION)
    found = []
    for match in re.finditer(r"\bif\s*\(", masked[:end]):
        if match.start() < begin:
            continue
        parenthesis = match.end() - 1
        close = closing(masked, parenthesis)
        brace = re.compile(r"\s*\{").match(masked, close + 1)
        if brace is None:
            continue
        branch = masked[brace.end() : closing(masked, brace.end() - 1)]
        inner = re.search(r"\bif\s*\(", branch)
        direct = branch[: inner.start()] if inner else branch
        if re.search(r"\bAclrtSetStreamOverflowSwitch\s*\(\s*\*\s*stream\s*,\s*1\s*\)", direct):
            found.append((close, re.sub(r"\s+", "", masked[parenthesis + 1 : close])))
    return found


def _include_offset(masked: str) -> int:
    """Find the end of the last include of the opening, unconditional run of includes."""
    end = None
    for line in re.finditer(r"[^\n]*\n", masked):
        content = line.group().strip()
        if content.startswith("#include"):
            end = line.end()
        elif content and end is not None:
            break
        elif re.match(r"#\s*if", content):
            raise StructureError("the first #include stands inside a condition")
    if end is None:
        raise StructureError("no #include at the top of the file")
    return end


def plan(text: str) -> list[Insertion]:
    """Work out what to insert into AclInterface.cpp.

    Args:
        text: The whole file, with line feeds.

    Returns:
        The insertions: one include and one extra operand.

    Raises:
        StructureError: The call site is missing, repeated, or asks something else.
    """
    masked = mask(text)
    if not re.search(rf"\b{FUNCTION}\b", masked):
        raise StructureError(f"no {FUNCTION} in this file")
    sites = _switch_conditions(masked)
    known = {"!c10_npu::IsSupportInfNan()", "!IsSupportInfNan()"}
    if not sites:
        raise StructureError(f"{FUNCTION} sets no stream overflow switch here")
    if len(sites) > 1:
        raise StructureError(f"{FUNCTION} sets the stream overflow switch in {len(sites)} places, expected one")
    offset, condition = sites[0]
    if condition not in known:
        raise StructureError(f"{FUNCTION} sets the switch under another condition: {condition[:80]}")
    begin, _ = function_body(masked, FUNCTION)
    opened = len(re.findall(r"^[ \t]*#[ \t]*if", masked[begin:offset], re.MULTILINE))
    closed = len(re.findall(r"^[ \t]*#[ \t]*endif", masked[begin:offset], re.MULTILINE))
    if opened != closed:
        raise StructureError(f"{FUNCTION} sets the switch inside a preprocessor condition")
    return [Insertion(_include_offset(masked), f"{INCLUDE}\n"), Insertion(offset, CONDITION)]


def without(text: str) -> str:
    """Take out what :func:`plan` would have inserted."""
    return text.replace(f"{INCLUDE}\n", "", 1).replace(CONDITION, "", 1)
