"""The rules of `docs/semantics.md`, done again in the slowest and most obvious way.

Whole files are parsed with `json`; what a value came from is looked up by walking back over a list;
order across ranks is reachability in a graph of events. Only the table of operators is shared with
the core. Numbers in comments are those of the rules.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ovf import _core

RULES = json.loads(_core.effective_rules())
NAN, POS, NEG = "nan", "+inf", "-inf"
SEVERITY = {NAN: 3, POS: 2, NEG: 1}
INPUTS = ("input_args", "input_kwargs", "input", "parameters")
LATE = 1 << 60
ROOTS_ORDERED = 16


def severity(kinds):
    return max((SEVERITY[k] for k in kinds), default=0)


# --- a file -----------------------------------------------------------------------------------------


def read_dump(path):
    """The header, the ops in file order, and whether the file is whole."""
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        whole = json.loads(text)
    except ValueError:
        header, ops = salvage(text)
        return header, ops, "cut" if text else "empty"
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), dict):
        return {}, {}, "damaged"
    header = {k: v for k, v in whole.items() if k != "data"}
    return header, whole["data"], "complete" if whole["data"] else "empty"


def salvage(text):
    """What stands in a cut file before the cut."""
    decode = json.JSONDecoder().raw_decode
    header: dict[str, Any] = {}
    ops: dict[str, Any] = {}

    def skip(at):
        return re.compile(r"\s*").match(text, at).end()

    def members(at, into, nested):
        at = skip(at) + 1  # the brace
        while True:
            key, at = decode(text, skip(at))
            at = skip(skip(at) + 1)  # the colon
            if nested and key == "data" and text[at] == "{":
                at = members(at, ops, nested=False)
            else:
                into[key], at = decode(text, at)
            at = skip(at)
            if text[at] == "}":
                return at + 1
            at += 1  # the comma

    with contextlib.suppress(ValueError, IndexError):
        members(0, header, nested=True)
    return header, ops


# --- names and the table ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Name:
    prefix: str
    api: str
    path: str
    number: int | None
    direction: str
    base: str

    @property
    def is_module(self):
        return self.prefix in ("Module", "Cell")

    @property
    def call(self):
        return self.base, self.number

    @property
    def in_place(self):
        a = self.api
        return (a.endswith("_") and not a.endswith("__")) or (a.startswith("__i") and a.endswith("__"))

    def inside(self, other):
        return not other.path or self.path.startswith(other.path + ".")


def parse_name(text):
    head, dot, rest = text.partition(".")
    head, rest = (head, rest) if dot else ("", text)
    if head in ("Module", "Cell"):
        body, number = rest, None
        if m := re.fullmatch(r"(.*)\.([0-9]+)", rest, re.DOTALL):
            body, number = m[1], int(m[2])
        direction = "forward"
        for way in ("forward", "backward", "parameters_grad"):
            if body.endswith("." + way):
                body, direction = body[: -len(way) - 1], way
                break
        path, _, api = body.rpartition(".")
        return Name(head, api, path, number, direction, f"{head}.{body}")
    body, direction = text, None
    for way in ("forward", "backward", "debug"):
        if text.endswith("." + way):
            body, direction = text[: -len(way) - 1], way
            break
    base, number = body, None
    if m := re.fullmatch(r"(.*)\.([0-9]+)", body, re.DOTALL):
        base, number = m[1], int(m[2])
    prefix, _, api = base.rpartition(".")
    if direction is None and number is None:
        api = re.sub(r"(_[0-9]*)?_[0-9]+$", "", api)
    return Name(prefix, api, "", number, direction or "forward", base)


def part(name):
    """The part of the step that the end of a name tells."""
    tail = re.sub(r"\.[0-9]+$", "", name)
    if tail.endswith(".backward"):
        return "backward"
    return "gradient" if tail.endswith(".parameters_grad") else "forward"


def matches(pattern, name):
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    if "." in escaped:
        prefix, _, api = escaped.rpartition(".")
        return fnmatchcase(name.prefix, prefix) and fnmatchcase(name.api, api)
    return fnmatchcase(name.api, escaped)


def rows_of(name):
    rows: list[dict] = []
    for row in RULES["operators"]:
        if any(matches(p, name) for p in row["match"]):
            if row.get("off"):
                rows = [r for r in rows if r["is"] != row["is"]]
            else:
                rows.append(row)
    return rows


def says(rows, what):
    return any(r["is"] == what for r in rows)


def names(rows, what, argument):
    """Whether the table's rule `what` is about this argument."""
    for row in rows:
        if row["is"] == what:
            if argument.field == "input_args" and argument.position in row.get("args", []):
                return True
            if argument.field == "input_kwargs" and argument.keyword in row.get("kwargs", []):
                return True
    return False


# --- values -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple
    statistics: tuple  # Max, Min, Mean, Norm

    @property
    def kinds(self):
        return kinds_of(self.statistics[0]) | kinds_of(self.statistics[1])

    @property
    def known(self):
        return self.statistics[0] is not None or self.statistics[1] is not None

    @property
    def count(self):
        return math.prod(self.shape)

    @property
    def floating(self):
        return not self.dtype.rsplit(".")[-1].lower().startswith(("int", "uint", "bool"))

    @property
    def looks(self):
        return self.dtype, self.shape


@dataclass(frozen=True)
class Argument:
    field: str
    path: tuple
    value: Any  # a Tensor, a Number, a Group, a P2P, a bool, or None for all else

    @property
    def position(self):
        if not self.path:
            return 0
        return self.path[0] if isinstance(self.path[0], int) else None

    @property
    def keyword(self):
        return self.path[0] if self.path and isinstance(self.path[0], str) else None

    @property
    def slot(self):
        text = self.field
        for i, p in enumerate(self.path):
            dot = "" if i == 0 and not self.field else "."
            text += f"[{p}]" if isinstance(p, int) else f"{dot}{p}"
        return text


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Group:
    ranks: tuple = ()
    id: str = ""
    listed: tuple = field(default=(), compare=False)  # as recorded


@dataclass(frozen=True)
class P2P:
    op: str
    peer: int | None
    tag: int
    group_id: str


def kinds_of(number):
    if number is None or number == "nan":
        return frozenset() if number is None else frozenset({NAN})
    return frozenset({POS if number > 0 else NEG}) if math.isinf(number) else frozenset()


def as_float(number):
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def statistic(value):
    """A statistic, comparable by `==`: every NaN is the text "nan"."""
    if isinstance(value, str):
        text = value.strip().lower()
        bare = text.lstrip("+-")
        if bare in ("nan", "inf", "infinity"):
            value = math.nan if bare == "nan" else -math.inf if text[0] == "-" else math.inf
        elif not re.match(r"[+-]?[0-9.]", text):
            return None
        else:
            with contextlib.suppress(ValueError):  # digits are a large number at most
                value = max(-sys.float_info.max, min(float(value), sys.float_info.max))
    try:
        number = None if value is None else as_float(value)
    except (TypeError, ValueError):
        return None
    return "nan" if number is not None and math.isnan(number) else number


STATISTICS = ("Max", "Min", "Mean", "Norm")
SKIPPED = ("requires_grad", "md5", "data_name", "tensor_stat_index", "md5_index", "dirty_valid_len")


def is_known(key, value):
    """Whether a dict's entry describes the dict itself; all other entries are values inside it."""
    if key in STATISTICS or key in SKIPPED or key == "value":
        return not isinstance(value, dict | list)
    if key in ("type", "class_type", "dtype", "op", "group_id"):
        return isinstance(value, str)
    if key in ("shape", "group_ranks"):
        return isinstance(value, list)
    return key in ("peer", "tag") and not isinstance(value, dict | list | str)


