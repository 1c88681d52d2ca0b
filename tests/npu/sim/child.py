"""Runs snippets in processes of their own, forked from one that has imported torch_npu.

torch_npu keeps its decisions in C++ statics, so one configuration needs one process; importing it
takes seconds. Nothing that the snippets look at is decided before the fork except the CANN
version, which some wheels query at import: callers give one CANN version a call. Reads {"code":
..., "configs": [{"NAME": "value" or null}, ...]} from standard input and writes a JSON list of
results, one a configuration: what the snippet left in ``out``.
"""

import json
import os
import sys
import traceback
import warnings

import torch
import torch_npu


def run(code: str, config: dict) -> dict:
    for name, value in config.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    out: dict = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(code, {"out": out, "torch": torch, "torch_npu": torch_npu, "__name__": "snippet"})
        except BaseException:  # noqa: BLE001
            out["error"] = traceback.format_exc()
    out["warnings"] = [f"{w.category.__name__}: {w.message}" for w in caught]
    return out


def main() -> None:
    job = json.load(sys.stdin)
    results = []
    for config in job["configs"]:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.dup2(2, 1)
            with os.fdopen(write, "w") as pipe:
                json.dump(run(job["code"], config), pipe)
            # Skip torch_npu's shutdown: it belongs to no test, and a poisoned queue hangs in it.
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        results.append(json.loads(text) if text else {"error": "the child died", "warnings": []})
    json.dump(results, sys.stdout)


main()
