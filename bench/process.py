"""One run of a command: wall and CPU time, peak memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# Seconds between two looks at a running process's memory.
_LOOK = 0.004


@dataclass(frozen=True)
class Run:
    """What one run took.

    Attributes:
        wall: seconds from start to end.
        cpu: user and system seconds of all threads and waited-for children.
        rss: peak resident memory, bytes; mapped files count. 0 where it was not sampled.
        anonymous: peak anonymous resident memory, bytes, children included. 0 where it was not sampled.
        status: the exit status.
        output: the first 64 KiB of what it printed.
    """

    wall: float
    cpu: float
    rss: int
    anonymous: int
    status: int
    output: str


def run(command: list[str], *, sample: bool = False) -> Run:
    """Run a command to its end.

    Args:
        command: the program and its arguments.
        sample: whether to look at its memory while it runs; costs a little time.

    Returns:
        What it took.
    """
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        sampler = _Sampler(process.pid) if sample else None
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if sampler:
            sampler.stop()
        out.seek(0)
        text = out.read(1 << 16).decode(errors="replace")
    rss, anonymous = (sampler.rss, sampler.anonymous) if sampler else (0, 0)
    return Run(wall, usage.ru_utime + usage.ru_stime, rss, anonymous, process.returncode, text)


class _Sampler:
    """Looks at the memory of a process and its children until stopped."""

    def __init__(self, pid: int) -> None:
        self.rss = 0
        self.anonymous = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            rss = anonymous = 0
            for pid in _family(self._pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                for line in status.splitlines():
                    if line.startswith("VmRSS:"):
                        rss += int(line.split()[1]) * 1024
                    elif line.startswith("RssAnon:"):
                        anonymous += int(line.split()[1]) * 1024
            self.rss, self.anonymous = max(self.rss, rss), max(self.anonymous, anonymous)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def _family(pid: int) -> list[int]:
    family = [pid]
    for member in family:
        try:
            for task in Path(f"/proc/{member}/task").iterdir():
                family += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # noqa: PERF203 - a process may end at any moment
            continue
    return family