def what_is(record):
    """What a dict says of itself."""
    known = {k: v for k, v in record.items() if is_known(k, v)}
    numbers = [n for n in known.get("group_ranks", []) if isinstance(n, int)]
    peer = known.get("peer")
    kind = known.get("type", "")
    if known.get("class_type", "").endswith("P2POp") or (peer is not None and known.get("op")):
        peer = int(peer) if peer is not None and peer >= 0 else None
        return P2P(known.get("op", ""), peer, int(known.get("tag") or 0), known.get("group_id", ""))
    if "group_ranks" in known or kind.endswith("ProcessGroup"):
        return Group(tuple(sorted(set(numbers))), known.get("group_id", ""), tuple(numbers))
    has_statistics = any(k in known for k in (*STATISTICS, "tensor_stat_index"))
    if has_statistics or ("shape" in known and known.get("dtype")):
        shape = tuple(n for n in known.get("shape", []) if isinstance(n, int))
        return Tensor(known.get("dtype", ""), shape, tuple(statistic(known.get(k)) for k in STATISTICS))
    value = known.get("value")
    if isinstance(value, str):
        text = statistic(value) if kind.startswith(("float", "int", "double", "numpy.")) else None
        return None if text is None else Number(math.nan if text == "nan" else text)
    return plain(value)


def plain(value):
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, bool) else None
    return Number(as_float(value))


def arguments_in(field_name, value, path=()):
    """All values below `value`, a dict's own before those inside it."""
    if isinstance(value, dict):
        found = [Argument(field_name, path, what_is(value))]
        for key, inner in value.items():
            if not is_known(key, inner):
                found += arguments_in(field_name, inner, (*path, key))
        return found
    if isinstance(value, list):
        return [a for i, v in enumerate(value) for a in arguments_in(field_name, v, (*path, i))]
    return [Argument(field_name, path, plain(value))]


@dataclass
class Op:
    index: int
    raw: str
    name: Name
    part: str
    arguments: list
    register: bool | None
    recompute: bool
    has_inputs: bool
    has_output: bool
    shows: bool  # holds a non-finite number, as such or as text

    def tensors(self, *fields):
        return [(a, a.value) for a in self.arguments if a.field in fields and isinstance(a.value, Tensor)]

    @property
    def known(self):
        return any(isinstance(a.value, Tensor) and a.value.known for a in self.arguments)


def read_op(index, raw, body):
    name = parse_name(raw)
    original = body
    found: list[Argument] = []
    recorded = name.direction in ("parameters_grad", "debug")
    if isinstance(body, list) or (
        recorded and isinstance(body, dict) and next(iter(body), "") in ("type", "class_type", "dtype")
    ):
        found = arguments_in("", body)
        body = {}
    body = body if isinstance(body, dict) else {}
    for key, value in body.items():
        if key in (*INPUTS, "output"):
            found += arguments_in(key, value)
        elif recorded and key not in ("is_recompute", "is_nan", "is_nan_index"):
            found += arguments_in("", value, (key,))
    register = body.get("is_nan")
    register = bool(register) if isinstance(register, int | float) else None
    has_inputs = any(k in body for k in ("input_args", "input_kwargs", "input"))
    return Op(
        index, raw, name, part(raw), found, register, body.get("is_recompute") is True, has_inputs,
        "output" in body, shows_something(original),
    )  # fmt: skip


def shows_something(value):
    if isinstance(value, dict):
        return any(map(shows_something, value.values()))
    if isinstance(value, list):
        return any(map(shows_something, value))
    number = None if isinstance(value, bool) else statistic(value)
    return number == "nan" or (number is not None and math.isinf(number))


# --- one rank ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Node:
    """An op that takes in or gives out something bad."""

    op: int
    kinds: frozenset
    role: str = ""  # origin, promoted, parameter, unexplained, received, register, linked; "": no root
    real: bool = False  # gives out something bad that means something
    parents: list = field(default_factory=list)  # closest first
    absorbed: bool = False
    communicated: bool = False
    seed: bool = False
    harm: bool = False
    single: bool = False  # all bad outputs are single numbers
    container: bool = False
    recompute: bool = False
    readers: list = field(default_factory=list)
    conditions: list = field(default_factory=list)
    event: Any = None
    forward: Any = None
    slot: str | None = None
    bad_in: tuple | None = None
    bad_out: tuple | None = None

    @property
    def root(self):
        node = self
        while node.parents:
            node = node.parents[0]
        return node


@dataclass(eq=False)
class Written:
    """A bad value that somebody wrote."""

    tensor: Tensor
    node: Node
    meaning: str  # real, intended, garbage
    near: bool
    delivered: bool = False
    weight_gradient: bool = False
    live: bool = True
    read: bool = False


@dataclass(eq=False)
class Side:
    known: bool
    kinds: frozenset
    real: bool = False
    node: Node | None = None
    conditions: list = field(default_factory=list)


@dataclass(eq=False)
class Event:
    """A communication on one rank."""

    rank: int
    op: int
    raw: str
    api: str
    flow: str
    group: Group
    root: int | None
    peer: int | None
    tag: int
    is_async: bool
    count: int
    batched: bool
    parts: int = 1  # how many members there are at least
    given: Side | None = None
    got: Side | None = None
    received: list = field(default_factory=list)
    superseded: bool = False
    read_at: int | None = None
    match: Any = None
    receipt: str = ""  # propagated, intended, origin, entered, garbage
    giver: Any = None  # of what was propagated
    candidate: Any = None  # of an origin, or what entered
    given_real: bool = False


