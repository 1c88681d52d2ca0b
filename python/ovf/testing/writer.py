"""Writes steps to disk as msProbe lays them out, one rank at a time or all ranks as they run."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from json.encoder import encode_basestring_ascii as quoted
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from ovf.testing.damage import Damage
from ovf.testing.encoding import Encoder, Encoding
from ovf.testing.training import Training, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ovf.testing.step import Level, Op, Step, Truth
    from ovf.testing.values import Value

# Text kept in memory for each open file, in characters.
_CHUNK = 1 << 17
# Names after which a group of ops that share a stack is written and begun anew.
_GROUP = 4096


class _Appender:
    """A text file written in chunks and never held open, so that ranks may be many."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[str] = []
        self._held = 0
        path.write_bytes(b"")

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._held += len(text)
        if self._held >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write("".join(self._parts))
        self._parts.clear()
        self._held = 0


class _ObjectWriter:
    """One JSON object written entry by entry."""

    def __init__(self, out: _Appender, encoder: Encoder, depth: int) -> None:
        self._out = out
        self._encoder = encoder
        self._depth = depth
        self._break = encoder.line_break(depth + 1)
        self._empty = True
        out.add("{")

    def entry(self, key: str, text: str) -> None:
        separator = "" if self._empty else ","
        self._empty = False
        self._out.add(f"{separator}{self._break}{quoted(key)}{self._encoder.colon}{text}")

    def close(self) -> None:
        self._out.add("}" if self._empty else f"{self._encoder.line_break(self._depth)}}}")


