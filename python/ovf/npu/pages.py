"""The papers of the feature in a torch_npu tree: API schema entry and environment-variable page.

The schema (``test/torch_npu_schema.json``) is the tree's own record of public signatures. The
page goes beside the one of ``INF_NAN_MODE_FORCE_DISABLE`` in whatever folders and indexes the
tree has; a tree without such pages gets it under ``docs/``.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Literal

from ovf.npu.call_site import Insertion, StructureError

SCHEMA = "test/torch_npu_schema.json"
NEIGHBOUR = "INF_NAN_MODE_FORCE_DISABLE"
NAME = "FORCE_OVERFLOW_CHECK"
API = "torch_npu.npu.utils.is_force_overflow_check"
SIBLING_API = "torch_npu.npu.utils.is_support_inf_nan"
SUMMARY = {
    "en": "Turns the stream overflow switch on in INF_NAN mode too (CANN 9.1.0 or newer), so that "
    "overflow is read from the float_status register.",
    "zh": "在INF_NAN模式下同样开启stream溢出检测开关（要求CANN 9.1.0及以上版本），"  # noqa: RUF001 - Chinese punctuation
    "通过float_status寄存器检测溢出。",
}
Language = Literal["en", "zh"]


def schema_plan(text: str) -> list[Insertion]:
    """Work out the schema entry of ``is_force_overflow_check``, in front of its sibling's.

    Raises:
        StructureError: The schema is not JSON or lacks the sibling.
    """
    try:
        before = json.loads(text)
    except json.JSONDecodeError as error:
        raise StructureError(f"is not JSON: {error}") from error
    entry = re.search(rf'([ \t]*)"{re.escape(SIBLING_API)}"\s*:\s*\{{[^{{}}]*\}}', text)
    if entry is None or not isinstance(before, dict) or SIBLING_API not in before:
        raise StructureError(f"has no entry {SIBLING_API}")
    body = text[entry.start() : entry.end()].replace(SIBLING_API, API) + ",\n"
    after = json.loads(text[: entry.start()] + body + text[entry.start() :])
    if after != {**before, API: before[SIBLING_API]}:
        raise StructureError("the new entry would change other entries")
    return [Insertion(entry.start(), body)]


def schema_without(text: str) -> str:
    """Take out what :func:`schema_plan` would have inserted."""
    return re.sub(rf'[ \t]*"{re.escape(API)}"\s*:\s*\{{[^{{}}]*\}},\n', "", text, count=1)


def is_index(text: str) -> bool:
    """Tell whether a Markdown file lists the neighbouring page as a list item or table row."""
    return _index_line(text) is not None


def _index_line(text: str) -> re.Match[str] | None:
    pattern = rf"^[ \t]*[-*|][^\n]*\]\([^)\n]*{NEIGHBOUR}\.md\)[^\n]*\n"
    return re.search(pattern, text, re.MULTILINE)


def index_plan(text: str, language: Language) -> list[Insertion]:
    """Work out the line that lists the page, made after the neighbour's line.

    Raises:
        StructureError: The file does not list the neighbour.
    """
    line = _index_line(text)
    if line is None:
        raise StructureError(f"does not list {NEIGHBOUR}")
    escaped = NEIGHBOUR.replace("_", r"\_"), NAME.replace("_", r"\_")
    new = line.group().replace(*escaped).replace(NEIGHBOUR, NAME)
    if new.lstrip().startswith("|"):
        cells = new.rstrip("\n").split("|")
        cells[-2 if not cells[-1].strip() else -1] = SUMMARY[language]
        new = "|".join(cells) + "\n"
    spaced = text[line.end() : line.end() + 1] == "\n" and not new.lstrip().startswith("|")
    return [Insertion(line.end(), f"\n{new}" if spaced else new)]


def index_without(text: str) -> list[str]:
    """Give the texts that may have been there before; the caller proves which."""
    line = rf"[^\n]*{NAME}\.md\)[^\n]*\n"
    return [re.sub(line, "", text, count=1), re.sub(rf"\n{line}", "", text, count=1)]


def page(language: Language) -> str:
    """Return the environment-variable page as it ships with ovf."""
    return (resources.files("ovf.npu") / "pages" / f"{NAME}.{language}.md").read_text("utf-8")
