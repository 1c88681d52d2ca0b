"""FORCE_OVERFLOW_CHECK for every torch_npu: the switch, the float_status register, and a probe.

Importing this package imports neither torch nor torch_npu; the functions do when they are called,
and :func:`status` answers ``unavailable: <reason>`` where that fails.

Example:
    >>> import ovf.npu
    >>> ovf.npu.status().reason  # doctest: +SKIP
    'unavailable: torch_npu is not installed'
"""

from __future__ import annotations

from ovf.npu.diagnosis import DeviceStreams, Status, status
from ovf.npu.probe import OverflowProbe
from ovf.npu.register import (
    SwitchOffError,
    clear_npu_overflow_flag,
    get_npu_overflow_flag,
    is_force_overflow_check,
    npu_check_overflow,
)
from ovf.npu.runtime import SwitchError
from ovf.npu.streams import Stream
from ovf.npu.switch import Coverage, enable
from ovf.npu.wheel import UnavailableError

__all__ = [
    "Coverage",
    "DeviceStreams",
    "OverflowProbe",
    "Status",
    "Stream",
    "SwitchError",
    "SwitchOffError",
    "UnavailableError",
    "clear_npu_overflow_flag",
    "enable",
    "get_npu_overflow_flag",
    "is_force_overflow_check",
    "npu_check_overflow",
    "status",
]
