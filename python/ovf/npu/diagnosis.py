"""Why the register can or cannot be used in this process, point by point."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from ovf.npu import register, streams, switch, wheel
from ovf.npu.gate import MIN_CANN, VARIABLE, is_requested


@dataclass(frozen=True)
class DeviceStreams:
    """How many of the streams known on a device have the switch.

    Attributes:
        device: Device index.
        on: Streams that have it.
        off: Streams that do not.
        unknown: Streams of which CANN cannot tell.
    """

    device: int
    on: int
    off: int
    unknown: int


@dataclass(frozen=True)
class Status:
    """The answer of :func:`status`.

    Attributes:
        on: Whether an overflow on the streams in use reaches the register and can be read there.
        reason: Why, in one line; ``unavailable: ...`` where torch_npu cannot be used.
        available: Whether torch_npu can be used.
        torch_npu: Its version.
        feature_in_wheel: Whether it ships FORCE_OVERFLOW_CHECK itself.
        variable: The variable's value now.
        requested: Whether that value asks for the check.
        cann: CANN's version string.
        cann_allows: Whether it is 9.1.0 or newer.
        soc: Name of the processor.
        mode: ``INF_NAN``, ``saturation``, or None where the device was not looked at.
        streams: The switches on the devices used; the pools only as far as ovf walked them.
        warnings: What deserves attention.
    """

    on: bool
    reason: str
    available: bool = False
    torch_npu: str | None = None
    feature_in_wheel: bool | None = None
    variable: str | None = None
    requested: bool = False
    cann: str | None = None
    cann_allows: bool | None = None
    soc: str | None = None
    mode: str | None = None
    streams: tuple[DeviceStreams, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Give the status as plain data for JSON."""
        return asdict(self)


def _count(device: int) -> DeviceStreams:
    known = {stream.pointer: stream for stream in switch.covered_streams() if stream.device == device}
    known.update({stream.pointer: stream for stream in streams.look(device)})
    positions = [switch.position(stream) for stream in known.values()]
    return DeviceStreams(device, positions.count(True), positions.count(False), positions.count(None))


def status(*, touch_device: bool = False) -> Status:
    """Tell whether the overflow check is on in this process, and why.

    Args:
        touch_device: Initialise torch_npu on the current device if it is not yet; without it a
            fresh process is judged by its environment only, and no context is made on the device.

    Returns:
        The status. It never raises: where torch_npu cannot be used, ``reason`` says why.
    """
    value = os.environ.get(VARIABLE)
    requested = is_requested(value)
    try:
        module = wheel.load()
        allows = wheel.cann_is_new_enough()
    except wheel.UnavailableError as error:
        return Status(on=False, reason=f"unavailable: {error}", variable=value, requested=requested)
    facts: dict[str, Any] = {
        "available": True,
        "torch_npu": getattr(module, "__version__", None),
        "feature_in_wheel": wheel.has_feature(),
        "variable": value,
        "requested": requested,
        "cann": wheel.cann_version(),
        "cann_allows": allows,
    }
    if not (touch_device or wheel.has_streams()):
        on, reason = _by_environment(requested=requested, allows=allows)
        return Status(on=on, reason=f"{reason}; no device was looked at", **facts)
    try:
        module.npu.init()
        facts["mode"] = "INF_NAN" if wheel.is_inf_nan_mode() else "saturation"
        facts["soc"] = wheel.soc_name()
        facts["streams"] = tuple(_count(device) for device in streams.used_devices())
        drifts = register._drifts()  # noqa: SLF001 - one judgement, made in one place
    except RuntimeError as error:
        line = next(iter(str(error).splitlines()), "")
        return Status(on=False, reason=f"unavailable: the device cannot be used: {line}", **facts)
    notes = []
    if drifts:
        notes.append(register.DRIFT)
    if not wheel.has_register_operators():
        notes.append(
            f"{facts['soc']} has no operators that read or clear float_status: "
            "the switch can be set, the register not read"
        )
        return Status(on=False, reason=notes[-1], warnings=tuple(notes), **facts)
    if facts["mode"] == "saturation":
        return Status(on=True, reason="saturation mode: every stream has the switch", **facts)
    on, reason = _by_environment(requested=requested, allows=allows)
    if on and drifts:
        on, reason = False, "the streams in use do not have the overflow switch"
    return Status(on=on, reason=reason, warnings=tuple(notes), **facts)


def _by_environment(*, requested: bool, allows: bool) -> tuple[bool, str]:
    if not requested:
        return False, f"{VARIABLE} is not 1"
    if not allows:
        return False, f"{VARIABLE}=1, but CANN is not {MIN_CANN} or newer"
    if not wheel.has_feature() and not wheel.has_streams():
        return False, f"{VARIABLE}=1 and CANN allows it, but this torch_npu needs ovf.npu.enable()"
    return True, f"{VARIABLE}=1 and CANN is {MIN_CANN} or newer"
