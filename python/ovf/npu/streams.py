"""The streams that torch_npu has on a device, found through its public interface.

torch_npu keeps, a device, one default and one secondary stream and three pools made at first use:
normal, high priority and sync-launch. Its constructors hand pool streams out in turn, so asking
until a pointer comes again has seen the whole pool. No constructor gives the secondary stream; it
is reached by its stream id.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ovf.npu import wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: No pool of torch_npu is near this size (32 at most); a constructor that never repeats is a bug,
#: not a pool.
_POOL_LIMIT = 1024


@dataclass(frozen=True)
class Stream:
    """One stream of a device.

    Attributes:
        device: Device index.
        kind: ``default``, ``secondary``, ``normal``, ``high``, ``sync-launch``, ``current`` or
            ``given``.
        pointer: CANN's handle.
    """

    device: int
    kind: str
    pointer: int


def _pool(make: Callable[[], Any]) -> Iterator[Any]:
    """Walk a pool once, and leave its turn where it was."""
    first = None
    for count in range(_POOL_LIMIT):
        stream = make()
        if first is None:
            first = stream.npu_stream
        elif stream.npu_stream == first:
            # One stream too many was taken: go round once more, so that the next one handed out
            # is as before.
            for _ in range(count - 1):
                make()
            return
        yield stream
    raise RuntimeError(f"torch_npu handed out {_POOL_LIMIT} different streams; is this a pool?")


def _secondary_id(ids: dict[str, list[int]]) -> int | None:
    """Work out the secondary stream's id from those of the pools.

    An id is (type << bits) | index, with types and bits that differ between torch_npu lines. The
    first id of each pool is therefore a multiple of one step; the secondary stream is the only
    type from 1 on, below the highest one, that no pool has.

    Args:
        ids: The stream ids seen, by kind.

    Returns:
        Its id; None where that leaves no answer, or more than one.
    """
    bases = sorted({min(seen) for kind, seen in ids.items() if kind != "default" and seen})
    if not bases:
        return None
    step = min([bases[0], *(b - a for a, b in pairwise(bases))])
    if step <= 0 or any(base % step for base in bases):
        return None
    free = [base for base in range(step, bases[-1], step) if base not in bases]
    return free[0] if len(free) == 1 else None


def walk(device: int) -> tuple[list[Stream], list[str]]:
    """List the streams of a device, making the pools that were not used yet.

    Args:
        device: Device index; torch_npu is initialised on it.

    Returns:
        The streams, each pointer once, and the names of those that exist but could not be reached.
    """
    npu = wheel.load().npu
    found: dict[int, Stream] = {}
    ids: dict[str, list[int]] = {}
    unreached: list[str] = []

    def take(kind: str, stream: Any) -> None:  # noqa: ANN401
        pointer = int(stream.npu_stream)
        if pointer and pointer not in found:
            found[pointer] = Stream(device, kind, pointer)
            ids.setdefault(kind, []).append(int(stream.stream_id))

    with npu.device(device):
        default = npu.default_stream()
        take("default", default)
        makers = {"normal": npu.Stream, "high": lambda: npu.Stream(priority=-1)}
        if hasattr(npu, "SyncLaunchStream"):
            makers["sync-launch"] = npu.SyncLaunchStream
        for kind, make in makers.items():
            for stream in _pool(make):
                take(kind, stream)
        secondary = _secondary_id(ids)
        if secondary is not None:
            try:
                take(
                    "secondary",
                    npu.Stream(stream_id=secondary, device_index=device, device_type=default.device_type),
                )
            except (RuntimeError, TypeError):
                secondary = None
        if not any(stream.kind == "secondary" for stream in found.values()):
            unreached.append(f"the secondary stream of device {device}: no stream id leads to it")
        take("current", npu.current_stream())
    return list(found.values()), unreached


def look(device: int) -> list[Stream]:
    """List the default and the current stream of a device; torch_npu is initialised on it."""
    npu = wheel.load().npu
    with npu.device(device):
        pairs = [("default", npu.default_stream()), ("current", npu.current_stream())]
    found: dict[int, Stream] = {}
    for kind, stream in pairs:
        pointer = int(stream.npu_stream)
        if pointer:
            found.setdefault(pointer, Stream(device, kind, pointer))
    return list(found.values())


def used_devices() -> list[int]:
    """List the devices that this process has used; only the current one where CANN cannot tell."""
    module = wheel.load()
    asks = getattr(module._C, "_npu_hasPrimaryContext", None)  # noqa: SLF001 - no public call tells
    current = int(module.npu.current_device())
    if asks is None:
        return [current]
    try:
        return sorted({current, *(d for d in range(module.npu.device_count()) if asks(d))})
    except RuntimeError:  # a CANN without aclrtGetPrimaryCtxState
        return [current]
