"""`find_first_overflow` for places other than plain local paths."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from ovf import _core
from ovf.analyzer import choose, listed, one_rank, telling
from ovf.remote.place import files_of, source_of
from ovf.remote.source import Request
from ovf.report import Report
from ovf.seen import seen_of, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ovf.analyzer import StrPath, StrPaths
    from ovf.remote.source import Source


def first_overflow(
    path: StrPaths | None,
    *,
    step: int | str | None,
    ranks: list[int] | None,
    rules: StrPath | None,
    threads: int | None,
    allow_incomplete_ranks: bool,
    mmap: bool,
    chart: bool,
    progress: Callable[[int, int], None] | None,
    also: tuple[str, ...],
    engine: str,
    hosts: Mapping[str, StrPath] | None,
    storage_options: Mapping[str, Any] | None,
) -> Report:
    """See `ovf.find_first_overflow`."""
    request = Request(
        step=None if step is None else str(step),
        ranks=ranks,
        rules=None if rules is None else os.fspath(rules),
        threads=threads,
        also=also,
        chart=chart,
    )
    folders = None if hosts is None else {host: os.fspath(folder) for host, folder in hosts.items()}
    paths = [] if path is None else [os.fspath(p) for p in listed(path)]
    if len(paths) > 1:
        msg = "several paths are read together only where all are local folders; give one URL or archive, or one path to Ray"
        raise ValueError(msg)
    place = paths[0] if paths else None
    with _source(place, engine, folders, storage_options, mmap=mmap) as source, telling(request.counters, progress):
        found = source.steps(request)
        chosen = choose([(s.number, s.label) for s in found], step, [source.path])
        seen: list[dict[str, Any]] = []
        for index in chosen:
            data, records, atlas = source.analyze(found[index], request, trend=len(chosen) > 1)
            seen.append(seen_of(data))
            if data["verdict"] == "overflow":
                break
    data = settled(data, seen, len(chosen))

    def drawn() -> str:
        """The atlas of a step that was analysed without it."""
        again = first_overflow(
            path,
            step=step,
            ranks=ranks,
            rules=rules,
            threads=threads,
            allow_incomplete_ranks=allow_incomplete_ranks,
            mmap=mmap,
            chart=True,
            progress=None,
            also=also,
            engine=engine,
            hosts=hosts,
            storage_options=storage_options,
        )
        if again.to_dict() != data:
            msg = f"{source.path}: the dump has changed since it was analysed; analyse it again"
            raise ValueError(msg)
        return json.dumps(again.atlas())

    return Report(data, records, allow_incomplete_ranks=allow_incomplete_ranks, atlas=atlas or drawn)


def trace(path: StrPath, rank: int | None, *, step: int | str | None, rules: StrPath | None) -> tuple[str, list[str]]:
    """See `ovf._core.trace`."""
    place = os.fspath(path)
    source = source_of(place)
    request = Request(rules=None if rules is None else os.fspath(rules))
    found = source.steps(request)
    chosen = found[choose([(s.number, s.label) for s in found], step, [place])[0]]
    asked = one_rank([r.rank for r in chosen.ranks], rank, place)
    only = chosen.only([asked], place)
    made = source.summaries(only, request)
    made.update(source.completed(only, made, request))
    return _core.trace_summary(made[asked], rules=rules)


@contextlib.contextmanager
def _source(
    path: str | None,
    engine: str,
    hosts: Mapping[str, str] | None,
    options: Mapping[str, Any] | None,
    *,
    mmap: bool,
) -> Iterator[Source]:
    """The source that was asked for.

    Raises:
        ValueError: What was asked for does not go together.
    """
    if engine not in {"local", "ray"}:
        msg = f"no engine {engine!r}; there are local and ray"
        raise ValueError(msg)
    if engine == "local":
        if hosts is not None or path is None:
            msg = "folders on hosts need engine 'ray' (or summarise on each host: ovf summarize)"
            raise ValueError(msg)
        yield source_of(path, options)
        return
    from ovf.remote.cluster import ClusterSource  # noqa: PLC0415 - only for this engine

    if (path is None) == (hosts is None):
        msg = "engine 'ray' wants one of the two: a path that every node sees, or folders on hosts"
        raise ValueError(msg)
    files = None
    if path is not None:
        files = files_of(path, options)
        if files is None:
            msg = f"{path}: a packed tar is read from front to back by one process: leave the engine out"
            raise ValueError(msg)
    source = ClusterSource(files, hosts, mmap=mmap)
    try:
        yield source
    finally:
        source.close()