class Rank:
    def __init__(self, number, label, header, data, completeness):
        self.number, self.label, self.header = number, label, header
        self.completeness = completeness
        self.ops = [read_op(i, raw, body) for i, (raw, body) in enumerate(data.items())]
        self.nodes: list[Node] = []
        self.written: list[Written] = []
        self.events: list[Event] = []
        self.states: list[str] = []
        self.masks = 0
        self.masked_ends: list[Node] = []
        self.weight_gradients: list[Node] = []
        self.by_call: dict = {}  # bad forward calls
        modules = all(op.name.is_module for op in self.ops)
        self.modules_only = bool(self.ops) and (header.get("level") == "L0" or modules)
        showing = [op for op in self.ops if op.shows]
        self.inputs_only = bool(showing) and not any(op.has_output for op in [*self.ops[:64], *showing])
        gradients = [op.index for op in self.ops if op.part != "forward"]
        self.first_backward = min(gradients, default=None)
        self.last_backward = max(gradients, default=None)
        self.losses: dict = {}
        for before, op in zip([None, *self.ops], self.ops, strict=False):
            if op.part == "backward" and (before is None or before.part == "forward"):
                self.losses[op.name.call] = not self.losses
        values = any(op.known for op in self.ops)
        registers = any(op.register is not None for op in self.ops)
        self.has_statistics = values or registers
        self.registers = header.get("task") == "nan_check" or (registers and not values)
        for op in self.ops:
            if op.name.prefix in RULES["communication_prefixes"]:
                self.states.append(self.communicate(op))
            else:
                self.states.append(self.compute(op))
        self.finish()

    # --- where a bad value came from ---

    def find(self, tensor, *, weight, gradient=False):
        """The written value that explains `tensor`, and how closely: 0 exact, 1 reshaped, 2 near.

        A gradient is not computed from the gradient of a weight; all else looks there last.
        """
        hit = self.find_among([w for w in self.written if not w.weight_gradient], tensor, weight)
        if not gradient and (hit is None or hit[0].meaning == "garbage"):
            late = self.find_among([w for w in self.written if w.weight_gradient], tensor, weight)
            hit = late or hit
        if hit:
            hit[0].read = True
        return hit

    def find_among(self, written, tensor, weight):
        hit = self.recorded(written, tensor)
        if hit is None or hit[0].meaning == "garbage":
            near = self.nearest(written, tensor, weight)
            if near and (hit is None or written.index(near) > written.index(hit[0])):
                return near, 2
        return hit

    def recorded(self, written, tensor):
        def last(same):
            return next((w for w in reversed(written) if same(w.tensor)), None)

        exact = last(lambda t: t == tensor)
        if exact:
            return exact, 0
        view = last(lambda t: (t.dtype, t.count, t.statistics) == (tensor.dtype, tensor.count, tensor.statistics))
        if view:
            return view, 1
        extremes = tensor.statistics[:2]
        if any(s not in (None, "nan", 0) and math.isfinite(s) for s in extremes):
            part_of = last(lambda t: t.statistics[:2] == extremes)
            return (part_of, 1) if part_of else None
        return None

    def nearest(self, written, tensor, weight):
        for w in reversed(written):
            if not (w.near and w.live and w.meaning == "real"):
                continue
            if weight and not w.delivered:
                continue
            if tensor.kinds == {NEG} and (w.tensor.kinds != {NEG} or w.read):
                continue
            return w
        return None

    def write(self, tensors, node, meaning, *, near=True, delivered=False):
        of_weight = self.ops[node.op].name.direction == "parameters_grad"
        for tensor in tensors:
            self.written.append(Written(tensor, node, meaning, near, delivered, of_weight))

    # --- one op ---

    def compute(self, op):
        rows = rows_of(op.name)
        recorded = op.name.direction in ("parameters_grad", "debug")
        outputs = [t for _, t in op.tensors("output", *([""] if recorded else []))]
        bad_out = [t for t in outputs if t.kinds]
        out = frozenset().union(*(t.kinds for t in bad_out))
        tells = any(t.known and t.floating for t in outputs)
        asked = frozenset().union(
            *(
                kinds_of("nan" if math.isnan(a.value.value) else a.value.value)
                for a in op.arguments
                if isinstance(a.value, Number) and a.field in INPUTS
            )
        )
        bad_in = []
        for argument, tensor in op.tensors(*INPUTS):
            if tensor.kinds:
                if names(rows, "overwrites", argument):
                    self.overwritten(tensor)
                else:
                    bad_in.append((argument, tensor))
        if not bad_in and not bad_out:
            if self.registers and op.register and not tells:
                return self.register(op)
            return "unknown" if self.registers and op.register is None and not op.known else "clean"

        # What each bad input means.
        real, masks, garbage, unexplained, mask_like = [], [], [], [], []
        for argument, tensor in bad_in:
            weight = argument.field == "parameters" or names(rows, "parameters", argument)
            gradient = op.name.direction == "backward"
            hit = self.find(tensor, weight=weight, gradient=gradient)
            if hit and hit[0].meaning == "real":
                real.append((hit[1], hit[0]))
            elif hit and hit[0].meaning == "intended":
                masks.append(hit)
                asked |= tensor.kinds
            elif hit:
                garbage.append((hit, argument))
            elif tensor.kinds == {NEG} and not weight and op.name.direction == "forward":
                mask_like.append(tensor)
                asked |= tensor.kinds
            else:
                unexplained.append((argument, tensor, weight))
        carries = says(rows, "carries")
        judgement = self.judge(
            rows, out, asked, tells=tells, real=real, unexplained=unexplained, garbage=garbage,
            carries=carries,
        )  # fmt: skip
        into_weights = judgement == "observed" and op.name.direction == "backward" and (real or unexplained)
        slice_assigned = says(rows, "writes_unseen")
        lost = not op.has_output and (self.inputs_only or op is self.ops[-1])
        unseen = judgement == "observed" and (slice_assigned or lost) and (real or unexplained)
        if into_weights or unseen:
            judgement = "propagated" if real else "unexplained"
        if judgement == "origin" and not op.has_inputs and op.name.direction == "forward":
            # Outputs alone are dumped: what came before tells whether the inputs were finite.
            hit = self.find(bad_out[0], weight=False)
            if hit and hit[0].meaning == "real":
                real, judgement = [(hit[1], hit[0])], "propagated"
        if judgement == "origin" and not op.has_inputs and not recorded and out == {NEG}:
            judgement = "intended"  # the arguments are not dumped: it looks like a mask
        child = adopted = None
        container = False
        if judgement == "origin" and op.name.is_module and op.name.direction != "parameters_grad":
            child, adopted, masked, container = self.inside(op, bad_out)
            judgement = "propagated" if child else "intended" if masked else "origin"

        node = Node(op.index, out or frozenset().union(*(t.kinds for _, t in bad_in)))
        node.role = {"origin": "origin", "promoted": "promoted"}.get(judgement, "")
        if judgement == "origin" and op.name.direction == "backward":
            node.forward = self.by_call.get(op.name.call)
            node.role = "linked" if node.forward else "origin"
        if judgement == "unexplained":
            node.role = "parameter" if any(u[2] for u in unexplained) else "unexplained"
        if judgement == "absorbed" and unexplained and not real:
            node.role = "unexplained"
        node.seed = bool(unseen and not slice_assigned)
        node.real = bool(into_weights or unseen or (out and judgement not in ("intended", "garbage")))
        node.single = bool(bad_out) and all(t.count == 1 for t in bad_out)
        node.container, node.recompute = container, op.recompute
        node.conditions = [c for hit in masks for c in hit[0].node.conditions]
        self.nodes.append(node)

        # Who read what.
        real.sort(key=lambda r: (r[0], -self.written.index(r[1])))
        for link, w in real:
            if judgement != "observed":
                self.link(w.node, node)
                if judgement == "absorbed" and link < 2:
                    w.node.absorbed = True
        for hit in masks:
            hit[0].node.readers.append(op.index)
        if judgement == "absorbed":
            for link, w in [
                *real,
                *((h[1], h[0]) for h in masks),
                *((h[1], h[0]) for h, _ in garbage),
            ]:
                if link < 2:
                    w.live = False
        if child:
            self.link(child, node)
        if adopted:
            self.adopt(node, adopted)
        if judgement == "intended" and not masks:
            self.masks += 1

        # What is known from now on.
        if unexplained:
            node.slot, node.bad_in = unexplained[0][0].slot, unexplained[0][1].looks
        elif garbage and judgement == "unexplained":
            node.slot = garbage[0][1].slot
        node.bad_out = bad_out[0].looks if bad_out else None
        for _, tensor in bad_in:
            if any(tensor is u[1] for u in unexplained):
                self.write([tensor], node, "real", near=not carries)
            elif any(tensor is t for t in mask_like):
                self.write([tensor], node, "intended")
        meaning = judgement if judgement in ("intended", "garbage") else "real"
        self.write(bad_out, node, meaning, near=not (judgement == "unexplained" and carries))
        if op.name.direction == "forward" and (node.real or real or unexplained):
            self.by_call[op.name.call] = node
        if says(rows, "writes_unseen") and (real or unexplained):
            for argument, tensor in op.tensors(*INPUTS):
                if names(rows, "writes_unseen", argument):
                    node.real = True
                    self.write([Tensor(*tensor.looks, ("nan",) * 4)], node, "real")
        self.seed(op, rows, node, judgement, out, bad_out, computed=bool(masks))
        return {
            "promoted": "origin", "unexplained": "origin", "observed": "absorbed", "garbage": "ignored",
        }.get(judgement, judgement)  # fmt: skip

    def judge(self, rows, out, asked, *, tells, real, unexplained, garbage, carries):
        if not out:
            bad = real or unexplained or garbage or asked
            return "clean" if not bad else "absorbed" if tells else "observed"
        if real:
            return "propagated"  # 4
        if unexplained:
            return "unexplained"  # 5
        allowed = asked | {POS, NEG} if says(rows, "flips_sign") and asked & {POS, NEG} else asked
        if asked and out <= allowed:
            return "intended"  # 1
        if garbage:
            return "garbage" if carries else "unexplained"  # 2
        if says(rows, "uninitialised"):
            return "garbage"
        if asked:
            return "promoted"  # 3
        return "intended" if says(rows, "creates") else "origin"

    def overwritten(self, tensor):
        """Garbage that is written over is gone."""
        for w in reversed(self.written):
            if w.tensor == tensor:
                if w.meaning == "garbage":
                    self.written.remove(w)
                return

    def link(self, parent, child):
        if parent is not child:
            parent.readers.append(child.op)
            if parent not in child.parents:
                child.parents.append(parent)

    def adopt(self, parent, child):
        if parent.root is child:
            return False  # it would be its own cause
        child.role, child.parents = "", [parent]
        return True

    def register(self, op):
        """9."""
        node = Node(op.index, frozenset(), "register", real=True, seed=True)
        first = next((n for n in self.nodes if n.role == "register"), None)
        self.nodes.append(node)
        if first:
            self.adopt(first, node)
        return "propagated" if first else "origin"

    # --- harm (6) ---

    def ends_forward(self, index):
        if self.ops[index].part != "forward":
            return False
        if index + 1 < len(self.ops):
            return self.ops[index + 1].part != "forward"
        return self.first_backward is None

    def seed(self, op, rows, node, judgement, out, bad_out, *, computed):
        direction = op.name.direction
        if direction == "parameters_grad":
            node.seed = True
            self.weight_gradients.append(node)
            return
        if direction == "debug" and out:
            node.seed = True
        if not out:
            return
        first = self.losses.get(op.name.call)
        loss = direction == "forward" and first is not None and (first or all(t.count == 1 for t in bad_out))
        end = loss or self.ends_forward(op.index)
        if judgement == "intended":
            if computed and end and any(t.count == 1 for t in bad_out):
                self.masked_ends.append(node)
            return
        late = self.last_backward is not None and op.index > self.last_backward
        if node.real and (end or (late and (op.name.in_place or says(rows, "norm")))):
            node.seed = True

    # --- modules ---

    def inside(self, op, bad_out):
        """What in a module whose input was finite made its output bad: child, adopted, masked, container."""
        start, container = 0, False
        for before in reversed(self.ops[: op.index]):
            name = before.name
            if name.is_module and name.direction != "parameters_grad":
                if not name.inside(op.name):
                    start = before.index + 1
                    break
                container = True
        span = [n for n in self.nodes if start <= n.op < op.index]
        found = None
        for tensor in bad_out:
            hit = self.find(tensor, weight=False, gradient=op.name.direction == "backward")
            if not hit or hit[1] != 0 or hit[0].node not in span:
                continue
            if hit[0].meaning == "real":
                found = hit[0].node
                break
            if hit[0].meaning == "intended" and len(bad_out) == 1:
                return None, None, True, False
        if found is None:
            found = next((n for n in reversed(span) if n.real or n.role == "unexplained"), None)
        if found is None:
            return None, None, False, container
        root = found.root
        if self.modules_only and root.role == "unexplained" and root in span:
            name = self.ops[root.op].name
            if name.inside(op.name) and name.direction == op.name.direction:
                return None, root, False, False
        return found, None, False, False

    # --- communication ---

    def communicate(self, op):
        state = "clean"
        if self.registers and op.register:
            state = self.register(op)
        elif self.registers and op.register is None and not op.known:
            state = "unknown"
        for event, gives, gets in exchanges(self.number, op):
            self.supersede(event)
            self.give(op, event, gives)
            self.get(op, event, gets)
            self.events.append(event)
            sides = [s for s in (event.given, event.got) if s]
            if any(s.real for s in sides):
                state = "propagated"
            elif any(s.kinds for s in sides):
                state = "intended"
        return state

    def supersede(self, inner):
        """The call made inside a batch has the truth; the batch's entry for it is left out."""
        if inner.batched or inner.api not in ("isend", "irecv"):
            return
        at = inner.op
        for outer in reversed(self.events):
            if outer.op + 1 < at or outer.api not in ("isend", "irecv"):
                return
            same = (outer.api, outer.peer) == (inner.api, inner.peer)
            if outer.batched and same and not outer.superseded and outer.op < inner.op:
                outer.superseded = True
                return
            at = outer.op

    def side(self, tensors):
        return Side(
            any(t.known or not t.floating for _, t in tensors),
            frozenset().union(*(t.kinds for _, t in tensors)),
        )

    def give(self, op, event, tensors):
        if not tensors:
            return
        side = event.given = self.side(tensors)
        sources, outside = [], []
        for argument, tensor in tensors:
            if not tensor.kinds:
                continue
            hit = self.find(tensor, weight=False)
            if hit and hit[0].meaning == "real":
                sources.append((hit[1], -self.written.index(hit[0]), hit[0].node))
            elif hit and hit[0].meaning == "intended":
                side.conditions += hit[0].node.conditions
                hit[0].node.readers.append(op.index)
            elif hit or tensor.kinds != {NEG}:
                outside.append((argument, tensor))
        if sources:
            sources.sort(key=lambda s: s[:2])
            for *_, node in sources:
                node.seed = node.communicated = True
                node.readers.append(op.index)
            side.real, side.node = True, sources[0][2]
        elif outside:
            argument, tensor = outside[0]
            node = Node(op.index, tensor.kinds, "unexplained", real=True, seed=True)
            node.slot, node.bad_in = argument.slot, tensor.looks
            self.nodes.append(node)
            self.write([tensor], node, "real")
            side.real, side.node = True, node

    def get(self, op, event, tensors):
        event.received = [t for _, t in tensors]
        if not tensors:
            return
        side = event.got = self.side(tensors)
        if not side.kinds:
            return
        side.real = side.kinds != {NEG}
        node = side.node = Node(op.index, side.kinds, "received", real=side.real, event=event)
        if not side.real:
            node.conditions = [event]
        self.nodes.append(node)
        unreliable = event.is_async and event.flow in ("send", "recv")
        meaning = "real" if side.real else "intended"
        bad = [t for _, t in tensors if t.kinds]
        self.write(bad, node, meaning, near=not unreliable, delivered=True)

    # --- the end ---

    def finish(self):
        self.settle_weight_gradients()
        for node in self.masked_ends:  # 3
            node.role, node.real, node.seed = "promoted", True, True
            self.states[node.op] = "origin"
        children = {id(n): [c for c in self.nodes if n in c.parents] for n in self.nodes}
        for node in self.nodes:  # 6: a gradient nobody absorbed or carried on
            carried = node.communicated or any(c.real for c in children[id(node)])
            if self.ops[node.op].part == "backward" and node.real and not (carried or node.absorbed):
                node.seed = True
        self.spread_harm()
        for node in self.nodes:
            if node.role == "linked":  # 4: a gradient that is the forward's doing
                root = node.forward.root
                blamed = root is not node and (node.forward.harm or root.harm)
                node.role = "" if blamed else "origin"
                if blamed:
                    self.link(node.forward, node)
        self.spread_harm()
        for node in self.nodes:
            if not node.role and node.parents and self.states[node.op] == "origin":
                self.states[node.op] = "propagated"  # what stands behind it explains it
        self.marks = [n for n in self.nodes if n.role and not n.parents]
        shown = [n.op for n in self.nodes if n.real or n.role in ("unexplained", "parameter")]
        self.first_bad = min(shown, default=None)
        for event in self.events:
            self.read_at(event)
        if not self.has_statistics:
            self.states = ["unknown"] * len(self.ops)

    def spread_harm(self):
        """Everything that leads to a seed does harm."""
        todo = [n for n in self.nodes if n.seed]
        while todo:
            node = todo.pop()
            node.harm = True
            if node.role != "linked":
                todo += [p for p in node.parents if not p.harm]

    def settle_weight_gradients(self):
        """5: a bad weight gradient is a consequence of its module's backward record."""

        def is_backward(n):
            return self.ops[n.op].name.direction == "backward"

        for node in self.weight_gradients:
            base = self.ops[node.op].name.base
            records = [
                n
                for n in self.nodes
                if self.ops[n.op].name.base == base
                and self.ops[n.op].name.direction in ("forward", "backward")
                and (n.real or n.role == "unexplained")
            ]
            behind = [n for n in records if n.op > node.op and is_backward(n) and n.root is not node]
            before = [n for n in records if n.op < node.op and is_backward(n)]
            forward = [n for n in records if n.op < node.op and not is_backward(n)]
            dumped = any(op.part == "backward" and op.name.base == base for op in self.ops)
            earlier = [n for n in self.nodes if n.real and n.op < node.op and self.ops[n.op].part == "backward"]
            parent = (
                behind[0] if behind
                else before[-1] if before
                else forward[-1] if forward
                else earlier[-1] if earlier and not dumped
                else None
            )  # fmt: skip
            if not (parent and self.adopt(parent, node)):
                node.role = "parameter"

    def read_at(self, event):
        """8: where the value of an asynchronous call is first read."""
        if not event.is_async:
            return
        if event.got and event.got.node and event.got.node.readers:
            event.read_at = min(event.got.node.readers)
            return
        own = [n.op for n in self.marks if n.role != "received"]
        if not own or event.op > max(own) or not event.received or event.superseded:
            return
        looked_for = {(t.dtype, t.count, t.statistics) for t in event.received}
        for op in self.ops[event.op + 1 : max(own) + 1]:
            if any((t.dtype, t.count, t.statistics) in looked_for for _, t in op.tensors(*INPUTS)):
                event.read_at = op.index
                return
        event.read_at = max(own) + 1

    def phase(self, op):
        if self.ops[op].part != "forward":
            return "backward"
        late = self.last_backward is not None and op > self.last_backward
        return "optimizer" if late else "forward"

    def cause(self, node):
        """5: why a root is one."""
        if node.role != "unexplained":
            return node.role
        if node.harm and (node.bad_in is None or self.was_produced(node)):
            return "corruption"
        if self.first_backward is None or node.op < self.first_backward:
            return "input"
        return "unrecorded"

    def was_produced(self, node):
        if self.modules_only:
            return False
        gradient = self.ops[node.op].part == "backward"
        return any(
            t.looks == node.bad_in and t.known
            for op in self.ops[: node.op]
            if not gradient or op.part == "backward"
            for _, t in op.tensors("output")
        )


