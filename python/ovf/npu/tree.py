"""A torch_npu source tree as files to read, and changes that are written whole or not at all."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ovf.npu.call_site import StructureError


@dataclass
class Tree:
    """The files of a checkout, by their path from its root, with plain line feeds in memory."""

    root: Path
    _crlf: dict[str, bool] = field(default_factory=dict)

    def read(self, path: str) -> str | None:
        """Read one text file.

        Args:
            path: Path from the root, with slashes.

        Returns:
            The text, or None where there is no such file.

        Raises:
            StructureError: It is not a plain UTF-8 file, or mixes line ends.
        """
        file = self.root / path
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise StructureError(f"{path}: is not a plain file")
        if not file.resolve().is_relative_to(self.root.resolve()):
            raise StructureError(f"{path}: a link leads out of this tree")
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        crlf = data.count(b"\r\n")
        if crlf not in (0, data.count(b"\n")):
            raise StructureError(f"{path}: mixes line ends")
        self._crlf[path] = crlf > 0
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StructureError(f"{path}: is not UTF-8 (byte {error.start})") from error
        return text.replace("\r\n", "\n")

    def mentions(self, path: str, word: str) -> bool:
        """Tell whether a file holds an ASCII word, whatever else is in it."""
        return word.encode() in (self.root / path).read_bytes()

    def encode(self, path: str, text: str) -> bytes:
        """Give the bytes of a text under the line ends that its file has."""
        return (text.replace("\n", "\r\n") if self._crlf.get(path) else text).encode("utf-8")

    def markdown(self, folder: str) -> list[str]:
        """List the Markdown files under a folder, sorted."""
        base = self.root / folder
        return sorted(
            file.relative_to(self.root).as_posix()
            for file in base.rglob("*.md")
            if file.is_file() and not file.is_symlink()
        )


@dataclass(frozen=True)
class Change:
    """One file before and after; None stands for no file."""

    path: str
    before: str | None
    after: str | None

    def diff(self) -> str:
        """Show the change as a unified diff."""
        before = [] if self.before is None else self.before.splitlines(keepends=True)
        after = [] if self.after is None else self.after.splitlines(keepends=True)
        old = "/dev/null" if self.before is None else f"a/{self.path}"
        new = "/dev/null" if self.after is None else f"b/{self.path}"
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, old, new)
        )


def write(tree: Tree, changes: list[Change]) -> None:
    """Write all changes, or none.

    New contents are first written beside their files and then moved into place one by one; if a
    move fails, those already made are moved back.

    Raises:
        OSError: Writing failed; the tree is as it was.
    """
    # `folders` unwinds after `stack` has removed the temporary files: a folder made for nothing
    # is empty then.
    with contextlib.ExitStack() as folders, contextlib.ExitStack() as stack:
        moves = [_stage(tree, change, folders, stack) for change in changes]
        done: list[_Move] = []
        try:
            for move in moves:
                done.append(move)
                if move.new is None:
                    move.target.unlink()
                    folders.callback(_remove_if_empty, move.target.parent)
                else:
                    move.new.replace(move.target)
        except BaseException:
            for move in reversed(done):
                if move.kept is None:
                    move.target.unlink(missing_ok=True)
                else:
                    move.kept.replace(move.target)
            raise


@dataclass(frozen=True)
class _Move:
    """A file with its old and its new content lying beside it; None stands for no file."""

    target: Path
    kept: Path | None
    new: Path | None


def _stage(tree: Tree, change: Change, folders: contextlib.ExitStack, stack: contextlib.ExitStack) -> _Move:
    target = tree.root / change.path
    if change.after is not None and not target.parent.exists():
        target.parent.mkdir()
        folders.callback(_remove_if_empty, target.parent)
    kept = new = None
    if change.before is not None:
        kept = _beside(target, target.read_bytes(), stack)
        shutil.copystat(target, kept)
    if change.after is not None:
        new = _beside(target, tree.encode(change.path, change.after), stack)
        if kept is None:
            new.chmod(0o644)
        else:
            shutil.copymode(target, new)
    return _Move(target, kept, new)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _beside(target: Path, data: bytes, stack: contextlib.ExitStack) -> Path:
    """Write bytes to a temporary file in the target's folder, so that moving it is one rename."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    path = target.parent / Path(name).name
    stack.callback(path.unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path
