"""Bring FORCE_OVERFLOW_CHECK into a torch_npu source tree, and take it out again.

The whole plan is made and proven in memory before a byte is written: the new Python parses, the
new C++ has its call site where it belongs, and taking the change out again gives the former text.
On any doubt the tree is left as it is and the reason is given.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

from ovf.npu import call_site, conditions, pages
from ovf.npu.call_site import StructureError, insert
from ovf.npu.tree import Change, Tree, write

if TYPE_CHECKING:
    from pathlib import Path

CORE = "torch_npu/csrc/core/npu"
DECISION = f"{CORE}/ForceOverflowCheckDecision.h"
VERSION = f"{CORE}/ForceOverflowCheckVersion.h"


class PatchRefusedError(Exception):
    """The tree is not patched or reverted, and untouched; the message is the reason."""


class State(enum.Enum):
    """What a torch_npu source tree has of the feature."""

    ABSENT = "absent"
    PATCHED = "patched by ovf"
    UPSTREAM = "part of the tree itself"


@dataclass(frozen=True)
class Plan:
    """What would be changed, and what the user should know about it."""

    changes: list[Change]
    notes: list[str] = field(default_factory=list)

    def diff(self) -> str:
        """Show all changes as one unified diff."""
        return "".join(change.diff() for change in self.changes)


def _shipped(name: str) -> str:
    return (resources.files("ovf.npu") / "csrc" / name).read_text("utf-8")


def _headers() -> dict[str, str]:
    """Give the headers by their place in the tree."""
    return {path: _shipped(path.rpartition("/")[2]) for path in (DECISION, VERSION, call_site.HEADER)}


def _required(tree: Tree, path: str) -> str:
    text = tree.read(path)
    if text is None:
        raise StructureError(f"{path}: no such file; is this the root of a torch_npu source tree?")
    return text


def _language(path: str) -> pages.Language:
    return "zh" if "/zh/" in path else "en"


def _page_places(tree: Tree) -> dict[str, pages.Language]:
    """Find where the page goes: beside its neighbour, else straight under docs/."""
    neighbours = [path for path in tree.markdown("docs") if path.endswith(f"/{pages.NEIGHBOUR}.md")]
    if neighbours:
        return {path.replace(pages.NEIGHBOUR, pages.NAME): _language(path) for path in neighbours}
    return {f"docs/{pages.NAME}.md": "en", f"docs/{pages.NAME}.zh.md": "zh"}


def _indexes(tree: Tree) -> list[str]:
    """List the Markdown files that list the neighbouring page; others are not even decoded."""
    named = [path for path in tree.markdown("docs") if tree.mentions(path, pages.NEIGHBOUR)]
    return [path for path in named if pages.is_index(_required(tree, path))]


def state(tree: Tree) -> State:
    """Tell what the tree has of the feature.

    Raises:
        StructureError: A file that must be there is not.
    """
    source, functions = _required(tree, call_site.PATH), _required(tree, conditions.PATH)
    if call_site.INCLUDE in source or tree.read(DECISION) is not None:
        return State.PATCHED
    if pages.NAME in source or "is_force_overflow_check" in functions:
        return State.UPSTREAM
    return State.ABSENT


def _named(path: str, error: StructureError) -> StructureError:
    return StructureError(f"{path}: {error}")


def _edited(path: str, text: str) -> str:
    """Give one existing file as the change would leave it."""
    try:
        if path == call_site.PATH:
            return insert(text, call_site.plan(text))
        if path == conditions.PATH:
            new = insert(text, conditions.plan(text))
            try:
                compile(new, path, "exec", dont_inherit=True)
            except SyntaxError as error:
                raise StructureError(f"would not compile: line {error.lineno}: {error.msg}") from error
            return new
        if path == pages.SCHEMA:
            return insert(text, pages.schema_plan(text))
        return insert(text, pages.index_plan(text, _language(path)))
    except StructureError as error:
        raise _named(path, error) from error


def _former(path: str, text: str) -> str:
    """Give one changed file as it was, proven by making the change again.

    Raises:
        StructureError: No text is found that the change would turn into this one.
    """
    if path == call_site.PATH:
        candidates = [call_site.without(text)]
    elif path == conditions.PATH:
        candidates = [conditions.without(text)]
    elif path == pages.SCHEMA:
        candidates = [pages.schema_without(text)]
    else:
        candidates = pages.index_without(text)
    for candidate in candidates:
        if candidate != text and _would_become(path, candidate, text):
            return candidate
    raise StructureError(f"{path}: what was added has been edited or moved since")


def _would_become(path: str, candidate: str, text: str) -> bool:
    try:
        return _edited(path, candidate) == text
    except StructureError:
        return False


def _prove_way_back(change: Change) -> None:
    if change.before is None or change.after is None:
        return
    if _former(change.path, change.after) != change.before:
        raise StructureError(f"{change.path}: the way back does not give the former text")


def _plan_absent(tree: Tree) -> Plan:
    notes = []
    changes = []
    for path, text in _headers().items():
        if tree.read(path) is not None:
            raise StructureError(f"{path}: exists already")
        changes.append(Change(path, None, text))
    for path in (call_site.PATH, conditions.PATH):
        text = _required(tree, path)
        changes.append(Change(path, text, _edited(path, text)))
    schema = tree.read(pages.SCHEMA)
    if schema is None:
        notes.append(f"no {pages.SCHEMA}: no API schema entry to add")
    else:
        changes.append(Change(pages.SCHEMA, schema, _edited(pages.SCHEMA, schema)))
    for path, language in _page_places(tree).items():
        if tree.read(path) is not None:
            raise StructureError(f"{path}: exists already")
        changes.append(Change(path, None, pages.page(language)))
    for path in _indexes(tree):
        text = _required(tree, path)
        changes.append(Change(path, text, _edited(path, text)))
    return Plan(changes, notes)


def _plan_patched(tree: Tree) -> Plan:
    """Work out the way back; that it exists proves that the tree carries the whole change."""
    changes = []
    created = {**_headers(), **{p: pages.page(lang) for p, lang in _page_places(tree).items()}}
    for path, text in created.items():
        found = tree.read(path)
        if found != text:
            raise StructureError(f"{path}: {'is missing' if found is None else 'differs from what ovf put there'}")
        changes.append(Change(path, text, None))
    for path in (call_site.PATH, conditions.PATH, pages.SCHEMA, *_indexes(tree)):
        now = tree.read(path)
        if now is not None:
            changes.append(Change(path, now, _former(path, now)))
    return Plan(changes)


def plan(root: Path) -> Plan:
    """Work out how to bring the feature into a tree.

    Args:
        root: Root of a torch_npu source tree.

    Returns:
        The plan; without changes where ovf has patched the tree already.

    Raises:
        PatchRefusedError: The tree has the feature of its own, lacks what is needed, or looks
            unfamiliar.
    """
    tree = Tree(root)
    try:
        found = state(tree)
        if found is State.PATCHED:
            _plan_patched(tree)
            return Plan([], ["already patched by ovf; nothing to do"])
        if found is State.UPSTREAM:
            raise PatchRefusedError("this tree has FORCE_OVERFLOW_CHECK of its own")
        made = _plan_absent(tree)
        for change in made.changes:
            _prove_way_back(change)
    except StructureError as error:
        raise PatchRefusedError(str(error)) from error
    return made


def plan_revert(root: Path) -> Plan:
    """Work out how to take the feature out of a tree that ovf patched.

    Raises:
        PatchRefusedError: ovf did not patch this tree, or what it added was edited since.
    """
    tree = Tree(root)
    try:
        found = state(tree)
        if found is State.ABSENT:
            return Plan([], ["not patched; nothing to revert"])
        if found is State.UPSTREAM:
            raise PatchRefusedError("FORCE_OVERFLOW_CHECK is part of this tree itself, not put there by ovf")
        return _plan_patched(tree)
    except StructureError as error:
        raise PatchRefusedError(str(error)) from error


def carry_out(root: Path, made: Plan) -> None:
    """Write a plan into its tree, whole or not at all.

    Raises:
        PatchRefusedError: A file changed since the plan was made.
        OSError: Writing failed; the tree is as it was.
    """
    tree = Tree(root)
    for change in made.changes:
        if tree.read(change.path) != change.before:
            raise PatchRefusedError(f"{change.path}: changed while the plan was made")
    write(tree, made.changes)