# --- what a communication op says ---------------------------------------------------------------------


def exchanges(rank, op):
    """The communications of one op: (event, contributed, received)."""
    row = next(r for r in RULES["communications"] if any(matches(p, op.name) for p in r["match"]))
    if row["flow"] == "batch":
        return batch(rank, op)

    def is_named(argument, at):
        if argument.field in ("input_args", "input"):
            return argument.position == at["arg"]
        return argument.field == "input_kwargs" and argument.keyword == at["kwarg"]

    def integer(at):
        found = [a.value for a in op.arguments if at and isinstance(a.value, Number) and is_named(a, at)]
        return int(found[0].value) if found else None

    inputs = [a for a in op.arguments if a.field in INPUTS]
    group = next((a.value for a in inputs if isinstance(a.value, Group)), Group())
    is_async = bool(row.get("always_async")) or any(
        a.value is True and "async" in row and is_named(a, row["async"]) for a in op.arguments
    )
    gives = contributed(row, inputs, is_named)
    gets = received(op, row)
    within = [
        a.value.value
        for key in ("group_src", "group_dst")
        for a in op.arguments
        if a.field == "input_kwargs" and a.keyword == key and isinstance(a.value, Number)
    ]
    listed = group.listed

    def rank_at(at):
        number = integer(at)
        if number is None and at and within:
            number = int(within[0])
            if listed:
                number = listed[number] if 0 <= number < len(listed) else None
        return number

    root = rank_at(row.get("root"))
    if root is None and row["flow"] in ("from_root", "to_root"):
        root = listed[0] if listed else 0
    first = (gives or gets or [(None, None)])[0][1]
    event = Event(
        rank, op.index, op.raw, op.name.api, row["flow"], group, root, rank_at(row.get("peer")),
        integer(row.get("tag")) or 0, is_async, first.count if first else 0, batched=False,
    )  # fmt: skip
    if row["flow"] == "all":
        sizes = [sum(t.count for _, t in side) for side in (gives, gets)]
        ratio = max(sizes) // min(sizes) if min(sizes) > 0 else 1
        event.parts = max(1, ratio, len(gives), len(gets))
    if row["flow"] == "from_root":  # what the others pass is a buffer
        gives, gets = (gives, []) if root == rank else ([], gets)
    if row["flow"] == "to_root" and root != rank:
        gets = []
    return [(event, gives, gets)]


