"""Builders for the small inputs of the format tests: values, records, ranks, steps."""

from __future__ import annotations

import json
from pathlib import Path

NAN = float("nan")
INF = float("inf")


def t(top, low, dtype="torch.bfloat16", shape=(2, 16)):
    """A tensor record with this Max and Min."""
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(shape),
        "Max": top,
        "Min": low,
        "Mean": 0.1,
        "Norm": 3.5,
        "requires_grad": True,
    }


def scalar(value):
    return {"type": type(value).__name__, "value": value}


def op(inputs=(), output=(), **more):
    kwargs = more.pop("kwargs", {})
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": list(output), **more}


def grad(inputs=(), output=()):
    return {"input": list(inputs), "output": list(output)}


def group(*ranks, name="7d2a90c1"):
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": name}


def collective(api, before, after, *, ranks=None, name="7d2a90c1", number=0):
    """(name, record) of an in-place collective; without ranks the default group."""
    kwargs = {"group": group(*ranks, name=name)} if ranks else {}
    extra = [group(*ranks, name=name)] if ranks else []
    return f"Distributed.{api}.{number}.forward", op([before], [after, *extra], kwargs=kwargs)


def send(value, peer, number=0):
    return f"Distributed.send.{number}.forward", op([value, scalar(peer)], [value, scalar(peer)])


def recv(value, peer, number=0):
    return f"Distributed.recv.{number}.forward", op([None, scalar(peer)], [value, scalar(peer)])


def dump(data, **header):
    head = {
        "task": "statistics",
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": None,
        **header,
    }
    return {**head, "data": dict(data)}


def write_rank(folder: Path, data, *, construct=None, stack=None, **header):
    """One rank folder; `data` is pairs or a dict of op name to record."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump.json").write_text(json.dumps(dump(data, **header), indent=1))
    if construct is not None:
        (folder / "construct.json").write_text(json.dumps(construct))
    if stack is not None:
        (folder / "stack.json").write_text(json.dumps(stack))
    return folder


def write_step(step: Path, ranks, **header):
    """`ranks`: {rank: data}."""
    for rank, data in ranks.items():
        write_rank(step / f"rank{rank}", data, **header)
    return step


def loss_chain(value=None):
    """A loss that takes the bad value, and its gradient: what makes a bad value do harm."""
    bad = value or t(NAN, NAN)
    one = t(1.0, 1.0, shape=())
    return {
        "Functional.cross_entropy.0.forward": op([bad], [t(NAN, NAN, shape=())]),
        "Functional.cross_entropy.0.backward": grad([one], [t(NAN, NAN)]),
    }
