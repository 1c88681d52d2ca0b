"""Strategies of multi-rank steps: layouts, faults, simulated steps, damage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

from hypothesis import strategies as st

from ovf.testing.damage import Damage
from ovf.testing.fault import Fault, FaultPlace
from ovf.testing.layout import Layout
from ovf.testing.strategies.encodings import encodings
from ovf.testing.strategies.values import FLOATS
from ovf.testing.training import P2P, Schedule, Training, simulated_step

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

    from ovf.testing.encoding import Encoding
    from ovf.testing.step import Step


@st.composite
def layouts(
    draw: DrawFn,
    *,
    ranks: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    max_ranks: int = 8,
) -> Layout:
    """Draw a parallel layout.

    Args:
        draw: given by Hypothesis.
        ranks: the number of ranks; any up to `max_ranks` by default.
        tp: tensor-parallel size, if it is to be fixed; likewise `pp`, `dp` and `ep`.
        pp: pipeline-parallel size.
        dp: data-parallel size.
        ep: expert-parallel size, a divisor of `dp`.
        max_ranks: the most ranks.

    Returns:
        A layout with the sizes asked for.

    Raises:
        ValueError: no layout has them.
    """
    most = ranks or max(max_ranks, (tp or 1) * (pp or 1) * (dp or 1))
    sizes = range(1, most + 1)
    fitting = [
        (t, p, d, e)
        for t in ([tp] if tp else sizes)
        for p in ([pp] if pp else sizes)
        for d in ([dp] if dp else sizes)
        if (t * p * d == ranks if ranks else t * p * d <= most)
        for e in ([ep] if ep else sizes)
        if d % e == 0
    ]
    if not fitting:
        raise ValueError(f"no layout has {ranks=} {tp=} {pp=} {dp=} {ep=} {max_ranks=}")
    fitting.sort(key=lambda sizes: (math.prod(sizes), sizes))
    return Layout(*draw(st.sampled_from(fitting)), seed=draw(st.integers(0, 3)))


@st.composite
def faults(draw: DrawFn, training: Training) -> Fault:
    """Draw a fault that has a place in a step.

    Args:
        draw: given by Hypothesis.
        training: the step.

    Returns:
        The fault.
    """
    layout = training.layout
    places: list[FaultPlace] = [
        "forward", "backward", "masked_row", "corruption", "weight", "batch", "optimizer",
    ]  # fmt: skip
    if layout.tp > 1:
        places.append("tp_all_reduce")
    if layout.dp > 1:
        places.append("dp_all_reduce")
    if layout.pp > 1:
        places.append("recv")
    if layout.ep > 1:
        places.append("expert")
        if "tp_all_reduce" in places:
            places.remove("tp_all_reduce")
    place = draw(st.sampled_from(places))
    stage = layout.tp * layout.dp
    low = stage if place == "recv" else 0
    high = stage if place == "batch" else layout.ranks
    rank = draw(st.integers(low, high - 1))
    layers = len(training.stage_layers(layout.place(rank).pp))
    return Fault(
        place,
        rank,
        draw(st.integers(0, training.micro_batches - 1)),
        draw(st.integers(0, layers - 1)),
    )


@st.composite
def trainings(draw: DrawFn, layout: Layout, *, min_faults: int = 0, max_faults: int = 2) -> Training:
    """Draw a small training step over a layout.

    Args:
        draw: given by Hypothesis.
        layout: the layout.
        min_faults: the fewest planted faults.
        max_faults: the most planted faults.

    Returns:
        The step, not yet simulated.
    """
    training = Training(
        layout,
        layers=layout.pp * draw(st.integers(1, 2)),
        micro_batches=draw(st.integers(1, 3)),
        schedule=draw(st.sampled_from(get_args(Schedule))),
        p2p=draw(st.sampled_from(get_args(P2P))),
        level=draw(st.sampled_from(("L1", "mix"))),
        dtype=draw(st.sampled_from(FLOATS[:3])),
        hidden=8 * layout.tp,
        sequence=5,
        heads=2 * layout.tp,
        vocabulary=19,
        warm_up=draw(st.booleans()),
        garbage_buffers=draw(st.booleans()),
        numbered_parameters_grad=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )
    count = draw(st.integers(min_faults, max_faults))
    planted = draw(st.lists(faults(training), min_size=count, max_size=count, unique=True))
    return training.with_faults(planted)


@st.composite
def steps(
    draw: DrawFn,
    *,
    ranks: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    max_ranks: int = 8,
    min_faults: int = 0,
    max_faults: int = 2,
    damaged: bool = True,
    encoded: SearchStrategy[Encoding] | None = None,
) -> Step:
    """Draw a multi-rank step, simulated, with its right answer.

    Args:
        draw: given by Hypothesis.
        ranks: the number of ranks; any up to `max_ranks` by default.
        tp: tensor-parallel size, if it is to be fixed; likewise `pp`, `dp` and `ep`.
        pp: pipeline-parallel size.
        dp: data-parallel size.
        ep: expert-parallel size.
        max_ranks: the most ranks.
        min_faults: the fewest planted faults.
        max_faults: the most planted faults.
        damaged: whether ranks may be missing or cut, which can hide the right answer; `truth`
            is about the step as it ran.
        encoded: spellings to draw from, any by default.

    Returns:
        The step; `write_step` writes it in its own spelling and with its own damage.
    """
    layout = draw(layouts(ranks=ranks, tp=tp, pp=pp, dp=dp, ep=ep, max_ranks=max_ranks))
    step = simulated_step(draw(trainings(layout, min_faults=min_faults, max_faults=max_faults)))
    step.encoding = draw(encoded if encoded is not None else encodings())
    if damaged:
        step.damage = draw(damages(layout))
    return step


@st.composite
def damages(draw: DrawFn, layout: Layout) -> Damage:
    """Draw what a step's folders lack: mostly nothing.

    Args:
        draw: given by Hypothesis.
        layout: the layout of the step.

    Returns:
        The damage; at least one rank is left.
    """
    if layout.ranks == 1:
        return Damage(process=draw(st.none() | st.integers(2, 99999)))
    if draw(st.integers(0, 2)) > 0:
        return Damage()
    some = st.sets(st.integers(0, layout.ranks - 1), max_size=min(2, layout.ranks - 1))
    cut = draw(st.dictionaries(st.integers(0, layout.ranks - 1), st.integers(0, 20000), max_size=1))
    return Damage(frozenset(draw(some)), cut)
