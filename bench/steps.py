"""The dumps that the scenarios read, made once and kept."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from lengths import lengthen
from replicas import widen

from ovf.testing import Layout

if TYPE_CHECKING:
    from pathlib import Path

_SETTLES = 11.0
"""Seconds."""


@dataclass(frozen=True)
class Recipe:
    """A step to make.

    Attributes:
        name: what it is called in tables.
        tp, pp, dp: the layout. Above `dp` 2 the other replicas are copies of the second.
        rank_mb: mean size of a rank's dump, megabytes; or
        ops_per_rank: mean number of ops a rank.
        fault: as `python -m ovf.testing` takes it; none for a clean step.
        options: more of its options.
        copies: of a single rank: how many times the step stands in its file, clean but for the last.
        spoilt: whether all statistics behind each rank's first NaN are NaN too.
    """

    name: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    rank_mb: float | None = None
    ops_per_rank: int | None = None
    fault: str | None = None
    options: tuple[str, ...] = field(default=())
    copies: int = 1
    spoilt: bool = False


@dataclass(frozen=True)
class Made:
    """A step on disk.

    Attributes:
        name: as its recipe's.
        path: the step folder.
        ranks: the number of ranks.
        size: bytes of all dump.json.
        ops: ops of all ranks.
        truth: rank and op of the planted overflow; None for a clean step.
    """

    name: str
    path: str
    ranks: int
    size: int
    ops: int
    truth: tuple[int, str] | None


def make(recipe: Recipe, folder: Path) -> Made:
    """Make a step, or take the one made before.

    Args:
        recipe: the step.
        folder: where steps are kept.

    Returns:
        The step.
    """
    key = hashlib.sha256(repr(recipe).encode()).hexdigest()[:10]
    root = folder / f"{recipe.name.replace(' ', '_')}-{key}"
    note = root / "made.json"
    if note.exists():
        data = json.loads(note.read_text())
        return Made(**{**data, "truth": tuple(data["truth"]) if data["truth"] else None})
    if root.exists():
        shutil.rmtree(root)  # begun and not ended
    print(f"making {recipe.name} ...", file=sys.stderr, flush=True)
    layout = Layout(recipe.tp, recipe.pp, min(recipe.dp, 2))
    command = [sys.executable, "-m", "ovf.testing"]
    command += ["--tp", str(layout.tp), "--pp", str(layout.pp), "--dp", str(layout.dp)]
    if recipe.rank_mb is not None:
        command += ["--rank-mb", str(recipe.rank_mb)]
    if recipe.ops_per_rank is not None:
        command += ["--ops-per-rank", str(recipe.ops_per_rank)]
    command += recipe.options
    fault = ["--fault", recipe.fault] if recipe.fault else ["--clean"]
    subprocess.run([*command, str(root), *fault], check=True, stdout=subprocess.DEVNULL)
    truth = json.loads((root / "truth.json").read_text())
    step = root / "step0"
    rank = truth["rank"]
    if recipe.dp > layout.dp:
        if rank is not None and layout.place(rank).dp:
            raise ValueError(f"{recipe.name}: a fault on another replica than the first does not stay where it is")
        wide = widen(step, layout, recipe.dp)
        rank = None if rank is None else wide.rank(layout.place(rank))
        (root / "truth.json").unlink()
    if recipe.copies > 1:
        subprocess.run([*command, str(root / "clean"), "--clean"], check=True, stdout=subprocess.DEVNULL)
        added = lengthen(root / "clean/step0/rank0/dump.json", step / "rank0/dump.json", recipe.copies)
        shutil.rmtree(root / "clean")
        api, number, direction = truth["op"].rsplit(".", 2)
        truth["op"] = f"{api}.{int(number) + added}.{direction}"
        (step / "rank0/stack.json").unlink()  # names other ops
    dumps = list(step.glob("rank*/dump.json"))
    if recipe.spoilt:
        for dump in dumps:
            _spoil(dump)
    # What was written in the last ten seconds is read, not mapped: it may still be written to.
    time.sleep(_SETTLES)
    made = Made(
        name=recipe.name,
        path=str(step),
        ranks=len(dumps),
        size=sum(dump.stat().st_size for dump in dumps),
        ops=sum(_ops(dump) for dump in dumps),
        truth=None if rank is None else (rank, truth["op"]),
    )
    note.write_text(json.dumps(asdict(made)))
    return made


def _spoil(dump: Path) -> None:
    text = dump.read_bytes()
    first = text.index(b'": NaN')
    numbers = re.compile(rb'"(Max|Min|Mean|Norm)": -?[0-9][^,\n]*')
    dump.write_bytes(text[:first] + numbers.sub(rb'"\1": NaN', text[first:]))


def _ops(dump: Path) -> int:
    text = dump.read_bytes()
    return text.count(b'"input_args":') + text.count(b'"input":')
