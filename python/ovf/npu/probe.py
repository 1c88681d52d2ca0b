"""A bypass watcher of the float_status register.

A thread reads the register every period from a stream of its own and notes the intervals in which
it was set. The training streams see nothing of it: no operator, no event and no synchronisation
call goes to them. The probe uses one of torch_npu's sync-launch streams where the wheel has them:
their operators do not pass through the queue that the training thread fills.

What it rests on, and cannot prove without hardware: that the register belongs to the device and
not to a stream. The self test at the start finds out on the device at hand, by overflowing on one
stream of its own and reading on another; where that is not seen, the probe says so and stops
instead of reporting "no overflow".
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ovf.npu import streams, switch, wheel
from ovf.npu.clock import Clock
from ovf.npu.intervals import STOPPED, Interval, IntervalFile, probe_path

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_log = logging.getLogger(__name__)
_ALIVE_EVERY_NS = 60 * 1_000_000_000
#: A read that fails once may be a device being reset; one that keeps failing is the end of the
#: probe.
_MAX_FAILURES = 10


class Register(Protocol):
    """What the probe needs of a register. All calls come from the probe's thread."""

    def open(self) -> dict[str, Any]:
        """Prepare, and return facts for the header."""

    def sees_overflow(self) -> bool:
        """Overflow on one stream, read on another, clear; tell whether it was seen."""

    def read(self) -> bool:
        """Tell whether the register is set."""

    def clear(self) -> None:
        """Clear it, and return when that is done."""


class DeviceRegister:
    """The register of a device, read through torch_npu from a stream of the probe's own."""

    def __init__(self, device: int) -> None:
        """Remember the device; nothing is touched before :meth:`open`."""
        self._device = device
        self._stream: Any = None
        self._other: Any = None
        self._status: Any = None
        self._torch: Any = None

    def open(self) -> dict[str, Any]:
        """Take streams on the device.

        Raises:
            UnavailableError: torch_npu cannot be used.
            RuntimeError: The device has no operators that read the register, or its streams have
                no switch.
        """
        module = wheel.load()
        self._torch = torch = wheel.torch()
        npu = module.npu
        npu.set_device(self._device)
        if not wheel.has_register_operators():
            raise RuntimeError(f"{wheel.soc_name()} has no operators that read or clear float_status")
        # Where CANN cannot tell, the self test does.
        if wheel.is_inf_nan_mode() and switch.is_on(self._device) is False:
            raise RuntimeError(
                f"the streams of device {self._device} do not have the overflow switch: call ovf.npu.enable() first"
            )
        make = getattr(npu, "SyncLaunchStream", npu.Stream)
        self._stream, self._other = make(), make()
        with npu.stream(self._stream):
            self._status = torch.zeros(8, device=f"npu:{self._device}")
        self._stream.synchronize()
        known = {stream.pointer for stream in streams.look(self._device)}
        if int(self._stream.npu_stream) in known:
            raise RuntimeError("torch_npu gave the probe a stream that is in use")
        return {
            "torch_npu": module.__version__,
            "cann": wheel.cann_version(),
            "soc": wheel.soc_name(),
            "stream": type(self._stream).__name__,
        }

    def sees_overflow(self) -> bool:
        """Overflow in fp16 on a second stream of the probe, and read on the first."""
        npu = wheel.load().npu
        with npu.stream(self._other):
            half = self._torch.full((8,), 65504.0, dtype=self._torch.float16).npu()
            half + half
        self._other.synchronize()
        seen = self.read()
        self.clear()
        return seen

    def read(self) -> bool:
        """Read the register; waits for the probe's own stream only."""
        module = wheel.load()
        with module.npu.stream(self._stream):
            return bool(module.npu_get_float_status(self._status).cpu()[0] != 0)

    def clear(self) -> None:
        """Clear the register; waits for the probe's own stream only."""
        module = wheel.load()
        with module.npu.stream(self._stream):
            module.npu_clear_float_status(self._status)
        self._stream.synchronize()


