"""Summaries of ranks as files: made where the dump lies, small enough to move, as good as the dump for a report.

`OUTPUT/<step>/rank<R>.ovfs`, one a rank. The folders that several hosts write may be copied into one another: no two
hosts have the same rank. Nothing is overwritten; a file that is there already with the same content is left alone, so
that doing it twice, or on two processes of a host, does no harm.
"""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from ovf import _core
from ovf.analyzer import choose, listed, local, may_map
from ovf.output import homes, refuse_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ovf.analyzer import StrPath, StrPaths

SUFFIX = ".ovfs"
"""How the names of summaries end."""


@dataclass(frozen=True)
class Summary:
    """A summary that was made.

    Attributes:
        name: Its file below the output folder, `step0/rank3.ovfs`.
        rank: Global rank.
        step_label: Folder of the step.
        content: Its bytes.
        dump_bytes: Size of the dump it was made from; 0 where that could not be read.
        problem: What was wrong with the dump, one line, or None.
    """

    name: PurePosixPath
    rank: int
    step_label: str
    content: bytes
    dump_bytes: int
    problem: str | None


def summarize(
    path: StrPaths,
    output: StrPath,
    *,
    step: int | str | None = None,
    ranks: Iterable[int] | None = None,
    rules: StrPath | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write a summary of each rank of a dump.

    Args:
        path: As for `find_first_overflow`. A rank that has a summary in place of its dump is copied.
        output: Folder that gets `<step>/rank<R>.ovfs`; made if absent.
        step: As for `find_first_overflow`.
        ranks: Only these global ranks; those that are not there are left out.
        rules: As there; the report must be made under the same.
        threads: Ranks read at once; one a processor by default.
        progress: Called with (bytes read, bytes in all) after each rank.

    Returns:
        The files, those that were there already with the same content included.

    Raises:
        FileNotFoundError, ovf.DumpFormatError, ovf.RulesError, OSError: As for `find_first_overflow`.
        FileExistsError: A file is there with another content.
        ValueError: The step is not there, or the output would lie in the dump. A dump that cannot be read is no error:
            its summary says so.
    """
    made = each_summary(path, step=step, ranks=ranks, rules=rules, threads=threads, progress=progress)
    return write_all(made, output, path)


def write_all(summaries: Iterable[Summary], output: StrPath, path: StrPaths) -> list[Path]:
    """Write summaries of `path` into `output`; errors as for `summarize`."""
    root = Path(output)
    dumps = homes(listed(path))
    made = []
    for summary in summaries:
        target = root / summary.name
        refuse_inside(target, dumps)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, summary.content)
        made.append(target)
    return sorted(made)


def each_summary(
    path: StrPaths,
    *,
    step: int | str | None = None,
    ranks: Iterable[int] | None = None,
    rules: StrPath | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Summary]:
    """The summaries that `summarize` writes, as they are ready; arguments and errors as there."""
    paths = local(path)
    found = _core.sources(paths)
    wanted = None if ranks is None else set(ranks)
    jobs = [
        (found[index], source)
        for index in choose([(number, label) for number, label, *_ in found], step, paths)
        for source in found[index][4]
        if wanted is None or source[0] in wanted
    ]
    sizes = [_size(source[2]) for _, source in jobs]
    counters = _core.Progress()
    done = 0
    pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="ovf-summary")
    try:
        running = {
            pool.submit(_summary, row, source, rules, counters): size
            for (row, source), size in zip(jobs, sizes, strict=True)
        }
        for future in as_completed(running):
            size = running.pop(future)  # its bytes are not kept longer than the caller needs them
            done += size
            if progress is not None:
                progress(done, sum(sizes))
            yield future.result()
    finally:
        counters.cancel()
        pool.shutdown(cancel_futures=True)


def _summary(row: tuple[Any, ...], source: tuple[Any, ...], rules: StrPath | None, counters: _core.Progress) -> Summary:
    number, label, _, notes, _ = row
    rank, rank_label, dump, construct, stack = source
    content = _core.summarize(
        dump,
        rank=rank,
        label=rank_label,
        construct=construct,
        stack=stack,
        step_number=number,
        step_label=label,
        notes=notes,
        rules=rules,
        map=may_map(None),
        progress=counters,
    )
    told = json.loads(_core.about(content, path=str(dump), rules=rules))
    name = PurePosixPath(told["step_label"]) / f"rank{rank}{SUFFIX}"
    if name.is_absolute() or ".." in name.parts:
        msg = f"{dump}: the summary names a step folder outside the output, {told['step_label']!r}"
        raise ValueError(msg)
    return Summary(name, rank, told["step_label"], content, told["bytes"], _line(told["unreadable"]))


def _line(unreadable: dict[str, Any] | None) -> str | None:
    if unreadable is None:
        return None
    place = f":{unreadable['line']}:{unreadable['column']}" if unreadable["line"] is not None else ""
    return f"{unreadable['path']}{place}: {unreadable['message']}"


def _size(path: StrPath) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _write(target: Path, content: bytes) -> None:
    """Put a whole file in its place at once, or leave an equal one alone.

    Raises:
        FileExistsError: Another content is there.
    """
    if not target.exists():
        part = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            part.write_bytes(content)
            try:
                target.hardlink_to(part)
            except FileExistsError:
                pass  # another process was faster; compared below
            except OSError:  # a file system without links
                part.rename(target)
            else:
                return
        finally:
            part.unlink(missing_ok=True)
    if target.read_bytes() != content:
        raise FileExistsError(errno.EEXIST, "exists with another content", str(target))


def write_tar(summaries: Iterable[Summary], stream: IO[bytes]) -> None:
    """Write summaries as a tar archive, for a pipe to another host: `... | tar -x -C DIR`."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for summary in summaries:
            entry = tarfile.TarInfo(str(summary.name))
            entry.size = len(summary.content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(summary.content))
