"""The programs that are compared, as commands on one step."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_JSON = """
import json, sys, multiprocessing
def load(path):
    with open(path, "rb") as file:
        return len(json.load(file)["data"])
if __name__ == "__main__":
    with multiprocessing.Pool(int(sys.argv[1])) as pool:
        print(sum(pool.map(load, sys.argv[2:], chunksize=1)))
"""

_PEER = """
import sys
from msprobe.overflow_check.analyzer import OverFlowCheck
OverFlowCheck(sys.argv[1], sys.argv[2]).analyze()
"""


@dataclass(frozen=True)
class Contender:
    """A program.

    Attributes:
        name: as in the tables.
        command: its command line for a step folder.
        once: whether it is so slow that it runs once, without rounds.
    """

    name: str
    command: Callable[[str], list[str]]
    once: bool = False


def ovf(*options: str) -> Contender:
    """`ovf check` with options, silent: the exit status is the answer."""
    program = Path(sys.executable).with_name("ovf")
    start = [str(program)] if program.exists() else [sys.executable, "-m", "ovf"]
    name = " ".join(["ovf check", *options])
    return Contender(name, lambda step: [*start, "check", step, "-q", *options])


def ripgrep() -> Contender | None:
    """`rg -c NaN`: only looks at the bytes. None where it is not installed."""
    program = shutil.which("rg")
    if program is None:
        return None
    return Contender("rg -c NaN", lambda step: [program, "-c", "NaN", "--glob", "dump.json", step])


def python_json(processes: int = 2) -> Contender:
    """Python's json reading every dump, in some processes."""
    script = _script("load_all.py", _JSON)
    return Contender(
        f"python json, {processes} processes",
        lambda step: [sys.executable, script, str(processes), *map(str, sorted(Path(step).glob("*/dump.json")))],
        once=True,
    )


def msprobe(python: str | None) -> Contender | None:
    """Msprobe's `overflow_check`. None where it is not installed.

    Args:
        python: the interpreter that can import it; this one by default.
    """
    if python is None and importlib.util.find_spec("msprobe") is None:
        return None
    script = _script("overflow_check.py", _PEER)

    def command(step: str) -> list[str]:
        return [python or sys.executable, script, step, tempfile.mkdtemp(prefix="ovf-bench-peer-")]

    return Contender("msprobe overflow_check", command, once=True)


def _script(name: str, text: str) -> str:
    path = Path(tempfile.mkdtemp(prefix="ovf-bench-")) / name
    path.write_text(text)
    return str(path)
