"""When things happened on a rank, and how far the clocks of two ranks may be apart.

A rank stamps with the host's monotonic clock and says once how it relates to the wall clock.
Ranks of one boot of one host share that clock exactly. Between hosts the wall clocks count, each
as wrong as its kernel admits (``adjtimex``: maxerror); a kernel whose clock is not disciplined
admits no bound.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_STA_UNSYNC = 0x0040
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """The head of struct timex of Linux; adjtimex with modes = 0 only reads."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


@dataclass(frozen=True)
class Clock:
    """A rank's clock.

    Attributes:
        host: Identity of the host's boot; equal means the same monotonic clock.
        wall_ns: Wall clock at the anchor.
        monotonic_ns: Monotonic clock at the anchor.
        error_ns: Bound that the kernel gives for the wall clock's error; None where it gives none.
    """

    host: str
    wall_ns: int
    monotonic_ns: int
    error_ns: int | None

    @staticmethod
    def here() -> Clock:
        """Read this host's clock."""
        monotonic = time.monotonic_ns()
        return Clock(_host(), time.time_ns(), monotonic, _wall_error_ns())

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Clock:
        """Read a clock out of a probe file's header.

        Raises:
            KeyError: A field is missing.
            TypeError: A field is not what it should be.
            ValueError: A number is out of range.
        """
        error = data["error_ns"]
        numbers = (data["wall_ns"], data["monotonic_ns"], 0 if error is None else error)
        if not all(isinstance(number, int) for number in numbers) or not isinstance(data["host"], str):
            raise TypeError("the clock's fields are not numbers")
        if numbers[2] < 0 or any(abs(number) >= 2**63 for number in numbers):
            raise ValueError("the clock's fields are out of range")
        return Clock(data["host"], data["wall_ns"], data["monotonic_ns"], error)

    def to_dict(self) -> dict[str, Any]:
        """Give the clock as plain data for JSON."""
        return asdict(self)

    def wall(self, monotonic_ns: int) -> int:
        """Give the wall time of a moment of this clock."""
        return self.wall_ns + monotonic_ns - self.monotonic_ns

    def uncertainty_ns(self, other: Clock) -> int | None:
        """Tell how far moments of two clocks may be misplaced against each other.

        Returns:
            0 on one host, the sum of both bounds between hosts, None where a host gives no bound.
        """
        if self.host == other.host:
            return 0
        if self.error_ns is None or other.error_ns is None:
            return None
        return self.error_ns + other.error_ns


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename
    return boot


def _wall_error_ns() -> int | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
    except (AttributeError, OSError):
        return None
    timex = _Timex()
    state = call(ctypes.byref(timex))
    if state < 0 or state == _TIME_ERROR or timex.status & _STA_UNSYNC:
        return None
    return int(timex.maxerror) * 1000
