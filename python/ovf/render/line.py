"""A line with styles, and the screen it is shown on.

A style is words: `bold`, `dim` and a colour of the terminal's own eight (`red`; `default` is the one for text). A part
takes the style of its line and adds its own. Whatever the text says stays text: control characters are made visible,
and there is no markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Select Graphic Rendition, ECMA-48 8.3.117.
_WEIGHTS = {"bold": "1", "dim": "2"}
_COLORS = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36", "default": "39"}
#: C0 and C1 control characters but for tab and line end.
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(9), *range(11, 32), *range(127, 160))}


def codes(style: str, *, colored: bool) -> str:
    """What stands between `ESC [` and `m`: weights in order, then the last colour; empty for no style."""
    words = style.split()
    found = [code for word, code in _WEIGHTS.items() if word in words]
    found += [_COLORS[word] for word in words if word in _COLORS][-1:] if colored else []
    return ";".join(found)


class Line:
    """Text in parts, each with its style."""

    __slots__ = ("_parts", "_style")

    def __init__(self, text: str = "", style: str = "") -> None:
        """A line of one part; `style` holds for all of the line."""
        self._style = style
        self._parts: list[tuple[str, str]] = []
        self.append(text)

    def append(self, text: str, style: str = "") -> None:
        """Add text at the end; its style is laid over the line's."""
        if not text.isprintable():
            text = text.translate(_CONTROLS)
        if not text:
            return
        if not style and self._parts and not self._parts[-1][1]:
            text = self._parts.pop()[0] + text
        self._parts.append((text, style))

    @property
    def plain(self) -> str:
        """The text alone."""
        return "".join(text for text, _ in self._parts)

    def ansi(self, *, colored: bool) -> str:
        """The text with escape sequences; weights alone where it is not `colored`."""
        out = []
        for text, style in self._parts:
            code = codes(f"{self._style} {style}", colored=colored)
            out.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
        return "".join(out)


class Screen(NamedTuple):
    """Where lines are shown.

    Attributes:
        stream: What they are written to.
        width: Columns; only for what is drawn to fit, lines are not folded.
        styled: Whether it understands escape sequences.
        colored: Whether colours are wanted beside weights.
    """

    stream: TextIO
    width: int
    styled: bool = False
    colored: bool = False

    @property
    def is_unicode(self) -> bool:
        """Whether it can show signs beyond its language's."""
        encoding: str = getattr(self.stream, "encoding", None) or "utf-8"
        return encoding.lower().replace("-", "") in {"utf8", "utf16", "utf32"}

    def show(self, lines: Iterable[Line]) -> None:
        """Write lines, all at once."""
        texts = (line.ansi(colored=self.colored) if self.styled else line.plain for line in lines)
        self.stream.write("".join(f"{text}\n" for text in texts))
        self.stream.flush()
