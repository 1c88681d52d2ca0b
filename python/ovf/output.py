"""New files: nothing is overwritten, nothing is written where a dump lies.

*The dump's home.* A path may name a part of a dump: a rank folder or a file in it, a step. What is kept free is all of
it: of a rank folder the step that holds it; of a step the root, where that holds nothing but steps. (A single step
that was copied beside other folders has no root of its own.)
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    StrPath = str | os.PathLike[str]

_RANK = re.compile(r"rank(_?\d+)?|(proc|pid)\d+")
_STEP = re.compile(r"step\d+")


def homes(dump: StrPath | Sequence[StrPath]) -> list[Path]:
    """The folders of a dump in which nothing is written, given the paths it is named by."""
    paths = [dump] if isinstance(dump, (str, os.PathLike)) else dump
    found = (_home(form) for path in paths for form in (Path(path).absolute(), Path(path).resolve()))
    return list(dict.fromkeys(found))  # a link lies in one place and leads to another


def _home(path: Path) -> Path:
    """Home of a dump at an absolute path."""
    folder = path.parent if path.is_file() else path
    if _RANK.fullmatch(folder.name):
        folder = folder.parent
    if _STEP.fullmatch(folder.name) and _holds_steps_alone(folder.parent):
        folder = folder.parent
    return folder.resolve()


def _holds_steps_alone(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return all(_STEP.fullmatch(e.name) for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return False


def refuse_inside(path: StrPath, folders: Iterable[Path]) -> None:
    """See to it that nothing is written in these folders, the `homes` of a dump.

    Raises:
        ValueError: `path` lies in one of them.
    """
    places = {Path(path).resolve(), *Path(path).resolve().parents}
    for folder in folders:
        if folder in places:
            msg = f"{path}: lies in the dump directory {folder}; ovf never writes there, choose another place"
            raise ValueError(msg)


def check_new(path: StrPath, dump: StrPath | Sequence[StrPath]) -> None:
    """See whether a file may be made; the errors of `write_new`."""
    refuse_inside(path, homes(dump))
    if Path(path).exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def write_new(
    path: StrPath, text: str | Iterable[bytes], dump: StrPath | Sequence[StrPath], *, parents: bool = False
) -> None:
    """Write a file that does not exist yet, never into the dump it was made from.

    Args:
        path: The file to make.
        text: Its content, or its pieces; if they fail, no file is left behind.
        dump: The dump's path or paths; empty where there is none on this machine.
        parents: Whether to make the folders it lies in.

    Raises:
        FileExistsError: The file exists.
        ValueError: The file would lie in the dump directory.
        OSError: It cannot be written.
    """
    check_new(path, dump)
    path = Path(path)
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        try:
            for piece in [text.encode()] if isinstance(text, str) else text:
                file.write(piece)
        except BaseException:
            path.unlink()
            raise
