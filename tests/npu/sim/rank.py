# ruff: noqa: T201 - it talks to whoever started it

"""One simulated rank: trains for three seconds with small fp16 steps, and overflows once at a given moment."""

import json
import os
import sys
import threading
import time

import torch

import ovf.npu

torch.npu.set_device(0)
weight = torch.full((8,), 1.0, dtype=torch.float16).npu()
half = torch.full((8,), 65504.0, dtype=torch.float16).npu()
ovf.npu.enable()

probe = None
if os.environ["PROBE"]:
    probe = ovf.npu.OverflowProbe(os.environ["PROBE"], period=0.02).start()
threads = {thread.name: thread.native_id for thread in threading.enumerate()}

print("ready", flush=True)
begin = float(sys.stdin.readline())  # all ranks get the same moment once all are ready
at = float(os.environ["OVERFLOW_AT"]) if os.environ["OVERFLOW_AT"] else None
time.sleep(max(0.0, begin - time.monotonic()))
told = {"begin_ns": time.monotonic_ns(), "overflow_ns": None, "overflow_step": None}
for step in range(60):
    # A step every 50 ms: three operators, no synchronisation until every twentieth step looks at
    # a value.
    time.sleep(max(0.0, begin + 0.05 * step - time.monotonic()))
    result = weight + weight
    result = result * weight
    if at is not None and step == round(at / 0.05):
        before = time.monotonic_ns()
        half + half
        torch.npu.current_stream().synchronize()
        told["overflow_ns"], told["overflow_step"] = [before, time.monotonic_ns()], step
    if step % 20 == 19:
        result.cpu()
    if probe is not None:
        probe.step()
# In nanoseconds of the same clock as the simulator's log.
told["end_ns"] = time.monotonic_ns()
if probe is not None:
    probe.stop()
told["probe_thread"] = threads.get("ovf-probe-" + os.environ["RANK"])
told["training_streams"] = ["0"]
print(json.dumps(told), flush=True)
os._exit(0)
