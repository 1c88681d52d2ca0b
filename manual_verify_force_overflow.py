"""Verify the overflow check on a device with CANN 9.1.0 or newer, by hand.

    FORCE_OVERFLOW_CHECK=1 python manual_verify_force_overflow.py
    python manual_verify_force_overflow.py --perf [--pairs 5] [--iterations 200]

Without options: asks for the state, overflows in fp16 (65504 + 65504) and expects the register to
be set, expects ``npu_check_overflow`` to find and clear it, and expects normal arithmetic to set
nothing. Works on wheels with the feature and, through ``ovf.npu.enable()``, on wheels without it.

With --perf: times a 4096x4096 fp16 matrix product with the switch on and off, each run in a
process of its own, alternating, and prints medians and their ratio.

Exit codes: 0 verified, 1 not verified, 2 usage error or the check is not on here. On a simulated
CANN the logic runs and every line says so; its times mean nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

NOT_VERIFIED, NOT_ON = 1, 2


def is_simulated() -> bool:
    """Tell whether the CANN in this process is the simulated one of ovf's tests."""
    try:
        call = ctypes.CDLL("libascendcl.so").aclGetRecentErrMsg
    except (OSError, AttributeError):
        return False
    call.restype = ctypes.c_char_p
    return call() == b"simulated CANN"


def say(line: str) -> None:
    """Print a line, and under a simulated CANN that it is one."""
    sys.stdout.write(f"{'[simulated] ' if is_simulated() else ''}{line}\n")
    sys.stdout.flush()


def verify() -> int:
    """Run the four steps.

    Returns:
        The exit code.
    """
    import ovf.npu  # noqa: PLC0415 - torch_npu is loaded only when it is needed

    state = ovf.npu.status(touch_device=True)
    if state.available and not state.on and state.requested and state.cann_allows:
        coverage = ovf.npu.enable()
        say(f"switch set on {len(coverage.streams)} streams; not reached: {'; '.join(coverage.unreachable)}")
        state = ovf.npu.status(touch_device=True)
    say(f"state: {'on' if state.on else 'off'} ({state.reason})")
    say(
        f"torch_npu {state.torch_npu}, feature in the wheel: {state.feature_in_wheel}, "
        f"CANN {state.cann}, {state.soc}, {state.mode}"
    )
    if not state.on:
        say("set FORCE_OVERFLOW_CHECK=1 before the process starts, with CANN 9.1.0 or newer")
        return NOT_ON
    failed = [name for name, passed in _steps(ovf.npu) if not passed]
    say("verified" if not failed else f"NOT verified: {', '.join(failed)}")
    return NOT_VERIFIED if failed else 0


def _steps(npu: Any) -> list[tuple[str, bool]]:  # noqa: ANN401 - the package ovf.npu
    import torch  # noqa: PLC0415

    passed: list[tuple[str, bool]] = []

    def step(name: str, *, holds: bool) -> None:
        say(f"{'ok  ' if holds else 'FAIL'} {name}")
        passed.append((name, holds))

    npu.clear_npu_overflow_flag()
    step("the register is clear to begin with", holds=not npu.get_npu_overflow_flag())

    half = torch.full((16,), 65504.0, dtype=torch.float16).npu()
    total = half + half
    step("fp16 65504 + 65504 sets the register", holds=npu.get_npu_overflow_flag())
    saturated = total.cpu().tolist()[0] == 65504.0  # noqa: PLR2004
    expected = npu.status().mode == "saturation"
    step("the computing mode is unchanged", holds=saturated is expected)

    step("npu_check_overflow finds it", holds=npu.npu_check_overflow(total))
    step("npu_check_overflow has cleared it", holds=not npu.npu_check_overflow(total))

    ones = torch.ones(16, dtype=torch.float16).npu()
    for _ in range(100):
        ones = ones * 1.0 + 0.0
    step("normal arithmetic sets nothing", holds=not npu.get_npu_overflow_flag())
    return passed


def time_products(iterations: int, size: int) -> float:
    """Time matrix products in this process, whose environment decides the switch.

    Returns:
        Milliseconds an iteration.
    """
    import torch  # noqa: PLC0415

    import ovf.npu  # noqa: PLC0415

    torch.npu.set_device(0)
    left = torch.ones(size, size).half().npu()
    right = torch.ones(size, size).half().npu()
    if os.environ.get("FORCE_OVERFLOW_CHECK") == "1":
        ovf.npu.enable()
    for _ in range(max(1, iterations // 10)):
        torch.mm(left, right)
    torch.npu.synchronize()
    begin = time.perf_counter()
    for _ in range(iterations):
        torch.mm(left, right)
    torch.npu.synchronize()
    return (time.perf_counter() - begin) / iterations * 1e3


def perf(pairs: int, iterations: int, size: int) -> int:
    """Time alternating runs with the switch on and off.

    Returns:
        The exit code.
    """
    times: dict[str, list[float]] = {"1": [], "0": []}
    for pair in range(pairs):
        # The first of a pair changes, so that a drift of the device's clock favours neither.
        for value in ("1", "0") if pair % 2 == 0 else ("0", "1"):
            command = [
                sys.executable,
                __file__,
                "--one",
                "--iterations",
                str(iterations),
                "--size",
                str(size),
            ]
            done = subprocess.run(  # noqa: S603 - this script itself
                command,
                env={**os.environ, "FORCE_OVERFLOW_CHECK": value},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines()
                say(f"a run failed: {lines[-1] if lines else 'no message'}")
                return NOT_VERIFIED
            result = json.loads(done.stdout.splitlines()[-1])
            if value == "1" and not result["switch"]:
                say("the switch is not on with FORCE_OVERFLOW_CHECK=1; there is nothing to compare")
                return NOT_ON
            times[value].append(result["ms"])
            note = "[simulated, meaningless] " if result["simulated"] else ""
            position = "on " if value == "1" else "off"
            sys.stdout.write(f"{note}switch {position} {result['ms']:.4f} ms an iteration\n")
    on, off = statistics.median(times["1"]), statistics.median(times["0"])
    note = "[simulated, meaningless] " if result["simulated"] else ""
    sys.stdout.write(
        f"{note}{size}x{size} fp16 mm, {pairs} runs each: "
        f"median on {on:.4f} ms, off {off:.4f} ms, ratio {on / off:.4f}\n"
    )
    return 0


def main() -> int:
    """Read the command line.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf", action="store_true", help="time the matrix product with the switch on and off")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each kind (5)")
    parser.add_argument("--iterations", type=int, default=200, help="products a run (200)")
    parser.add_argument("--size", type=int, default=4096, help="side of the matrices (4096)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.pairs, options.iterations, options.size) < 1:
        parser.error("--pairs, --iterations and --size are at least 1")
    if options.one:
        milliseconds = time_products(options.iterations, options.size)
        import ovf.npu  # noqa: PLC0415

        state = ovf.npu.status()
        sys.stdout.write(json.dumps({"ms": milliseconds, "switch": state.on, "simulated": is_simulated()}) + "\n")
        return 0
    return perf(options.pairs, options.iterations, options.size) if options.perf else verify()


if __name__ == "__main__":
    sys.exit(main())
