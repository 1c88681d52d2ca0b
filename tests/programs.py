"""Small programs of several ranks that compute and communicate in ways no training step does.

A program is a list of actions in one global order, so some execution of it always exists. What
the ranks are called, what the groups are named and where the counters start is chosen when it is
written: the answer must not depend on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from hypothesis import strategies as st

from ovf.testing import Op, P2POp, ProcessGroup, Scalar, Step, TensorStat

DTYPE = "torch.float32"
SHAPE = (4, 3)
NAN, INF = math.nan, math.inf
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter_tensor", "broadcast", "reduce", "gather")


class Action(NamedTuple):
    """One thing that happens.

    Attributes:
        what: `compute`, a collective, `send` or `exchange`.
        rank: who; the root of a rooted collective, the source of a pair.
        others: the other members.
        how: which op, which damage, what is asynchronous: read by each action in its own way.
    """

    what: str
    rank: int
    others: tuple[int, ...]
    how: int


class Program(NamedTuple):
    ranks: int
    actions: tuple[Action, ...]
    left_out: frozenset[int] = frozenset()  # records (in global order) that the dumps lack
    missing: frozenset[int] = frozenset()  # ranks that are not dumped


@st.composite
def programs(draw, *, min_ranks=1, max_ranks=4, max_actions=14, damaged=True):
    ranks = draw(st.integers(min_ranks, max_ranks))
    kinds = ["compute"] * 5
    if ranks > 1:
        kinds += ["send"] * 3 + ["exchange"] + list(COLLECTIVES)
    actions = []
    for _ in range(draw(st.integers(1, max_actions))):
        what = draw(st.sampled_from(kinds))
        rank = draw(st.integers(0, ranks - 1))
        others = [r for r in range(ranks) if r != rank]
        if what in ("send", "exchange"):
            others = [draw(st.sampled_from(others))]
        elif what != "compute" and draw(st.booleans()):
            others = others[: draw(st.integers(1, len(others)))]
        actions.append(Action(what, rank, tuple(others), draw(st.integers(0, 63))))
    left_out: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    if damaged and draw(st.integers(0, 2)) == 0:
        left_out = draw(st.frozensets(st.integers(0, 30), max_size=2))
        missing = draw(st.frozensets(st.integers(0, ranks - 1), max_size=1))
    if len(missing) == ranks:
        missing = frozenset()
    return Program(ranks, tuple(actions), left_out, missing)


def step_of(program, *, called=None, group_prefix="g", first_call=0, extra_rank=False, encoding=None):
    """The dumps of a program.

    Args:
        program: what happens.
        called: the global rank of each rank, by default its own number.
        group_prefix: what names of groups begin with.
        first_call: what the call counters begin at.
        extra_rank: whether a rank that computes something finite is added behind the others.
        encoding: how it is spelled.
    """
    writer = _Writer(program, called or range(program.ranks), group_prefix, first_call)
    for action in program.actions:
        writer.act(action)
    writer.finish()
    ranks = {r: ops for r, ops in writer.dumps().items() if ops}
    if extra_rank:
        ranks[max(writer.called) + 1] = [Op("Torch.mul.0.forward", _body([_finite(991)], [_finite(992)]))]
    step = Step(ranks, source=program)
    if encoding is not None:
        step.encoding = encoding
    return step


def _finite(number):
    return TensorStat(DTYPE, SHAPE, 1.0 + number, -1.0 - number, number / 2, 3.0 + number)


def _bad(kind):
    top, bottom = {"nan": (NAN, NAN), "+inf": (INF, -1.0), "-inf": (1.0, -INF)}[kind]
    return TensorStat(DTYPE, SHAPE, top, bottom, NAN if kind == "nan" else top, INF)


def _kind(stat):
    if stat.max != stat.max:
        return "nan"
    return "+inf" if stat.max == INF else "-inf" if stat.min == -INF else None


def _body(args, output, **kwargs):
    return {"input_args": args, "input_kwargs": kwargs, "output": output}


class _Writer:
    def __init__(self, program, called, group_prefix, first_call):
        self.called = list(called)
        self.prefix = group_prefix
        self.program = program
        self.first_call = first_call
        self.fresh = 0
        self.records = 0
        self.calls: dict = defaultdict(int)
        self.ops: dict[int, list] = {r: [] for r in range(program.ranks)}
        self.value = {r: self._new() for r in range(program.ranks)}
        self.arriving: dict[int, list] = {r: [] for r in range(program.ranks)}

    def _new(self):
        self.fresh += 1
        return _finite(self.fresh)

    def _op(self, rank, api, body, prefix="Torch", way="forward"):
        number = self.calls[rank, api] + self.first_call
        self.calls[rank, api] += 1
        keep = self.records not in self.program.left_out
        self.records += 1
        if keep:
            self.ops[rank].append(Op(f"{prefix}.{api}.{number}.{way}", body))

    def dumps(self):
        return {self.called[r]: ops for r, ops in self.ops.items() if r not in self.program.missing}

    def finish(self):
        """The last thing each rank does: a loss and a gradient, on some ranks."""
        for rank in range(self.program.ranks):
            value = self.value[rank]
            if (len(self.program.actions) + rank) % 3 == 0:
                out = TensorStat(DTYPE, (), value.max, value.max, value.max, value.max)
                self._op(rank, "sum", _body([value], [out]))
                way = {
                    "input": [self._new()],
                    "output": [value if _kind(value) == "nan" else self._new()],
                }
                self._op(rank, "sum", way, way="backward")

    def act(self, action):
        if action.what == "compute":
            self.compute(action.rank, action.how)
        elif action.what == "send":
            self.send(action.rank, action.others[0], action.how)
        elif action.what == "exchange":
            self.exchange(action.rank, action.others[0], action.how)
        else:
            self.collective(action)

    def compute(self, rank, how):
        what = how % 8
        if self.arriving[rank] and how & 32:
            self.value[rank] = self.arriving[rank].pop(0)
        value = self.value[rank]
        bad = _kind(value)
        if what == 0:
            api, args, out = "exp", [value], value if bad else _bad("+inf")
        elif what == 1:
            api, args, out = "div", [value, self._new()], value if bad else _bad("nan")
        elif what == 2:
            api, args, out = "nan_to_num", [value], self._new()
        elif what == 3:
            infinite = Scalar("float", -INF)
            api, args, out = "masked_fill", [value, infinite], value if bad else _bad("-inf")
        elif what == 4:
            out = _bad("nan") if bad and how & 16 else self._new()
            api, args = "softmax", [value]
        elif what == 5:
            outside = _bad(("nan", "+inf", "-inf")[how // 8 % 3])._replace(shape=(7, how + 1))
            api, args, out = "add", [value, outside], outside._replace(shape=SHAPE)
        else:
            api, args, out = "mul", [value], value if bad else self._new()
        self._op(rank, api, _body(args, [out]))
        self.value[rank] = out

    def _group(self, members):
        if len(members) == self.program.ranks and len(members) % 2:
            return None  # the default group
        ranks = tuple(sorted(self.called[m] for m in members))
        name = "-".join(map(str, sorted(members)))
        return ProcessGroup(ranks, f"{self.prefix}{name}")

    def collective(self, action):
        root, how, api = action.rank, action.how, action.what
        members = sorted((root, *action.others))
        group = self._group(members)
        if api == "broadcast":
            givers, getters = [root], [m for m in members if m != root]
        elif api in ("reduce", "gather"):
            givers, getters = members, [root]
        else:
            givers = getters = members
        kinds = {_kind(self.value[m]) for m in givers} - {None}
        if how & 3 == 3 and how & 4:
            kinds.add("nan")  # the communication itself breaks it
        worst = next((k for k in ("nan", "+inf", "-inf") if k in kinds), None)
        is_async = how & 8 > 0
        for m in members:
            mine = self.value[m]
            got = mine
            if m in getters:
                got = _bad(worst) if worst else self._new()
            kwargs = {"group": group} if group else {}
            if api in ("broadcast", "reduce"):
                kwargs["src" if api == "broadcast" else "dst"] = Scalar("int", self.called[root])
            elif api == "gather":
                kwargs["dst"] = Scalar("int", self.called[root])
            if is_async:
                kwargs["async_op"] = Scalar("bool", value=True)
            tail = list(kwargs.values())
            buffer = _bad("nan") if how & 16 else None
            if api in ("all_reduce", "broadcast", "reduce"):
                args, out = [mine], [got]
            elif api == "all_gather":
                args, out = [[buffer, buffer], mine], [[got, mine], mine]
            elif api == "gather":
                args = [mine, [buffer] if m == root else None]
                out = [mine, [got] if m == root else None]
            else:
                args, out = [buffer, mine], [got, mine]
            self._op(m, api, _body(args, [*out, *tail], **kwargs), prefix="Distributed")
            if m in getters:
                self._arrive(m, got, is_async)

    def _arrive(self, rank, got, is_async):
        if is_async:
            self.arriving[rank].append(got)
        else:
            self.value[rank] = got

    def send(self, source, destination, how):
        value = self.value[source]
        got = _bad("nan") if how & 3 == 3 and how & 4 else value
        there, here = Scalar("int", self.called[destination]), Scalar("int", self.called[source])
        send = "isend" if how & 16 else "send"
        late = how & 8 > 0
        records = [
            (source, send, _body([value, there], [value, there])),
            (destination, "irecv" if late else "recv", _body([None, here], [got, here])),
        ]
        if late and how & 32:
            records.reverse()  # the receive is posted first
        for rank, api, body in records:
            self._op(rank, api, body, prefix="Distributed")
        self._arrive(destination, got, late)

    def exchange(self, one, two, how):
        """Each sends to the other: as one batch, or receives posted before the sends."""
        values = {one: self.value[one], two: self.value[two]}
        for me, other in ((one, two), (two, one)):
            there = self.called[other]
            if how & 8:
                sent = P2POp("isend", there, values[me], self.prefix)
                entry = P2POp("irecv", there, values[other], self.prefix)
                before = entry._replace(tensor=self._new())
                body = _body([[sent, before]], [[sent, entry]])
                self._op(me, "batch_isend_irecv", body, prefix="Distributed")
            else:
                peer = Scalar("int", there)
                self._op(me, "irecv", _body([None, peer], [values[other], peer]), prefix="Distributed")
                if how & 16:
                    self.compute(me, 6)
                self._op(me, "isend", _body([values[me], peer], [values[me], peer]), prefix="Distributed")
            self.arriving[me].append(values[other])
