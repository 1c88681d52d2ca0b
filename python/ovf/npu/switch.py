"""Turn the overflow switch on for the streams of an installed torch_npu, without rebuilding it."""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

from ovf.npu import runtime, streams, wheel
from ovf.npu.gate import MIN_CANN, VARIABLE
from ovf.npu.streams import Stream

OUTSIDE = (
    "streams that other libraries make themselves with aclrtCreateStream (HCCL's inner streams, "
    "custom operators): pass their handles as pointers="
)


@dataclass(frozen=True)
class Coverage:
    """What :func:`enable` did.

    Attributes:
        on: Whether overflow on the streams listed reaches the register.
        reason: Why it is on or not, in one line.
        streams: The streams that have the switch.
        unreachable: What could not be reached, in words.
        watching: Whether streams made later get the switch as they are made.
    """

    on: bool
    reason: str
    streams: tuple[Stream, ...] = ()
    unreachable: tuple[str, ...] = ()
    watching: bool = False

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices whose streams have the switch."""
        return tuple(sorted({stream.device for stream in self.streams}))


@dataclass
class _Process:
    """What this process has set so far; streams live as long as it does."""

    covered: dict[int, Stream] = field(default_factory=dict)
    confirmed: set[tuple[int, int]] = field(default_factory=set)
    watching: bool = False
    refused: str | None = None


_process = _Process()


def covered_streams() -> list[Stream]:
    """List the streams that this process has set the switch of."""
    return list(_process.covered.values())


def position(stream: Stream) -> bool | None:
    """Tell a stream's switch, by CANN or else by what this process set; None if neither tells."""
    told = runtime.get_switch(stream.pointer)
    return True if told is None and stream.pointer in _process.covered else told


def is_on(device: int | None = None) -> bool | None:
    """Tell whether the streams that a device computes on have the switch.

    Args:
        device: Device index; the current device if None.

    Returns:
        True where the default and the current stream have it, False where one has not, None where
        CANN cannot tell. torch_npu must be initialised.
    """
    npu = wheel.load().npu
    index = int(npu.current_device()) if device is None else device
    # A stream's handle is read only once: that waits for the host's operator queue. Its id costs
    # nothing, and no one turns a switch off again.
    key = (index, int(npu.current_stream(index).stream_id))
    if key in _process.confirmed:
        return True
    positions = [position(stream) for stream in streams.look(index)]
    if False in positions:
        return False
    if None in positions or not positions:
        return None
    _process.confirmed.add(key)
    return True


def _watch() -> str | None:
    """Have torch_npu call us at each stream it makes from now on.

    Returns:
        None, or the reason why that is not possible here.
    """
    if _process.watching:
        return None
    if os.environ.get("TORCH_NPU_SANITIZER"):
        return "streams made later: TORCH_NPU_SANITIZER uses torch_npu's only stream callback"
    module = wheel.load()
    try:
        traces: Any = importlib.import_module("torch_npu.utils._npu_trace")
        register = traces.register_callback_for_npu_stream_creation
        activate = module._C._activate_npu_trace  # noqa: SLF001
    except (ImportError, AttributeError):
        return "streams made later: this torch_npu has no stream callback"

    def made(pointer: int) -> None:
        runtime.set_switch(pointer)
        _process.covered[pointer] = Stream(int(module.npu.current_device()), "made later", pointer)

    try:
        register(made, "ovf stream switch")
    except TypeError:  # older torch_npu: the callback has no name
        register(made)
    activate(0)
    _process.watching = True
    return None


def _refusal(*, force: bool) -> str | None:
    """Give the reason why the switch stays as it is, if the rule forbids turning it on."""
    if not wheel.cann_is_new_enough() and (force or wheel.variable_requests()):
        return f"CANN {wheel.cann_version() or 'of unknown version'} is not {MIN_CANN} or newer"
    if not force and not wheel.variable_requests():
        return f"{VARIABLE} is not 1 (enable(force=True) turns it on all the same)"
    return None


def enable(
    devices: list[int] | None = None,
    *,
    force: bool = False,
    watch: bool = False,
    pointers: list[int] | None = None,
) -> Coverage:
    """Turn the overflow switch on for the streams of this process.

    Walks torch_npu's stream pools and sets the switch by CANN's own call. A pool is whole from
    its first use on, so streams handed out later have the switch too. Works on wheels without the
    feature; on wheels with it, it repairs a process whose variable was set after the first
    stream.

    Making the pools takes 68 streams a device; reading the default stream's handle waits until
    the operators queued on the host are launched, once.

    Args:
        devices: Devices to reach; those used so far if None. Call again when another device is
            first used.
        force: Turn it on although FORCE_OVERFLOW_CHECK is not 1. Also sets the variable in this
            process, so that the wheel's own functions agree.
        watch: Also catch the streams of devices that are first used later, through a private
            callback of torch_npu that costs some microseconds an operator (2.4 measured on a
            simulated CANN).
        pointers: Handles of further streams, made outside torch_npu.

    Returns:
        What was reached and what not. ``on`` is False, with one warning, where the rule forbids
        it: the variable is not 1, or CANN is older than 9.1.0.

    Raises:
        UnavailableError: torch_npu cannot be used.
        SwitchError: CANN refused to set a switch.
    """
    wheel.load().npu.init()
    if not wheel.is_inf_nan_mode():
        reached = [stream for device in devices or streams.used_devices() for stream in streams.look(device)]
        return Coverage(
            on=True,
            reason="saturation mode: torch_npu gives every stream the switch",
            streams=tuple(reached),
        )
    refusal = _refusal(force=force)
    if refusal is not None:
        if refusal != _process.refused:  # once a process, as the wheel's own log warning
            _process.refused = refusal
            warnings.warn(f"the overflow switch stays off: {refusal}", RuntimeWarning, stacklevel=2)
        return Coverage(on=False, reason=refusal)
    if force:
        os.environ[VARIABLE] = "1"
    failure = _watch() if watch else None
    unreachable = [] if failure is None else [failure]
    for device in devices if devices is not None else streams.used_devices():
        found, unreached = streams.walk(device)
        unreachable += unreached
        _cover(found)
    here = int(wheel.load().npu.current_device())
    _cover([Stream(here, "given", pointer) for pointer in pointers or []])
    return _coverage(unreachable)


def _cover(found: list[Stream]) -> None:
    for stream in found:
        runtime.set_switch(stream.pointer)
        _process.covered[stream.pointer] = stream


def _coverage(unreachable: list[str]) -> Coverage:
    """Sum up, by CANN's word: a stream whose switch reads 0 after it was set is not covered."""
    used = {stream.device for stream in covered_streams()}
    later = [index for index in range(wheel.load().npu.device_count()) if index not in used]
    if later and not _process.watching:
        names = ", ".join(map(str, later))
        unreachable.append(f"streams of devices not used yet ({names}): call enable() after their first use")
    unreachable.append(OUTSIDE)
    dead = [stream for stream in covered_streams() if runtime.get_switch(stream.pointer) is False]
    unreachable += [f"{stream.kind} stream {stream.pointer:#x}: set, but CANN reads it as off" for stream in dead]
    live = tuple(stream for stream in covered_streams() if stream not in dead)
    return Coverage(
        on=bool(live),
        reason="switch set by ovf",
        streams=live,
        unreachable=tuple(unreachable),
        watching=_process.watching,
    )