class RankWriter:
    """Writes one rank's `dump.json`, `stack.json` and `construct.json` op by op."""

    def __init__(
        self,
        folder: Path,
        encoding: Encoding,
        level: Level = "L1",
        headers: Mapping[str, Value] | None = None,
    ) -> None:
        """Make the folder and begin the files.

        Args:
            folder: the rank's folder, made if absent.
            encoding: the spelling.
            level: the dump level told in the header.
            headers: header entries over the defaults.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "dump.json"
        self._encoder = Encoder(encoding)
        self._stack_layout = encoding.stack
        self._level = level
        defaults: dict[str, Value] = {
            "task": "statistics",
            "level": level,
            "framework": "pytorch",
            "dump_data_dir": None,
        }
        values = {**defaults, **(headers or {})}
        order = encoding.header if "data" in encoding.header else (*encoding.header, "data")
        at = order.index("data")
        self._after = [(key, values[key]) for key in order[at + 1 :] if key in values]
        self._out = _Appender(self.path)
        self._top = _ObjectWriter(self._out, self._encoder, 0)
        for key in order[:at]:
            if key in values:
                self._top.entry(key, self._encoder.text(values[key], 1))
        self._top.entry("data", "")
        self._data = _ObjectWriter(self._out, self._encoder, 1)
        self._files: list[tuple[_Appender, _ObjectWriter]] = []
        self._stack = self._begin(folder / "stack.json") if encoding.stack != "none" else None
        self._construct = self._begin(folder / "construct.json") if encoding.construct else None
        self._groups: dict[tuple[str, ...], list[str]] = {}
        self._group_number = 0

    def _begin(self, path: Path) -> _ObjectWriter:
        out = _Appender(path)
        writer = _ObjectWriter(out, self._encoder, 0)
        self._files.append((out, writer))
        return writer

    def __call__(self, op: Op) -> None:
        """Write one op.

        Args:
            op: the next op in execution order.
        """
        encoder = self._encoder
        self._data.entry(op.name, encoder.text(op.body, 2))
        if self._construct is not None and self._level == "mix":
            self._construct.entry(op.name, "null" if op.parent is None else quoted(op.parent))
        if self._stack is None or not op.frames:
            return
        if self._stack_layout == "old":
            self._stack.entry(op.name, encoder.text(op.frames, 1))
            return
        names = self._groups.setdefault(op.frames, [])
        names.append(op.name)
        if len(names) >= _GROUP:
            self._write_group(op.frames, self._groups.pop(op.frames))

    def _write_group(self, frames: tuple[str, ...], names: list[str]) -> None:
        if self._stack is not None:
            key = str(self._group_number)
            self._stack.entry(key, self._encoder.text([names, frames], 1))
            self._group_number += 1

    def close(self) -> None:
        """Write what is left and end the files."""
        self._data.close()
        for key, value in self._after:
            self._top.entry(key, self._encoder.text(value, 1))
        self._top.close()
        self._out.flush()
        for frames, names in self._groups.items():
            self._write_group(frames, names)
        for out, writer in self._files:
            writer.close()
            out.flush()


def _cut(path: Path, kept: int) -> None:
    size = path.stat().st_size
    os.truncate(path, max(min(kept if kept >= 0 else size + kept, size), 0))


def _new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder}: holds a step already; choose another directory")
    return folder


def write_step(
    directory: str | os.PathLike[str],
    step: Step,
    encoding: Encoding | None = None,
    damage: Damage | None = None,
) -> Path:
    """Write a step that is held in memory.

    Args:
        directory: the dump root; `step<N>` is made inside.
        step: the step.
        encoding: its spelling, instead of the step's own.
        damage: what to leave out or cut, instead of the step's own.

    Returns:
        The step directory.

    Raises:
        FileExistsError: the step directory holds something already; two steps are never mixed.
    """
    damage = damage or step.damage
    encoding = encoding or step.encoding
    folder = _new_folder(Path(directory) / f"step{step.number}")
    for rank, ops in step.ranks.items():
        if rank in damage.missing:
            continue
        writer = RankWriter(folder / damage.folder(rank), encoding, step.level, step.headers)
        for op in ops:
            writer(op)
        writer.close()
        if rank in damage.kept_bytes:
            _cut(writer.path, damage.kept_bytes[rank])
    return folder


def write_training(
    directory: str | os.PathLike[str],
    training: Training,
    encoding: Encoding | None = None,
    damage: Damage | None = None,
    *,
    processes: int = 1,
) -> Truth:
    """Simulate a step and write it as it runs; memory does not grow with its size.

    Args:
        directory: the dump root; `step<N>` is made inside.
        training: the step, of any size.
        encoding: its spelling, today's by default.
        damage: what to leave out or cut.
        processes: how many processes write; each simulates all ranks and writes its share, so
            that two are about half again as fast as one. The bytes are the same. With more than
            one, call this under `if __name__ == "__main__"`: they import the main module anew.

    Returns:
        The right answer.

    Raises:
        FileExistsError: the step directory holds something already; two steps are never mixed.
    """
    damage = damage or Damage()
    encoding = encoding or Encoding()
    folder = _new_folder(Path(directory) / f"step{training.number}")
    ranks = [rank for rank in range(training.layout.ranks) if rank not in damage.missing]
    shares = [ranks[i::processes] for i in range(min(processes, len(ranks)))]
    if len(shares) <= 1:
        return _write_share(folder, training, encoding, damage, ranks)
    # Spawned, not forked: the caller may have threads.
    with ProcessPoolExecutor(len(shares), get_context("spawn")) as pool:
        jobs = [pool.submit(_write_share, folder, training, encoding, damage, share) for share in shares]
        truths = [job.result() for job in jobs]
    return truths[0]


def _write_share(folder: Path, training: Training, encoding: Encoding, damage: Damage, ranks: Sequence[int]) -> Truth:
    """Simulate all ranks of a step and write some of them."""
    writers = {rank: RankWriter(folder / damage.folder(rank), encoding, training.level) for rank in ranks}
    truth = simulate(training, writers)
    for rank, writer in writers.items():
        writer.close()
        if rank in damage.kept_bytes:
            _cut(writer.path, damage.kept_bytes[rank])
    return truth
