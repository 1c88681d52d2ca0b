"""Ray: every rank is summarised on the node whose disk holds it, and the summaries are reduced here.

Two cases. `hosts` names a node and the folder its ranks lie in, as often as there are nodes: each rank's task is bound to
that node. Without `hosts`, every node sees the path (a shared file system, an object store): the tasks are spread.

Ray does what Ray is for: it places the tasks, starts workers, runs a task again when its worker or its node dies (three
times), and tells when that is in vain. What is left of a dead node is then said: its ranks are unreadable, by rank; or,
when it was dead before its folder was listed, the step has a remark and is incomplete.

The tasks are functions of this module, so ovf must be installed on every node; nothing else is shipped but the names
of files and the rules.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ovf
from ovf.remote.errors import MissingExtraError, at, one_line
from ovf.remote.files import LEAVE_OUT, FilesSource, absent
from ovf.remote.local import LocalFiles
from ovf.remote.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ovf.remote.files import Files
    from ovf.remote.source import Request, Summaries
    from ovf.remote.step import Rank, Step

#: How often Ray runs a task again whose worker or node died.
_RETRIES = 3
#: Seconds for a cluster to answer at all.
_KNOCK = 10.0
#: Seconds between two looks at what is done.
_LOOK = 1.0


@dataclass(frozen=True)
class _Node:
    """A node of the cluster as Ray tells of it."""

    id: str
    names: frozenset[str]
    alive: bool
    cpus: float


@dataclass
class _Holder:
    """Where some of the ranks lie.

    Attributes:
        host: The node as the user named it; `None` for files that every node sees.
        node: Its id.
        files: Its folder.
    """

    host: str | None
    node: _Node | None
    files: Files


class ClusterSource(Source):
    """Steps that a Ray cluster's nodes read."""

    def __init__(self, files: Files | None, hosts: Mapping[str, str] | None, *, mmap: bool = True) -> None:
        """Connect to the running cluster (`RAY_ADDRESS`, or the one this machine belongs to), or start a local one.

        Args:
            files: What every node sees, or
            hosts: node -> folder on its disk; a node is named by Ray's node name, its id, its address or host name.
            mmap: Whether nodes may map large local files, where that is safe.

        Raises:
            MissingExtraError: Ray is not installed.
            ValueError: No such node, or a name that several nodes have.
            OSError: The cluster cannot be reached.
        """
        self._ray, self._ours = _connect()
        self._by_name: dict[str, _Holder] = {}
        self._remarks: list[str] = []
        if files is not None:
            self._holders = [_Holder(None, None, files)]
        else:
            nodes = _nodes(self._ray)
            self._holders = [
                _Holder(host, _named(host, nodes), LocalFiles(folder, host)) for host, folder in (hosts or {}).items()
            ]
        for holder in self._holders:
            if isinstance(holder.files, LocalFiles):
                holder.files.map = mmap
        self.path = ", ".join(holder.files.text("") for holder in self._holders)

    def close(self) -> None:
        """Leave the cluster, where this object joined it."""
        if self._ours:
            self._ray.shutdown()

    def steps(self, request: Request) -> list[Step]:  # noqa: ARG002 - names cost little
        """See `Source`; every host lists its own folder."""
        asked = {holder.host: self._task(holder, _names).remote(holder.files) for holder in self._holders}
        sizes: dict[str, int] = {}
        for holder in self._holders:
            found = self._listed(holder, asked[holder.host])
            for name, size in sorted(found.items()):
                other = self._by_name.get(name)
                if other is not None and not name.endswith("/"):
                    msg = f"{holder.files.text(name)}: {other.files.text(name)} is the same rank's; give each rank's folder once"
                    raise ValueError(msg)
                self._by_name.setdefault(name, holder)
                sizes[name] = size
        self._sizes = sizes
        lead = self._lead()
        cut = "; ".join(self._remarks) or None
        return [step.remarked((), cut) for step in lead.files.steps(sizes)]

    def _lead(self) -> _Holder:
        """The holder whose folder names the step: all must agree."""
        alive = [h for h in self._holders if any(other is h for other in self._by_name.values())]
        if not alive:
            gone = "; ".join(self._remarks) or "no files"
            msg = f"{self.path}: nothing to analyse: {gone}"
            raise OSError(msg)
        names = {h.files.root.rpartition("/")[2]: h for h in alive}
        steps = [name for name in names if name.startswith("step")]
        if len(steps) > 1:
            msg = f"the hosts' folders are of different steps: {', '.join(names[s].files.text('') for s in steps)}"
            raise ValueError(msg)
        return names[steps[0]] if steps else alive[0]

    def _listed(self, holder: _Holder, listing: Any) -> dict[str, int]:  # noqa: ANN401 - a reference of Ray's
        """What a holder has; nothing when its node is gone."""
        errors = self._ray.exceptions
        try:
            version, found = self._ray.get(listing)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, ImportError):
                msg = f"{holder.host or 'the cluster'}: cannot import ovf there ({one_line(cause)}); install the same ovf on every node"
                raise OSError(msg) from None
            raise at(holder.files.text(""), cause) from None
        except errors.RayError as error:
            self._remarks.append(f"{self._gone(holder, error)}: its ranks are not read")
            return {}
        if version != ovf.__version__:
            msg = f"{holder.host or 'the cluster'}: has ovf {version}, here is {ovf.__version__}; install the same ovf on every node"
            raise OSError(msg)
        result: dict[str, int] = found
        return result

    def _gone(self, holder: _Holder, error: BaseException) -> str:
        """What happened to a task that Ray gave up."""
        node = holder.node
        if node is not None and not any(n.id == node.id and n.alive for n in _nodes(self._ray)):
            return f"the Ray node {holder.host} was lost"
        return f"Ray gave up after {_RETRIES} retries: {one_line(error).partition('. ')[0]}"

    def summaries(self, step: Step, request: Request) -> Summaries:
        """See `Source`."""
        rules = Path(request.rules).read_text(encoding="utf-8") if request.rules else None
        sizes = {rank.rank: self._sizes.get(rank.dump, 0) for rank in step.ranks}
        request.counters.add(total=sum(sizes.values()))
        waiting: dict[Any, Rank] = {}
        shared = {id(holder): self._ray.put(holder.files) for holder in self._holders}
        for rank in step.ranks:
            holder = self._holder(rank)
            task = self._task(holder, _summary, name=f"ovf rank {rank.rank}")
            waiting[task.remote(shared[id(holder)], rank, rules, request.kept)] = rank
        made: Summaries = {}
        try:
            while waiting:
                done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_LOOK)
                for reference in done:
                    rank = waiting.pop(reference)
                    made[rank.rank] = self._result(reference, rank, request)
                    request.counters.add(read=sizes[rank.rank])
        finally:
            for reference in waiting:  # stopped early
                self._ray.cancel(reference, force=True)
        return dict(sorted(made.items()))

    def _result(self, reference: Any, rank: Rank, request: Request) -> bytes:  # noqa: ANN401 - a reference of Ray's
        holder = self._holder(rank)
        errors = self._ray.exceptions
        try:
            made: bytes = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            return absent(rank, holder.files.text(rank.dump), one_line(cause), LEAVE_OUT, request.rules)
        except errors.RayError as error:
            why = self._gone(holder, error)
            advice = "analyse again when the node is back, or copy its ranks' summaries (ovf summarize) to another"
            return absent(rank, holder.files.text(rank.dump), why, advice, request.rules)
        return made

    def completed(self, step: Step, summaries: Summaries, request: Request) -> Summaries:
        """See `Source`; on this machine, which sees the files as the nodes do."""
        files = self._holders[0].files
        return {} if files.whole else FilesSource(files).completed(step, summaries, request)

    def _holder(self, rank: Rank) -> _Holder:
        """Who has a rank; a rank without a dump is where its folder is."""
        folder = rank.dump.rpartition("/")[0] + "/"
        return self._by_name.get(rank.dump) or self._by_name.get(folder) or self._holders[0]

    def _task(self, holder: _Holder, function: Any, **options: Any) -> Any:  # noqa: ANN401 - Ray's remote functions
        """The function as a task on the holder's node, or on any."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

        where: Any = "SPREAD"
        cpus = 1
        if holder.node is not None:
            where = NodeAffinitySchedulingStrategy(holder.node.id, soft=False)
            cpus = 1 if holder.node.cpus >= 1 else 0  # a head node may lend none
        task = self._ray.remote(max_retries=_RETRIES, num_cpus=cpus)(function)
        return task.options(scheduling_strategy=where, **options)


def _names(files: Files) -> tuple[str, dict[str, int]]:
    """Task: version of ovf, and names with sizes."""
    return ovf.__version__, {name: 0 if name.endswith("/") else files.size(name) or 0 for name in files.names()}


def _summary(files: Files, rank: Rank, rules: str | None, wants: list[str]) -> bytes:
    """Task: the summary of one rank."""
    with _as_file(rules) as path:
        return files.summarise(rank, path, wants)


@contextlib.contextmanager
def _as_file(rules: str | None) -> Iterator[str | None]:
    """The user's rules as a file, which is how the core takes them."""
    if rules is None:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(rules)
        file.flush()
        yield file.name


