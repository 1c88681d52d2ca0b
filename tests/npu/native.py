"""Compiles our C++ and, out of a patched torch_npu tree, its stream creation; both run without torch and CANN."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ovf.npu import call_site
from ovf.npu.patch import CORE

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "python" / "ovf" / "npu" / "csrc"


def compiler() -> str:
    found = shutil.which("g++")
    if found is None or shutil.which("gcc") is None:
        pytest.skip("g++ is not installed")
    return found


def compile_program(target: Path, *arguments: str | Path) -> Path:
    command = [compiler(), "-std=c++17", "-O0", "-o", str(target), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return target


def simulated_cann(folder: Path) -> Path:
    """Compile the simulated CANN alone, without the wheels' further symbols."""
    compiler()
    library = folder / "libascendcl.so"
    if not library.exists():
        source = HERE / "sim" / "cann.c"
        subprocess.run(["gcc", "-O1", "-fPIC", "-shared", "-pthread", "-o", library, source, "-lm"], check=True)
    return library


def stream_creation(tree: Path, folder: Path) -> Path:
    """Build a program around the AclrtCreateStreamWithConfig of a tree, with the gate put there."""
    text = (tree / call_site.PATH).read_text()
    masked = call_site.mask(text)
    opening, closing = call_site.function_body(masked, call_site.FUNCTION)
    begin = [
        m.start() for m in re.finditer(rf"^aclError {call_site.FUNCTION}", masked, re.MULTILINE) if m.start() < opening
    ][-1]
    (folder / "created_stream.inc").write_text(text[begin : closing + 1] + "\n")
    core = folder / "tree" / CORE
    core.mkdir(parents=True)
    for header in (tree / CORE).glob("ForceOverflowCheck*.h"):
        shutil.copy(header, core)
    library = simulated_cann(folder)
    return compile_program(
        folder / "created_streams", "-w", "-I", folder, "-I", HERE / "cpp" / "shim", "-I", folder / "tree",
        HERE / "cpp" / "created_streams.cpp", library, f"-Wl,-rpath,{folder}", "-ldl",
    )  # fmt: skip
