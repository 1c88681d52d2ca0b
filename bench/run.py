"""`python bench/run.py`: times ovf and its contenders on generated steps, prints tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import process
from scenarios import all_scenarios
from steps import Made, make
from table import Row, markdown

import ovf

if TYPE_CHECKING:
    from scenarios import Scenario


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Dumps are made once: 11 GB, some 8 minutes. Exit status 1 where a goal is missed or an answer is wrong.",
    )
    all_names = " ".join(s.name for s in all_scenarios(1.0, None))
    parser.add_argument("names", nargs="*", help=f"scenarios: {all_names} (default: all, in this order)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, default %(default)s")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the size of every dump")
    parser.add_argument(
        "--steps",
        type=Path,
        default=Path(tempfile.gettempdir()) / "ovf-bench",
        help="where dumps are kept, default %(default)s",
    )
    parser.add_argument("--msprobe-python", help="the interpreter that has msprobe (default: this one)")
    parser.add_argument("--skip-slow", action="store_true", help="leave out the contenders that run once")
    parser.add_argument("--output", type=Path, help="folder for results.json and results.md")
    options = parser.parse_args()
    scenarios = all_scenarios(options.scale, options.msprobe_python)
    names = options.names or [s.name for s in scenarios]
    unknown = set(names) - {s.name for s in scenarios}
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in scenarios)}")
    texts = [_machine_line()]
    print(texts[0], flush=True)
    all_rows: list[Row] = []
    missed = 0
    for scenario in scenarios:
        if scenario.name not in names:
            continue
        rows = _measure(scenario, options)
        goals = [(text, judge(rows)) for text, judge in scenario.goals]
        missed += sum(reached is not None and not reached[1] for _, reached in goals)
        missed += sum(row.right is False for row in rows)
        texts.append(markdown(scenario.title, rows, goals))
        print(texts[-1], flush=True)
        all_rows += rows
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "results.md").write_text("\n".join(texts))
        data = {"machine": _machine(), "rows": [asdict(row) for row in all_rows]}
        (options.output / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    return 1 if missed else 0


def _measure(scenario: Scenario, options: argparse.Namespace) -> list[Row]:
    pairs = [(make(recipe, options.steps), contender) for recipe, contender in scenario.pairs]
    pairs = [(made, contender) for made, contender in pairs if not (options.skip_slow and contender.once)]
    empty = _empty()
    runs: dict[int, list[process.Run]] = {i: [] for i in range(len(pairs))}
    memory: dict[int, process.Run] = {}
    for i, (made, contender) in enumerate(pairs):
        _read_all(made)
        if contender.once:
            memory[i] = process.run(contender.command(made.path), sample=True)
            runs[i] = [memory[i]]
        else:
            memory[i] = process.run(contender.command(made.path), sample=True)  # warms up as well
    for _ in range(options.repeat):
        for i, (made, contender) in enumerate(pairs):
            if not contender.once:
                runs[i].append(process.run(contender.command(made.path)))
    rows = []
    for i, (made, contender) in enumerate(pairs):
        walls = [run.wall for run in runs[i]]
        start = [process.run(contender.command(empty)).cpu for _ in range(3)] if not contender.once else [0.0]
        rows.append(
            Row(
                scenario=scenario.name,
                step=made.name,
                contender=contender.name,
                ranks=made.ranks,
                ops=made.ops,
                size=made.size,
                rounds=len(walls),
                wall=statistics.median(walls),
                fastest=min(walls),
                slowest=max(walls),
                cpu=statistics.median(run.cpu for run in runs[i]),
                start=statistics.median(start),
                rss=memory[i].rss,
                anonymous=memory[i].anonymous,
                status=memory[i].status,
                right=_is_right(made) if contender.name == "ovf check" else None,
            )
        )
    return rows


def _is_right(made: Made) -> bool:
    """Whether ovf names the planted op."""
    first = ovf.find_first_overflow(made.path).first
    return made.truth == (None if first is None else (first.rank, first.op_name))


def _read_all(made: Made) -> None:
    """Bring a step into the page cache."""
    for dump in Path(made.path).glob("*/dump.json"):
        with dump.open("rb") as file:
            while file.read(1 << 24):
                pass


def _empty() -> str:
    """A step with next to nothing in it."""
    folder = Path(tempfile.mkdtemp(prefix="ovf-bench-empty-")) / "step0" / "rank0"
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text('{"task": "statistics", "level": "L1", "data": {"a.0.forward": {}}}')
    return str(folder.parent)


def _machine() -> dict[str, object]:
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    here = Path(__file__).parent
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    return {
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
        "ovf": ovf.__version__,
        "revision": revision.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }


def _machine_line() -> str:
    m = _machine()
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['memory'] / 2**30:.0f} GiB; {m['system']}; Python {m['python']}; "  # type: ignore[operator]
        f"ovf {m['ovf']} ({m['revision']}); {m['date']}; load average at the start {m['load']:.1f}\n"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


if __name__ == "__main__":
    sys.exit(main())
