"""A step of eight ranks in every shape that ovf reads, for the tests of archives, stores and clusters."""

from __future__ import annotations

import functools
import gzip
import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

import ovf
from ovf.testing import Fault, Layout, Training, write_training


@functools.cache
def step() -> Path:
    """A generated step, made once; it must not be changed."""
    root = Path(tempfile.mkdtemp(prefix="ovf-step-"))
    write_training(root, Training(Layout(tp=2, pp=2, dp=2), layers=4, faults=(Fault("forward", 5, 1),), level="mix"))
    return root / "step0"


@functools.cache
def answer() -> str:
    """What a local analysis says of it."""
    return ovf.find_first_overflow(step()).json()


def copied(folder: Path, *, name="step0") -> Path:
    return Path(shutil.copytree(step(), folder / name))


def packed(folder: Path, kind: str) -> Path:
    """The step with every file packed on its own."""
    copy = copied(folder)
    for file in copy.rglob("*.json"):
        file.with_name(f"{file.name}.{kind}").write_bytes(squeezed(file.read_bytes(), kind))
        file.unlink()
    return copy


def squeezed(content: bytes, kind: str) -> bytes:
    if kind == "gz":
        return gzip.compress(content, compresslevel=3)
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


def files_of(folder: Path, order=sorted) -> list[tuple[str, bytes]]:
    """(name with the folder's own in front, content) of every file."""
    paths = order(path for path in folder.rglob("*") if path.is_file())
    return [(f"{folder.name}/{path.relative_to(folder)}", path.read_bytes()) for path in paths]


def tar_of(files, kind="", form=tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return squeezed(buffer.getvalue(), kind) if kind else buffer.getvalue()


def zip_of(files, method=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


def tree(folder: Path) -> list[tuple[str, int]]:
    """Every file below, with its size: to see that nothing was written."""
    return sorted((str(path), os.lstat(path).st_size) for path in folder.rglob("*"))
