"""`python -m ovf.testing`: write a simulated step and the right answer for it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ovf.testing.damage import Damage
from ovf.testing.encoding import Encoding, NonFinite, Numbers, StackLayout
from ovf.testing.fault import PLACES, Fault
from ovf.testing.layout import Layout
from ovf.testing.size import percent, scaled
from ovf.testing.training import P2P, Schedule, Training
from ovf.testing.writer import write_training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ovf.testing.step import Origin

_DESCRIPTION = """\
Write the msProbe dump of a simulated training step over many ranks, with planted faults, as
OUT/step<N>/rank<R>/{dump,stack,construct}.json, and the right answer as OUT/truth.json.

The same options always give the same bytes."""

# Layers run forward and backward, over all ranks, above which a second process pays (2 s).
_LARGE = 1000

_FAULTS = """\
faults, as PLACE:RANK[:MICRO_BATCH[:LAYER]] (the layer within the rank's pipeline stage; both count
from 0, negative ones from the last, or as a percentage such as 50%):
"""

_EXAMPLES = """
examples:
  python -m ovf.testing out --tp 2 --pp 4 --dp 2 --layers 8 --micro-batches 4 --fault forward:5:2:1
  python -m ovf.testing out --tp 2 --pp 4 --dp 2 --rank-mb 27 --fault forward:5:50%:50%
  python -m ovf.testing out --dp 8 --ep 4 --level mix --fault expert:3
  python -m ovf.testing out --pp 4 --clean --p2p batch --indent none