def _connect() -> tuple[Any, bool]:
    """Ray, and whether it was joined or started here."""
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "engine 'ray': Ray is not installed"
        error = MissingExtraError(msg)
        error.help = "pip install 'ovf-npu[ray]'"
        raise error from None
    if ray.is_initialized():
        return ray, False
    _knock(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        msg = f"engine 'ray': cannot join the Ray cluster: {one_line(error)}"
        raise ConnectionError(msg) from error
    return ray, True


def _knock(address: str) -> None:
    """See whether anybody answers where the cluster should be: Ray itself waits for minutes.

    Raises:
        ConnectionError: Nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # none, "auto", "local"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()
    except OSError as error:
        msg = f"engine 'ray': no Ray cluster answers at {address} (RAY_ADDRESS): {one_line(error)}"
        raise ConnectionError(msg) from error


def _nodes(ray: Any) -> list[_Node]:  # noqa: ANN401 - the module
    """All nodes Ray knows of, dead ones too."""
    keys = ("NodeName", "NodeID", "NodeManagerAddress", "NodeManagerHostname")
    return [
        _Node(
            row["NodeID"],
            frozenset(row[key] for key in keys if row.get(key)),
            bool(row["Alive"]),
            float(row.get("Resources", {}).get("CPU", 0)),
        )
        for row in ray.nodes()
    ]


def _named(host: str, nodes: list[_Node]) -> _Node:
    """The node of a name: a living one before a dead one.

    Raises:
        ValueError: None has it, or several.
    """
    found = [node for node in nodes if host in node.names]
    alive = [node for node in found if node.alive] or found[:1]
    if len(alive) == 1:
        return alive[0]
    counted = Counter(name for node in nodes if node.alive for name in node.names)
    unique = sorted(name for name, count in counted.items() if count == 1 and len(name) < 56)  # noqa: PLR2004 - not ids
    what = (
        f"{len(alive)} nodes of the Ray cluster have the name {host}"
        if alive
        else f"the Ray cluster has no node {host}"
    )
    msg = f"{what}; it has {', '.join(unique) or 'nodes that only their ids tell apart (ray list nodes)'}"
    raise ValueError(msg)
