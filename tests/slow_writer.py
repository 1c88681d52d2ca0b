"""Writes one rank's dumps as msProbe does while a job runs: the whole file at every flush, in place, slowly.

`slow_writer.py PLAN`: a JSON file, `[{"folder", "ops": [[name, record], ...], "flushes": [count, ...], "pause",
"stall"}, ...]`, one entry a step. At each flush the first `count` ops are written; `stall` seconds pass in the middle of each
write, `pause` seconds between two flushes. A number of ops is what msProbe flushes at in the middle of a step when it is a
multiple of 1000.
"""

import fcntl
import json
import sys
import time
from pathlib import Path


def flush(folder, ops, stall):
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    stack = {str(i): [[name], [f"File train.py, line {i}, in step, \n run({i})"]] for i, (name, _) in enumerate(ops)}
    for name, data in (("dump.json", {**head, "data": dict(ops)}), ("stack.json", stack)):
        text = json.dumps(data, indent=1)
        with (folder / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for part in (text[: len(text) // 3], text[len(text) // 3 : -2], text[-2:]):
                file.write(part)
                file.flush()
                time.sleep(stall / 3 if name == "dump.json" else 0)
            fcntl.flock(file, fcntl.LOCK_UN)


for step in json.loads(Path(sys.argv[1]).read_text()):
    folder = Path(step["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for i, count in enumerate(step["flushes"]):
        if i:
            time.sleep(step["pause"])
        flush(folder, step["ops"][:count], step["stall"])