def tensors_of(arguments):
    return [(a, a.value) for a in arguments if isinstance(a.value, Tensor)]


def contributed(row, inputs, is_named):
    if row["contributes"] == "all":
        return tensors_of(inputs)
    named = [a for a in inputs if any(is_named(a, at) for at in row["contributes"])]
    if not named and row["contributes"]:
        # A framework that returns its result instead of filling a buffer has the input first.
        buffers = row["receives"] if row["receives"] != "all" else []
        named = [
            a
            for a in inputs
            if (a.position == 0 or a.keyword is not None)
            and not (a.field == "input_kwargs" and any(is_named(a, at) for at in buffers))
        ]
    return tensors_of(named)


def received(op, row):
    outputs = [a for a in op.arguments if a.field == "output"]
    if row["receives"] == "all":
        return tensors_of(outputs)
    positions = [a.position for a in op.arguments if a.field == "input_args"]
    positional = max((p for p in positions if p is not None), default=-1) + 1
    keywords: list[str] = []
    for a in op.arguments:
        if a.field == "input_kwargs" and a.keyword is not None and a.keyword not in keywords:
            keywords.append(a.keyword)
    found = []
    for at in row["receives"]:
        place = at["arg"]
        if at["kwarg"] in keywords:
            place = positional + keywords.index(at["kwarg"])
        found += tensors_of([a for a in outputs if a.position == place])
    if not found and row["receives"] and row["receives"] == row["contributes"]:
        found = tensors_of(outputs)
    return found


def batch(rank, op):
    found = []
    entries = [a for a in op.arguments if a.field in INPUTS and isinstance(a.value, P2P)]
    for entry in entries:
        record = entry.value
        sends = "send" in record.op

        def below(field_name, entry=entry):
            for a, t in op.tensors(field_name):
                if len(a.path) <= len(entry.path):
                    continue
                mine, theirs = entry.path, a.path[: len(entry.path)]
                if isinstance(mine[0], str) and isinstance(a.path[0], int):
                    # A keyword list stands first in the output.
                    numbers = [[p for p in path if isinstance(p, int)][-1:] for path in (mine, theirs)]
                    if numbers[0] == numbers[1]:
                        return [(a, t)]
                elif mine == theirs:
                    return [(a, t)]
            return []

        buffer = below(entry.field)
        event = Event(
            rank, op.index, op.raw, "isend" if sends else "irecv", "send" if sends else "recv",
            Group((), record.group_id), None, record.peer, record.tag, is_async=True,
            count=buffer[0][1].count if buffer else 0, batched=True,
        )  # fmt: skip
        found.append((event, buffer if sends else [], [] if sends else below("output")))
    return found