class OverflowProbe:
    """Watches the register of one rank's device while it trains.

    Args:
        folder: Where ``probe_rank<N>.jsonl`` goes.
        rank: Global rank; ``RANK`` of the environment if None, else 0.
        device: Device index; the current device if None.
        period: Seconds between reads. An overflow is placed no finer than this.
        max_bytes: Bound of the file.
        self_test: Overflow once at the start to prove that the probe would see it. Clears the
            register.
        register: Another register to read, for tests.

    Raises:
        ValueError: ``period`` or ``max_bytes`` is too small.

    Example:
        >>> with OverflowProbe("probes") as probe:  # doctest: +SKIP
        ...     for batch in data:
        ...         train(batch)
        ...         probe.step()

    Each read that finds the register set clears it, so that the next interval can be told from
    this one: ``npu_check_overflow`` and the probe do not share one register well.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        rank: int | None = None,
        device: int | None = None,
        period: float = 0.05,
        max_bytes: int = 4 * 1024 * 1024,
        self_test: bool = True,
        register: Register | None = None,
    ) -> None:
        """Take the settings; nothing is touched before :meth:`start`."""
        if period < 0.001:  # noqa: PLR2004
            raise ValueError(f"period is {period} s; less than 1 ms only burns the host's time")
        if max_bytes < 4096:  # noqa: PLR2004
            raise ValueError(f"max_bytes is {max_bytes}; at least 4096")
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.path = probe_path(Path(folder), self.rank)
        self._device = device
        self._period = period
        self._max_bytes = max_bytes
        self._self_test = self_test
        self._register = register
        self._step: int | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._reads = 0
        self._failures = 0
        #: Why the probe does not run; None while it does.
        self.failure: str | None = None

    def step(self, number: int | None = None) -> None:
        """Tell the probe that a training step ends here. Touches no device.

        Args:
            number: The number of the step that begins; one more than before if None.
        """
        self._step = (self._step or 0) + 1 if number is None else number

    def start(self) -> Self:
        """Start the thread, and wait until it has taken its stream and passed its self test.

        Returns:
            The probe itself. Training must not fail because of a probe: where it cannot run,
            ``failure`` says why, a warning is logged, and the file says the same.

        Raises:
            RuntimeError: It was started before.
        """
        if self._thread is not None:
            raise RuntimeError("this probe was started before")
        if self._device is None and self._register is None:
            try:
                self._device = int(wheel.load().npu.current_device())
            except RuntimeError as error:
                self._device = 0
                self.failure = str(error)
        if self._step is None:
            self._step = 0
        self._thread = threading.Thread(target=self._run, name=f"ovf-probe-{self.rank}", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self.failure is not None:
            _log.warning("the overflow probe of rank %d does not run: %s", self.rank, self.failure)
        return self

    def stop(self) -> None:
        """Read once more, write the last line, and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def _state(self, at_ns: int) -> dict[str, Any]:
        return {
            "at_ns": at_ns,
            "step": self._step,
            "reads": self._reads,
            "failures": self._failures,
        }

    def _run(self) -> None:
        register = self._register or DeviceRegister(self._device or 0)
        header: dict[str, Any] = {
            "rank": self.rank,
            "device": self._device,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "period_s": self._period,
        }
        try:
            if self.failure is None:
                header.update(register.open())
                if self._self_test and not register.sees_overflow():
                    self.failure = (
                        "self test: an overflow on one stream is not seen from another; "
                        "the register belongs to a stream here, or the switch has no effect, and "
                        "a probe would report nothing for ever"
                    )
                    header["self_test"] = "failed"
                else:
                    header["self_test"] = "passed" if self._self_test else "skipped"
        except Exception as error:  # noqa: BLE001 - reported, and training goes on
            self.failure = next(iter(str(error).splitlines()), type(error).__name__)
        try:
            file = IntervalFile(self.path, {**header, "clock": Clock.here().to_dict()}, max_bytes=self._max_bytes)
        except OSError as error:
            self.failure = str(error)
            self._ready.set()
            return
        if self.failure is not None:
            file.close({**self._state(time.monotonic_ns()), "reason": self.failure})
            self._ready.set()
            return
        self._watch(register, file)

    def _watch(self, register: Register, file: IntervalFile) -> None:
        """Read until stopped; what lies between two reads is one interval."""
        clean_ns, clean_step = time.monotonic_ns(), self._step
        alive_ns = clean_ns
        in_a_row = 0
        reason = STOPPED
        self._ready.set()
        while True:
            last = self._stop.wait(self._period)
            # Taken before the read: what happens during it may belong to the next interval, or to
            # this one.
            begun_ns, begun_step = time.monotonic_ns(), self._step
            try:
                if register.read():
                    register.clear()
                    ended_ns = time.monotonic_ns()
                    file.add(Interval(clean_ns, ended_ns, clean_step, self._step))
                    # An overflow between read and clear is lost to the next read, so this
                    # interval reaches to the end of the clear, and the next one begins with the
                    # read.
                else:
                    file.clean()
                clean_ns, clean_step = begun_ns, begun_step
                self._reads += 1
                in_a_row = 0
            except Exception as error:  # noqa: BLE001 - counted and written down; training goes on
                self._failures += 1
                in_a_row += 1
                self.failure = next(iter(str(error).splitlines()), type(error).__name__)
                if in_a_row >= _MAX_FAILURES:
                    reason = f"gave up after {in_a_row} failed reads: {self.failure}"
                    break
            if begun_ns - alive_ns >= _ALIVE_EVERY_NS:
                alive_ns = begun_ns
                file.alive(self._state(begun_ns))
            if last:
                break
        file.close({**self._state(time.monotonic_ns()), "reason": reason})