"""


def _parser() -> argparse.ArgumentParser:
    places = "".join(f"  {place:14} {meaning}\n" for place, meaning in PLACES.items())
    parser = argparse.ArgumentParser(
        prog="python -m ovf.testing",
        description=_DESCRIPTION,
        epilog=_FAULTS + places + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="directory to write into")
    planted = parser.add_mutually_exclusive_group()
    planted.add_argument(
        "--fault",
        action="append",
        help="what goes wrong (default: forward:0); may be given again",
    )
    planted.add_argument("--clean", action="store_true", help="nothing goes wrong")
    layout = parser.add_argument_group("layout (ranks = tp x pp x dp, numbered tp, dp, pp)")
    layout.add_argument("--tp", type=int, default=1, help="tensor-parallel size")
    layout.add_argument("--pp", type=int, default=1, help="pipeline stages")
    layout.add_argument("--dp", type=int, default=1, help="data-parallel size")
    layout.add_argument("--ep", type=int, default=1, help="expert-parallel size, divides dp")
    step = parser.add_argument_group("step")
    step.add_argument("--layers", type=int, help="transformer layers in all (default: 2 a stage)")
    step.add_argument("--micro-batches", type=int, default=2, help="default: %(default)s")
    step.add_argument("--schedule", choices=get_args(Schedule), default="1f1b")
    step.add_argument(
        "--p2p",
        choices=get_args(P2P),
        default="send",
        help="send/recv, isend/irecv or batch_isend_irecv between stages",
    )
    step.add_argument("--level", choices=("L1", "mix"), default="L1", help="dump level")
    step.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), default="bfloat16")
    step.add_argument("--step", type=int, default=0, help="the number of the step")
    step.add_argument("--seed", type=int, default=0, help="decides every value")
    step.add_argument("--warm-up", action="store_true", help="shift call numbers of some ranks")
    step.add_argument(
        "--garbage-buffers",
        action="store_true",
        help="record buffers to receive into with what they held, not as null",
    )
    step.add_argument(
        "--unnumbered-grads",
        action="store_true",
        help="name parameters_grad records without a number, as before 2025-12",
    )
    size = parser.add_argument_group("size (adds layers, then micro-batches)")
    size.add_argument("--rank-mb", type=float, help="mean size of a dump.json, megabytes")
    size.add_argument("--ops-per-rank", type=int, help="mean number of ops a rank")
    size.add_argument("--processes", type=int, help="processes that write (default: one a core for a large step)")
    spelling = parser.add_argument_group("spelling")
    spelling.add_argument("--indent", default="1", choices=("none", "1", "2", "4"), help="spaces a level")
    spelling.add_argument("--non-finite", choices=get_args(NonFinite), default="token")
    spelling.add_argument("--numbers", choices=get_args(Numbers), default="as_is")
    spelling.add_argument("--stack", choices=get_args(StackLayout), default="new")
    spelling.add_argument("--no-construct", action="store_true", help="write no construct.json")
    damage = parser.add_argument_group("damage")
    damage.add_argument("--missing", type=int, action="append", default=[], metavar="RANK", help="not dumped")
    damage.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="RANK:BYTES",
        help="keep only so much of a dump.json; a negative number counts from the end",
    )
    damage.add_argument("--proc", type=int, metavar="PID", help="name the only folder proc<PID>")
    return parser


def _planted(text: str, training: Training) -> Fault:
    """Read a fault whose micro-batch and layer may be percentages of the step."""
    place, *numbers = text.split(":")
    if numbers and numbers[0].isdecimal():
        stage = training.layout.place(int(numbers[0])).pp
        counts = (training.layout.ranks, training.micro_batches, len(training.stage_layers(stage)))
        shares = zip_longest(numbers, counts[: len(numbers)])
        numbers = [str(percent(number, count)) for number, count in shares]
    return Fault.parse(":".join([place, *numbers]))


def _training(options: argparse.Namespace, encoding: Encoding) -> Training:
    """Make the step that the options describe, enlarged and with its fault."""
    training = Training(
        Layout(options.tp, options.pp, options.dp, options.ep, options.seed),
        layers=options.layers or 2 * options.pp,
        micro_batches=options.micro_batches,
        schedule=options.schedule,
        p2p=options.p2p,
        level=options.level,
        dtype=f"torch.{options.dtype}",
        warm_up=options.warm_up,
        garbage_buffers=options.garbage_buffers,
        numbered_parameters_grad=not options.unnumbered_grads,
        number=options.step,
        seed=options.seed,
    )
    training = scaled(
        training,
        rank_mb=options.rank_mb,
        ops_per_rank=options.ops_per_rank,
        encoding=encoding,
    )
    planted = [] if options.clean else options.fault or ["forward:0"]
    return training.with_faults(_planted(text, training) for text in planted)


def _damage(options: argparse.Namespace, training: Training) -> Damage:
    if options.proc is not None and training.layout.ranks > 1:
        raise ValueError("--proc names the folder of a single rank")
    cut = {int(rank): int(kept) for rank, _, kept in (c.partition(":") for c in options.cut)}
    return Damage(frozenset(options.missing), cut, options.proc)


def _is_visible(out: Path, first: Origin, damage: Damage, step: int) -> bool:
    """Tell whether the dumps hold the whole record of an op."""
    if first.rank in damage.missing:
        return False
    if first.rank not in damage.kept_bytes:
        return True
    text = (out / f"step{step}" / damage.folder(first.rank) / "dump.json").read_text("utf-8")
    _, found, rest = text.partition(f"{json.dumps(first.op)}:")
    try:
        json.JSONDecoder().raw_decode(rest.lstrip())
    except json.JSONDecodeError:
        return False
    return bool(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line, the process's own by default.

    Returns:
        The exit status: 0, or 2 for options that fit no step.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    encoding = Encoding(
        indent=None if options.indent == "none" else int(options.indent),
        non_finite=options.non_finite,
        numbers=options.numbers,
        stack=options.stack,
        construct=not options.no_construct,
    )
    try:
        training = _training(options, encoding)
        damage = _damage(options, training)
    except ValueError as error:
        parser.error(str(error))
    layout = training.layout
    large = training.layers * training.micro_batches * layout.ranks > _LARGE * layout.pp
    processes = options.processes or (os.cpu_count() or 1 if large else 1)
    try:
        truth = write_training(options.out, training, encoding, damage, processes=processes)
    except FileExistsError as error:
        parser.error(str(error))
    described = {
        "case": options.out.name,
        "model": "moe" if layout.ep > 1 else "gpt",
        "layout": layout.name,
        "level": training.level,
        "dtype": training.compute_dtype.removeprefix("torch."),
        "fault": " ".join(map(str, training.faults)) or "none",
        "layers": training.layers,
        "micro_batches": training.micro_batches,
    }
    visible = truth.first is None or _is_visible(options.out, truth.first, damage, training.number)
    answer = json.dumps(truth.to_json(training.number, visible=visible, **described), indent=1)
    (options.out / "truth.json").write_text(answer + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
