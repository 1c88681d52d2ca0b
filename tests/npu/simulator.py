"""The simulator environment: real torch_npu wheels on a simulated CANN, a child process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass
class Result:
    """What one child left: its ``out``, its Python warnings, and the simulator's log."""

    out: dict
    log: list[list[str]]

    def calls(self, *names: str) -> list[list[str]]:
        return [line for line in self.log if line[2] in names]


class Simulator:
    """Runs code in the simulator environment. Everything it shows is simulated, never a hardware result."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def python(self, kind: str) -> Path:
        return self.root / kind / "bin" / "python"

    def environment(self, **knobs: str) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        return {
            **keep,
            "LD_LIBRARY_PATH": f"{self.root / 'cann'}:{self.root / 'loader'}",
            "PYTHONPATH": str(ROOT / "python"),
            "OMP_NUM_THREADS": "1",
            **knobs,
        }

    def run(self, kind: str, code: str, *configs: dict[str, str | None], **knobs: str) -> list[Result]:
        """Run a snippet once a configuration, after one import with ``knobs`` in the environment."""
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder) / f"{index}.log" for index in range(len(configs))]
            job = {
                "code": code,
                "configs": [{**c, "OVF_SIM_LOG": str(log)} for c, log in zip(configs, logs, strict=True)],
            }
            done = subprocess.run(
                [self.python(kind), HERE / "sim" / "child.py"],
                input=json.dumps(job),
                env=self.environment(**knobs),
                text=True,
                capture_output=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            outs = json.loads(done.stdout[done.stdout.index("[") :])
            return [Result(out, read_log(log)) for out, log in zip(outs, logs, strict=True)]

    def one(self, kind: str, code: str, **knobs: str) -> Result:
        """Run a snippet in a process that has ``knobs`` in its environment from its start."""
        (result,) = self.run(kind, code, {}, **knobs)
        assert "error" not in result.out, result.out["error"]
        return result


def read_log(path: Path) -> list[list[str]]:
    return [line.split(" ", 3) for line in path.read_text().splitlines()] if path.exists() else []