# --- matching (7) -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Match:
    group: Group
    seq: int
    members: list
    missing: list
    absent: list
    pair: tuple | None = None

    @property
    def api(self):
        return self.members[0].api

    @property
    def flow(self):
        return "send" if self.pair else self.members[0].flow

    @property
    def root(self):
        return None if self.pair else self.members[0].root

    @property
    def state(self):
        return "unmatched" if self.absent else "missing_ranks" if self.missing else "fully_matched"

    def gives(self, event):
        if event.flow == "from_root":
            return self.root == event.rank
        return event.flow != "recv"

    def gets(self, event):
        if event.flow == "from_root":
            return self.root != event.rank
        if event.flow == "to_root":
            return self.root == event.rank
        return event.flow != "send"

    @property
    def givers(self):
        return [m for m in self.members if self.gives(m)]

    @property
    def getters(self):
        return [m for m in self.members if self.gets(m)]


def match_all(ranks):
    events = [e for r in ranks for e in r.events if not e.superseded]
    dumped = [r.number for r in ranks]
    world = sorted(
        {*dumped, *range(max(dumped, default=0))}
        | {n for r in ranks for e in r.events for n in e.group.ranks}
        | {e.peer for e in (e for r in ranks for e in r.events) if e.peer is not None}
    )
    found = []

    def add(group, seq, members, expected, pair=None):
        there = {m.rank for m in members}
        left = [r for r in expected if r not in there]
        missing = [r for r in left if r not in dumped]
        absent = [r for r in left if r in dumped]
        match = Match(group, seq, members, missing, absent, pair)
        for m in members:
            m.match = match
        found.append(match)

    collectives = [e for e in events if e.flow not in ("send", "recv", "batch")]
    for group in sorted({e.group for e in collectives}, key=lambda g: (g.ranks, g.id)):
        lists = [[e for e in collectives if e.rank == n and e.group == group] for n in dumped]
        lists = [x for x in lists if x]
        expected = list(group.ranks)
        if not expected:
            expected = [x[0].rank for x in lists] if group.id else world
        for seq, row in enumerate(rows_of_group(lists)):
            add(group, seq, sorted(row, key=lambda m: m.rank), expected)

    channels: dict = {}
    for e in events:
        if e.flow in ("send", "recv") and e.peer is not None:
            way = (e.rank, e.peer) if e.flow == "send" else (e.peer, e.rank)
            named = e.group.id or e.group.ranks
            channels.setdefault((*way, e.tag), {}).setdefault(named, ([], []))[e.flow == "recv"].append(e)
    for (source, destination, _), groups in channels.items():
        left: tuple[list, list] = ([], [])

        def pairs(sends, receives, ends=(source, destination)):
            for seq, (s, r) in enumerate(zip(sends, receives, strict=False)):
                add(s.group, seq, [s, r], ends, ends)
            n = min(len(sends), len(receives))
            return sends[n:], receives[n:], n

        for sends, receives in groups.values():
            s, r, _ = pairs(sends, receives)
            left[0].extend(s)
            left[1].extend(r)
        in_order = [sorted(x, key=events.index) for x in left]
        s, r, n = pairs(*in_order)
        for seq, e in enumerate(s + r):
            add(e.group, n + seq, [e], (source, destination), (source, destination))
    return found, world


def rows_of_group(lists):
    """The lists of a group side by side."""
    longest = max(lists, key=len)
    rows = [[e] for e in longest]
    alone = []
    for other in lists:
        if other is longest:
            continue
        if [e.api for e in other] == [e.api for e in longest]:
            places: list = list(range(len(other)))
        else:
            places = align([(e.api, e.count) for e in longest], [(e.api, e.count) for e in other])
        for e, place in zip(other, places, strict=True):
            (alone.append([e]) if place is None else rows[place].append(e))
    return rows + alone


def align(a, b):
    """For each of `b` its partner in `a`: common ends first, then the longest common subsequence."""
    places: list = [None] * len(b)
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        places[start] = start
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        places[len(b) - 1 - end] = len(a) - 1 - end
        end += 1
    known: dict = {}
    rows, columns = len(a) - end, len(b) - end
    for i in reversed(range(start, rows)):
        for j in reversed(range(start, columns)):
            skip = max(known.get((i + 1, j), 0), known.get((i, j + 1), 0))
            known[i, j] = 1 + known.get((i + 1, j + 1), 0) if a[i] == b[j] else skip
    i = j = start
    while i < rows and j < columns:
        if a[i] == b[j]:
            places[j] = i
            i, j = i + 1, j + 1
        elif known.get((i + 1, j), 0) >= known.get((i, j + 1), 0):
            i += 1
        else:
            j += 1
    return places


# --- receipts (7) -----------------------------------------------------------------------------------

DELIVERED = ("propagated", "origin", "entered")


def settle_receipts(ranks, found):
    """What each received bad value is; repeated until nothing changes."""
    events = [e for r in ranks for e in r.events if not e.superseded]
    while True:
        before = [(e.given_real, e.receipt, e.giver) for e in events]
        for e in events:
            if e.given:
                e.given_real = e.given.real or any(c.receipt in DELIVERED for c in e.given.conditions)
        for match in found:
            receive(match)
        if before == [(e.given_real, e.receipt, e.giver) for e in events]:
            return


def receive(match):
    givers = match.givers
    giver = next((g for g in givers if g.given_real), None)
    sent = frozenset().union(*(g.given.kinds for g in givers if g.given))
    for e in match.getters:
        if not e.got or not e.got.kinds:
            continue
        if giver:
            e.receipt, e.giver = "propagated", giver
        elif sent and e.got.kinds <= sent:
            e.receipt = "intended"
        elif e.is_async and not e.got.node.readers:
            e.receipt = "garbage"
        else:
            e.receipt = "entered" if is_unseen(match) else "origin"


def delivered_by(event):
    """The delivery that a propagated value goes back to, if it goes back to one."""
    if event.receipt != "propagated":
        return None
    given = event.giver.given
    if given.node is None:
        return given.conditions[0] if given.conditions else None
    root = given.node.root
    if root.role == "promoted":
        return next((e for e in root.conditions if e.receipt in DELIVERED), None)
    return root.event


def break_circles(ranks):
    """Bad values that ranks only pass on to each other entered with the earliest delivery."""
    entered = []
    settled: list[Event] = []
    for start in (e for r in ranks for e in r.events):
        path: list[Event] = []
        at = start
        while at is not None and at not in settled:
            settled.append(at)
            path.append(at)
            at = delivered_by(at)
        if at in path:
            earliest = min(path[path.index(at) :], key=lambda e: (e.op, e.rank))
            earliest.receipt = "entered"
            entered.append(earliest)
    return entered


def is_unseen(match):
    """Whether a giver is not dumped, not matched, or without statistics."""
    givers = match.givers
    there = {g.rank for g in givers}
    if match.pair:
        expected = {match.pair[0]}
    elif match.flow == "from_root":
        expected = {match.root}
    else:
        expected = there | set(match.missing) | set(match.absent)
    members = match.members
    listed = match.group.ranks or match.group.id
    fewer = len(members) < max(2, *(m.parts for m in members))
    return (
        bool(expected - there)
        or (match.flow == "all" and not listed and fewer)
        or any(g.given and not g.given.known for g in givers)
        or all(g.given is None for g in givers)
    )


