"""How values become text: indentation, and the spellings of numbers that writers have used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal, TypeAlias

from ovf.testing.values import P2POp, ProcessGroup, Scalar, TensorStat, Value, to_json

NonFinite: TypeAlias = Literal["token", "lower", "word", "padded", "mixed"]
Numbers: TypeAlias = Literal["as_is", "floats", "whole"]
StackLayout: TypeAlias = Literal["new", "old", "none"]

# Spellings of (NaN, +Inf, -Inf). Stray white space is what some writers left.
SPELLINGS: dict[str, tuple[str, str, str]] = {
    "token": ("NaN", "Infinity", "-Infinity"),
    "lower": ('"nan"', '"inf"', '"-inf"'),
    "word": ('"NaN"', '"Infinity"', '"-Infinity"'),
    "padded": ('"nan\\t"', '" inf "', '"\\t-Inf"'),
}

# Tensor records kept as text; each is about 300 characters.
_RECENT = 4096


@dataclass(frozen=True)
class Encoding:
    """How a step is spelled on disk; the defaults are what msProbe writes today.

    Attributes:
        indent: spaces a level, or None for one dense line.
        non_finite: bare tokens (`token`), strings in lower case (`lower`), as words (`word`), with
            stray white space (`padded`), or all of these in turn (`mixed`).
        numbers: statistics as they are (`as_is`); integers among them written as floats, as old
            writers did (`floats`); or floats without a fraction written as integers (`whole`).
        stack: `stack.json` as groups of ops sharing a stack (`new`), one stack an op (`old`), or
            no file (`none`).
        construct: whether `construct.json` is written.
        header: the keys of `dump.json` in file order; `data` is added where it is not named.
            Leave out `framework` for what writers before 2025 wrote.
    """

    indent: int | None = 1
    non_finite: NonFinite = "token"
    numbers: Numbers = "as_is"
    stack: StackLayout = "new"
    construct: bool = True
    header: tuple[str, ...] = ("task", "level", "framework", "dump_data_dir", "data")


class Encoder:
    """Turns values into JSON text of one encoding, fast enough for gigabytes.

    PERF: a tensor record is one `%` on a template cached by everything but its four statistics.
    """

    def __init__(self, encoding: Encoding) -> None:
        """Prepare templates.

        Args:
            encoding: the spelling to write.
        """
        self.indent = encoding.indent
        self.colon = ": " if encoding.indent is not None else ":"
        self._templates: dict[object, str] = {}
        self._around: dict[int, tuple[str, str, str]] = {}
        self._recent: dict[int, tuple[TensorStat, int, str]] = {}
        self._writers: dict[type, Callable[[Any, int], str]] = {}
        self._number, self._plain = _number_writers(encoding)

    def line_break(self, depth: int) -> str:
        """Give what stands before an item at a nesting depth.

        Args:
            depth: the number of open brackets.

        Returns:
            A newline and indentation, or nothing when the encoding is dense.
        """
        if self.indent is None:
            return ""
        return "\n" + " " * (self.indent * depth)

    def text(self, value: Value, depth: int = 0) -> str:
        """Write one value.

        Args:
            value: any value.
            depth: the number of brackets open around it.

        Returns:
            Its JSON text, without a line break before or after.
        """
        if isinstance(value, TensorStat):
            # PERF: most tensors are written twice in a row, as an output and as the next input.
            # Equal statistics may differ in spelling (0.0, -0.0, False), the same object may not.
            recent = self._recent.get(id(value))
            if recent is not None and recent[1] == depth:
                return recent[2]
            text = self._tensor(value, depth)
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            self._recent[id(value)] = (value, depth, text)
            return text
        write = self._writers.get(type(value))
        if write is None:
            write = self._writers[type(value)] = self._writer_of(value)
        return write(value, depth)

    def _writer_of(self, value: Value) -> Callable[[Any, int], str]:
        """Choose the function that writes values of a type; each type is asked about once."""
        choices: tuple[tuple[type, Callable[[Any, int], str]], ...] = (
            (P2POp, self._p2p),
            (Scalar, self._record),
            (ProcessGroup, self._record),
            (str, lambda text, _: quoted(text)),
            (Mapping, self._dict),
            (Sequence, self._list),
        )
        return next(
            (write for kind, write in choices if isinstance(value, kind)),
            lambda number, _: self._plain(number),
        )

    def _tensor(self, value: TensorStat, depth: int) -> str:
        key = (*value[:2], *value[6:], depth)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._tensor_template(value, depth)
        number = self._number
        return template % (number(value[2]), number(value[3]), number(value[4]), number(value[5]))

    def _list(self, value: Sequence[Value], depth: int) -> str:
        if not value:
            return "[]"
        first, between, last = self._edges(depth)
        inner = depth + 1
        return f"[{first}{between.join([self.text(item, inner) for item in value])}{last}]"

    def _p2p(self, value: P2POp, depth: int) -> str:
        record: dict[str, Value] = {
            "class_type": "torch.distributed.P2POp",
            "tensor": value.tensor,
            "op": value.op,
            "peer": value.peer,
            "tag": value.tag,
            "group_id": value.group_id,
        }
        return self._dict(record, depth)

    def _dict(self, value: Mapping[str, Value], depth: int) -> str:
        if not value:
            return "{}"
        first, between, last = self._edges(depth)
        inner, colon = depth + 1, self.colon
        items = [f"{quoted(key)}{colon}{self.text(item, inner)}" for key, item in value.items()]
        return f"{{{first}{between.join(items)}{last}}}"

    def _edges(self, depth: int) -> tuple[str, str, str]:
        """Give what stands before the first item, between items and after the last one."""
        edges = self._around.get(depth)
        if edges is None:
            first = self.line_break(depth + 1)
            edges = self._around[depth] = (first, f",{first}", self.line_break(depth))
        return edges

    def _record(self, value: Scalar | ProcessGroup, depth: int) -> str:
        # PERF: the same few scalars and groups recur in every op. The repr tells 1, 1.0 and True
        # apart, which compare equal.
        key = (repr(value), depth)
        text = self._templates.get(key)
        if text is None:
            text = self._dict(to_json(value), depth)  # type: ignore[arg-type]
            if not any(token in text for token in ("NaN", "Inf", "nan", "inf")):
                self._templates[key] = text
        return text

    def _tensor_template(self, stat: TensorStat, depth: int) -> str:
        mark = "\0"
        marked = stat._replace(max=mark, min=mark, mean=mark, norm=mark)
        text = self._dict(to_json(marked), depth)  # type: ignore[arg-type]
        return text.replace("%", "%%").replace(quoted(mark), "%s")


def _number_writers(
    encoding: Encoding,
) -> tuple[Callable[[object], str], Callable[[object], str]]:
    """Choose the functions that spell one statistic and any other bare value."""
    one = SPELLINGS.get(encoding.non_finite)
    names = SPELLINGS.values() if one is None else [one]
    spelling = cycle(names)
    floats = encoding.numbers == "floats"
    whole = encoding.numbers == "whole"

    def number(value: object) -> str:
        if type(value) is float:
            if value - value == 0.0:
                return str(int(value)) if whole and value.is_integer() else repr(value)
            return next(spelling)[0 if math.isnan(value) else 1 if value > 0 else 2]
        if floats and type(value) is int:
            return f"{value}.0"
        return json.dumps(value)

    def plain(value: object) -> str:
        if type(value) is float and not math.isfinite(value):
            return number(value)
        return json.dumps(value)

    return number, plain
