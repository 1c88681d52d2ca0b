"""Run a training script under a probe, without a change to the script.

The script runs in this process, as ``python script.py`` would run it, after the switch is on and
the probe reads. Steps are counted by the optimizer's step hook.
"""

from __future__ import annotations

import importlib
import logging
import os
import runpy
import sys
from typing import TYPE_CHECKING

from ovf.npu import streams, switch, wheel
from ovf.npu.gate import VARIABLE
from ovf.npu.probe import OverflowProbe

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)


def local_device() -> int:
    """Give the device that torchrun means for this process: ``LOCAL_RANK``, else 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def run_script(script: Path, arguments: list[str], folder: Path, *, device: int, period: float) -> int:
    """Run a script with FORCE_OVERFLOW_CHECK=1, the switch on and a probe beside it.

    Args:
        script: The script.
        arguments: Its arguments.
        folder: Where the probe's file goes.
        device: The device that the script trains on.
        period: Seconds between reads.

    Returns:
        The script's exit code.

    Raises:
        UnavailableError: torch_npu cannot be used.
    """
    os.environ[VARIABLE] = "1"
    wheel.load().npu.set_device(device)
    switch.enable([device])
    optimizers = importlib.import_module("torch.optim.optimizer")
    probe = OverflowProbe(folder, device=device, period=period).start()
    hook = optimizers.register_optimizer_step_post_hook(lambda *_: probe.step())
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        hook.remove()
        probe.stop()
        elsewhere = [index for index in streams.used_devices() if index != device]
        if elsewhere:
            _log.warning("the script also used devices %s; only device %d was watched", elsewhere, device)
    return 0