# --- happens-before (8) -----------------------------------------------------------------------------


@dataclass(eq=False)
class Candidate:
    rank: Rank
    op: int
    node: Node | None = None  # a root of a rank
    match: Match | None = None  # or a communication
    getters: list = field(default_factory=list)
    demoted: bool = False
    before: list = field(default_factory=list)
    depth: int = 0
    layer: int = 0
    evidence: int = 1
    reach: int = 0
    reached: set = field(default_factory=set)
    merged: list = field(default_factory=list)
    of_circle: bool = False  # let in by the break of a circle
    concurrent: bool = False

    @property
    def kinds(self):
        if self.node:
            return self.node.kinds
        return frozenset().union(*(e.got.kinds for e in self.getters))

    @property
    def cause(self):
        return self.rank.cause(self.node) if self.node else self.getters[0].receipt

    @property
    def kind(self):
        if self.node:
            cause = self.cause
            return cause if cause in ("parameter", "input", "corruption") else "compute"
        if self.cause == "entered":
            return "missing_rank"
        late = self.getters[0].is_async and self.match.pair
        return "corruption" if late else "communication"

    @property
    def raw(self):
        return self.rank.ops[self.op].raw


def places_of(rank, candidates, assumed):
    """The places of one rank in order; `assumed` says where calls without a known reader end."""
    places = []
    events = [e for e in rank.events if e.match]
    for k, e in enumerate(events):
        places.append((e.op, 2, k, ("enter", e)))
        if not e.match.gets(e):
            continue
        if not e.is_async:
            places.append((e.op, 3, k, ("leave", e)))
        elif e.read_at is not None:
            places.append((max(e.read_at, e.op + 1), 0, k, ("leave", e)))
        else:
            places.append((assumed.setdefault(id(e), next_call(rank, e.op)), 0, k, ("leave", e)))
    for c in candidates:
        if c.node and c.rank is rank:
            when = 4 if c.node.role == "register" else 1
            places.append((c.op, when, rank.marks.index(c.node), ("root", c)))
    return [p for *_, p in sorted(places, key=lambda p: p[:3])]


def next_call(rank, op):
    """The next op behind `op` that communicates."""
    return min((e.op for e in rank.events if e.match and e.op > op), default=LATE)


def graph_of(ranks, found, candidates):
    """Every place where something happens, and what directly follows it, without circles.

    A place is ("root", candidate), ("enter", event), ("leave", event) or ("met", match).
    """
    assumed: dict = {}
    cut: set = set()
    while True:
        lines = {r.number: places_of(r, candidates, assumed) for r in ranks}
        after: dict = {("met", m): set() for m in found}
        for line in lines.values():
            for place in line:
                after.setdefault(place, set())
            for a, b in itertools.pairwise(line):
                after[a].add(b)
        for match in found:
            for g in match.givers:
                after["enter", g].add(("met", match))
            for g in match.getters:
                if g not in cut:
                    after["met", match].add(("leave", g))
        waiting = circle(lines, after)
        if not waiting:
            return after
        movable = [e for e in waiting if id(e) in assumed]
        for e in movable:
            rank = next(r for r in ranks if r.number == e.rank)
            assumed[id(e)] = next_call(rank, assumed[id(e)])
        if not movable:
            cut.update(waiting)


def circle(lines, after):
    """The communications that ranks wait for in a circle: the first on each of them."""
    before = backwards(after)
    done: set = set()
    ready = [p for p in after if not before[p]]
    while ready:
        done.update(ready)
        ready = [p for p in {p for r in ready for p in after[r]} if before[p] <= done]
    fronts = {n: next((p for p in line if p not in done), None) for n, line in lines.items()}
    waits_for = {
        n: {g.rank for g in front[1].match.givers if ("enter", g) not in done} if front else set()
        for n, front in fronts.items()
    }
    return [fronts[n][1] for n in fronts if n in reachable(waits_for, n)]


def backwards(after):
    before: dict = {place: set() for place in after}
    for place, following in after.items():
        for p in following:
            before[p].add(place)
    return before


def reachable(after, start):
    seen, todo = set(), list(after.get(start, ()))
    while todo:
        place = todo.pop()
        if place not in seen:
            seen.add(place)
            todo += after[place]
    return seen


def order(ranks, found, candidates):
    """Fill in what happened before each candidate, and how many communications."""
    after = graph_of(ranks, found, candidates)
    place_of = {id(c): ("root", c) if c.node else ("met", c.match) for c in candidates}
    reach = {place: reachable(after, place) for place in place_of.values()}

    def precedes(a, b):
        seen = reach[place_of[id(a)]]
        if a.of_circle:
            return False  # where it entered is not known
        if b.match and not b.of_circle and seen.issuperset(("leave", e) for e in b.getters) and a.match is not b.match:
            return True  # before every exit that shows it
        return place_of[id(b)] in seen

    for c in candidates:
        c.before = [o for o in candidates if not o.demoted and o is not c and precedes(o, c)]
    before = backwards(after)
    depth: dict = {}
    while len(depth) < len(after):  # the longest chain of communications, place by place
        for place in after:
            if place not in depth and all(p in depth for p in before[place]):
                depth[place] = max((depth[p] + (p[0] == "met") for p in before[place]), default=0)

    pasts = {  # how deep a rank was when it came to an exit
        place[1]: max(
            (depth[p] + (p[0] == "met") for p in before[place] if p != ("met", place[1].match)),
            default=0,
        )
        for place in after
        if place[0] == "leave"
    }

    def layer(c):
        return max((layer(b) + 1 for b in c.before), default=0)

    for c in candidates:
        c.depth = depth[place_of[id(c)]]
        if c.match and not c.of_circle:
            c.depth = max(c.depth, min(pasts[e] for e in c.getters))
        c.layer = layer(c)


# --- the answer (10) --------------------------------------------------------------------------------


def make_candidates(ranks, found, circles):
    candidates = []
    for rank in ranks:
        own = [n for n in rank.marks if n.harm and n.role != "received"]
        for node in own[:ROOTS_ORDERED]:
            c = Candidate(rank, node.op, node)
            if node.role == "promoted":
                c.demoted = any(e.receipt in DELIVERED for e in node.conditions)
            candidates.append(c)
    by_number = {r.number: r for r in ranks}
    for e in circles:
        c = Candidate(by_number[e.rank], e.op, match=e.match, getters=[e], of_circle=True)
        candidates.append(c)
        e.candidate = c
    for match in found:
        shown = [e for e in match.getters if e.receipt in ("origin", "entered") and e not in circles]
        if shown:
            c = Candidate(by_number[shown[0].rank], shown[0].op, match=match, getters=shown)
            candidates.append(c)
            for e in shown:
                e.candidate = c
    return candidates


def blame(ranks, candidates):
    """Count for each candidate the bad ops and ranks that lead back to it."""
    own = {id(c.node): c for c in candidates if c.node and not c.demoted}

    def blamed(node, seen=()):
        if node is None or node in seen:
            return None
        if id(node) in own:
            return own[id(node)]
        event = node.event
        if node.role == "promoted":
            event = next((e for e in node.conditions if e.receipt in DELIVERED), None)
        if event is None or event.receipt not in DELIVERED:
            return None
        if event.candidate:
            return event.candidate
        given = event.giver.given
        back = given.node.root if given.node else None
        if back is None and given.conditions:
            back = given.conditions[0].got.node
        return blamed(back, (*seen, node))

    for rank in ranks:
        for mark in rank.marks:
            c = blamed(mark)
            if c:
                c.reach += sum(n.root is mark and (n.real or n is mark) for n in rank.nodes)
                c.reached.add(rank.number)


def classify(ranks, candidates):
    several = len(ranks) > 1
    hidden = several and not any(r.events for r in ranks)
    explained = [c for c in candidates if not c.demoted and (c.cause not in ("input", "unrecorded", "entered"))]
    for c in candidates:
        others = [o for o in explained if o.rank is not c.rank]
        elsewhere = bool(others) and not all(c in o.before for o in others)
        silent = several and not c.rank.events
        sent = c.node and any(
            c.node.bad_in and n.bad_out == c.node.bad_in
            for r in ranks
            if r is not c.rank and r.modules_only
            for n in r.nodes
        )
        cause = c.cause
        if cause == "parameter":
            c.evidence = 0 if hidden and c.node.slot is not None else 1
        elif cause == "input" and silent:
            c.evidence = 3 if elsewhere or sent else 0 if hidden else 1
        elif cause in ("unrecorded", "entered"):
            c.evidence = 3 if elsewhere else 1
        elif c.node and c.node.container and silent:
            c.evidence = 2
    return hidden


PHASES = ("forward", "backward", "optimizer")


def rank_candidates(candidates, hidden):
    def key(c):
        place = (PHASES.index(c.rank.phase(c.op)), c.op) if hidden else (0, 0)
        return (
            c.evidence == 3, c.layer, c.evidence, c.depth, place, -severity(c.kinds),
            -len(c.reached), -c.reach, c.rank.number, c.op,
        )  # fmt: skip

    return sorted((c for c in candidates if not c.demoted), key=key)


def merge(ranked):
    """One finding for a weight that is bad on several ranks."""
    merged: dict = {}
    findings = []
    for c in ranked:
        if c.cause == "parameter":
            key = c.raw, c.node.slot, c.evidence == 3
            if key in merged and merged[key] not in c.before:
                merged[key].merged.append(c)
                continue
            merged[key] = c
        findings.append(c)
    return findings


def communication(match):
    """A row of the table of communications, if it has anything to say."""
    verdicts = {
        "overflow": 0,
        "origin": 0,
        "entered": 0,
        "absorbed": 0,
        "garbage": 0,
        "intended": 0,
    }
    rows: dict[str, list] = {"source": [], "propagated": [], "normal": []}
    for e in match.members:
        verdicts["absorbed"] += e.given_real
        verdicts["intended"] += bool(e.given and e.given.kinds)
        if e.receipt:
            verdicts["overflow" if e.receipt == "propagated" else e.receipt] += 1
        bad_in = match.gives(e) and e.given_real
        bad_out = match.gets(e) and e.receipt in DELIVERED
        rows["source" if bad_in else "propagated" if bad_out else "normal"].append(e.rank)
    verdict = next((v for v, n in verdicts.items() if n), None)
    if verdict is None and match.state != "unmatched":
        return None
    return {
        "api": match.api,
        "group": (match.group.ranks, match.group.id),
        "seq": match.seq,
        "members": [(e.rank, e.raw) for e in match.members],
        "sources": sorted(rows["source"]),
        "propagated": sorted(rows["propagated"]),
        "normal": sorted(rows["normal"]),
        "missing": list(match.missing),
        "unmatched": list(match.absent),
        "state": match.state,
        "verdict": verdict or "clean",
    }


STATES = ("clean", "origin", "propagated", "absorbed", "intended", "ignored", "unknown")


def read_step(step_dir):
    """The ranks that have ops, and the numbers of those that could not be used whole."""
    step_dir = Path(step_dir)
    folders: dict[int, Path] = {}
    for folder in sorted(p for p in step_dir.iterdir() if p.is_dir()):
        if m := re.fullmatch(r"rank_?([0-9]*)", folder.name):
            folders[int(m[1] or 0)] = folder
    if not folders:
        processes = [p for p in step_dir.iterdir() if re.fullmatch(r"(proc|pid)[0-9]+", p.name)]
        processes.sort(key=lambda p: int(re.sub(r"\D", "", p.name)))
        folders = dict(enumerate(processes))
    ranks, broken = [], []
    for number, folder in sorted(folders.items()):
        path = folder / "dump.json"
        if not path.exists():
            broken.append(number)
            continue
        header, ops, completeness = read_dump(path)
        if completeness != "complete":
            broken.append(number)
        if ops:
            ranks.append(Rank(number, folder.name, header, ops, completeness))
    return ranks, broken


def analyse(step_dir):
    """Everything the core's report says that the rules decide."""
    ranks, broken = read_step(step_dir)
    found, world = match_all(ranks)
    settle_receipts(ranks, found)
    circles = break_circles(ranks)
    candidates = make_candidates(ranks, found, circles)
    order(ranks, found, candidates)
    blame(ranks, candidates)
    hidden = classify(ranks, candidates)
    ranked = rank_candidates(candidates, hidden)
    findings = merge(ranked)
    for c in findings[1:]:
        c.concurrent = findings[0] not in c.before and c.evidence != 3
    if findings:
        findings[0].concurrent = any(c.concurrent for c in findings[1:])
    ops, reached = flood(ranks, findings[0]) if findings else (0, set())
    spread = [(ops, len(reached))] + [(0, 0)] * len(findings)
    judged = any(r.has_statistics for r in ranks)
    rows = [row for row in map(communication, found) if row]
    return {
        "verdict": "overflow" if findings else "clean" if judged else "no_evidence",
        "first": (findings[0].rank.number, findings[0].raw, findings[0].kind) if findings else None,
        "findings": [
            {
                "rank": c.rank.number,
                "op": c.raw,
                "kind": c.kind,
                "severity": max(c.kinds, key=SEVERITY.get, default="unknown"),
                "layer": c.layer,
                "depth": c.depth,
                "concurrent": c.concurrent,
                "members": members_of(c),
                "reach_ops": max(c.reach + sum(m.reach for m in c.merged), all_ops),
                "reach_ranks": max(len(c.reached), len(c.merged) + 1 if c.merged else 0, all_ranks),
            }
            for c, (all_ops, all_ranks) in zip(findings, spread, strict=False)
        ],
        "happens_before": {((b.rank.number, b.raw), (c.rank.number, c.raw)) for c in ranked for b in c.before},
        "communications": rows,
        "ranks": [
            {
                "rank": r.number,
                "ops": len(r.ops),
                "counts": {s: r.states.count(s) for s in STATES},
                "first_bad": None if r.first_bad is None else (r.first_bad, r.ops[r.first_bad].raw),
                "reached_by": reached_by(r, findings, reached),
            }
            for r in ranks
        ],
        "broken": broken,
        "world": world,
    }


def flood(ranks, first):
    """All roots that the first finding leads to, and their ranks."""
    todo = [first.node] if first.node else [e.got.node.root for e in first.getters]
    roots: list[Node] = []
    while todo:
        root = todo.pop()
        if root in roots:
            continue
        roots.append(root)
        for e in (e for r in ranks for e in r.events if e.match):
            if e.given and e.given.node and e.given.node.root is root:
                todo += [g.got.node.root for g in e.match.members if g.receipt == "propagated"]
    ops = 0
    reached = set()
    for rank in ranks:
        for root in roots:
            if root in rank.nodes:
                ops += sum(n.root is root and (n.real or n is root) for n in rank.nodes)
                reached.add(rank.number)
    return ops, reached


def members_of(c):
    if c.node:
        return sorted((m.rank.number, m.raw) for m in c.merged)
    sender = [c.match.members[0]] if c.match.pair and c.kind != "missing_rank" else []
    return [(e.rank, e.raw) for e in [*c.getters[1:], *sender]]


def reached_by(rank, findings, reached):
    if findings and findings[0].rank is rank:
        return "origin"
    return "communication" if rank.number in reached else None
