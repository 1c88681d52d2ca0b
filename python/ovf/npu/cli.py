"""``ovf npu``: status, probe, merge-probes, patch. Nothing but wiring and words."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import NoReturn

import rich_click as click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ovf.npu.diagnosis import Status
from ovf.npu.diagnosis import status as take_status
from ovf.npu.intervals import ProbeFormatError
from ovf.npu.merge import MergedProbes, merge_probes
from ovf.npu.patch import PatchRefusedError, carry_out, plan, plan_revert

FINDINGS, USAGE = 1, 2


@click.group(name="npu")
def npu() -> None:
    """The overflow switch and float_status register of Ascend NPUs (FORCE_OVERFLOW_CHECK).

    Exit codes: 0 as asked, 1 findings or refused, 2 usage error or input that could not be read.
    """


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"ovf npu: {message}", err=True)
    sys.exit(code)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _yes(value: bool | None) -> str:  # noqa: FBT001
    return "unknown" if value is None else "yes" if value else "no"


def _print_status(found: Status) -> None:
    console = _console()
    console.print(f"overflow check: [bold]{'on' if found.on else 'off'}[/bold] ({escape(found.reason)})")
    if not found.available:
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("torch_npu", escape(f"{found.torch_npu}, ships the feature: {_yes(found.feature_in_wheel)}"))
    variable = "not set" if found.variable is None else repr(found.variable)
    table.add_row("FORCE_OVERFLOW_CHECK", escape(f"{variable}, asks for it: {_yes(found.requested)}"))
    table.add_row("CANN", escape(f"{found.cann or 'unknown'}, new enough: {_yes(found.cann_allows)}"))
    table.add_row("processor", escape(found.soc or "not looked at (--touch-device)"))
    table.add_row("mode", escape(found.mode or "not looked at (--touch-device)"))
    for device in found.streams:
        table.add_row(
            f"device {device.device}",
            f"switch on {device.on}, off {device.off}, unknown {device.unknown}",
        )
    console.print(table)
    for warning in found.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


@npu.command()
@click.option(
    "--touch-device",
    is_flag=True,
    help="Initialise torch_npu on the current device to see mode and streams.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(*, touch_device: bool, as_json: bool) -> None:
    """Tell whether the overflow check is on here, and why.

    Exits 0 where it is on, 1 where it is off or torch_npu cannot be used.
    """
    found = take_status(touch_device=touch_device)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print_status(found)
    sys.exit(0 if found.on else FINDINGS)


@npu.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    "--output_path",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("./output"),
    show_default=True,
    help="Folder for probe_rank<N>.jsonl.",
)
@click.option(
    "--period",
    type=click.FloatRange(min=0.001),
    default=0.05,
    show_default=True,
    help="Seconds between reads.",
)
@click.option(
    "--device",
    type=click.IntRange(min=0),
    default=None,
    help="Device index; LOCAL_RANK, else 0, if not given.",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def probe(*, output: Path, period: float, device: int | None, script: Path, arguments: tuple[str, ...]) -> None:
    """Run a training SCRIPT with the overflow check on and a probe beside it.

    Sets FORCE_OVERFLOW_CHECK=1, turns the switch on, and reads the register from a stream of its
    own. Each rank writes one file; put them in order with merge-probes. With torchrun:

        torchrun --nproc-per-node 8 --no-python ovf npu probe -o probes train.py --its-own-options

    The exit code is the script's.
    """
    from ovf.npu import launch, wheel  # noqa: PLC0415

    try:
        code = launch.run_script(
            script,
            list(arguments),
            output,
            device=launch.local_device() if device is None else device,
            period=period,
        )
    except wheel.UnavailableError as error:
        _fail(f"unavailable: {error}", FINDINGS)
    sys.exit(code)


def _print_merged(merged: MergedProbes) -> None:
    console = _console()
    if merged.first:
        names = ", ".join(map(str, merged.first))
        console.print(f"first overflow: rank {names}" + (" (order undecided)" if len(merged.first) > 1 else ""))
        table = Table("place", "rank", "host", "after (UTC)", "width ms", "steps", "intervals", box=None)
        for row in merged.overflows:
            seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.begin_wall_ns // 10**9))
            steps = "" if row.step_begin is None else f"{row.step_begin}-{row.step_end}"
            table.add_row(
                str(row.place),
                str(row.rank),
                escape(row.host),
                f"{seconds}.{row.begin_wall_ns // 1000 % 10**6:06d}",
                f"{(row.end_wall_ns - row.begin_wall_ns) / 1e6:.3f}",
                steps,
                str(row.intervals),
            )
        console.print(table)
    else:
        console.print("no overflow seen")
    console.print(f"clock uncertainty: {escape(merged.uncertainty)}")
    if merged.clean:
        console.print(f"no overflow on ranks: {', '.join(map(str, merged.clean))}")
    for rank, reason in merged.not_watched.items():
        console.print(f"[yellow]not watched:[/yellow] rank {rank}: {escape(reason)}")
    for rank, wall in merged.crashed.items():
        seen = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall // 10**9))
        console.print(f"[yellow]no last line:[/yellow] rank {rank} was last seen at {seen} UTC")
    for note in merged.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")


@npu.command("merge-probes")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--clock-uncertainty",
    type=click.FloatRange(min=0),
    default=None,
    help="Milliseconds that two hosts' clocks may be apart; the kernels' own bounds if not given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def merge_probes_(*, folder: Path, clock_uncertainty: float | None, as_json: bool) -> None:
    """Put the ranks of DIR in the order of their first overflow.

    Exits 0 where no rank overflowed, 1 where one did, 2 where a file could not be read or a rank
    was not watched.
    """
    given = None if clock_uncertainty is None else round(clock_uncertainty * 1e6)
    try:
        merged = merge_probes(folder, clock_uncertainty_ns=given)
    except (OSError, ProbeFormatError) as error:
        _fail(str(error), USAGE)
    if as_json:
        click.echo(json.dumps(merged.to_dict(), indent=2))
    else:
        _print_merged(merged)
    sys.exit(USAGE if merged.not_watched else FINDINGS if merged.first else 0)


@npu.command()
@click.argument(
    "checkout",
    metavar="TORCH_NPU_CHECKOUT",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--check", is_flag=True, help="Write nothing; exit 0 if ovf has patched the tree, 1 if not.")
@click.option("--diff", is_flag=True, help="Write nothing; print the change as a unified diff.")
@click.option("--revert", is_flag=True, help="Take the change out again, to the byte.")
def patch(*, checkout: Path, check: bool, diff: bool, revert: bool) -> None:
    """Bring FORCE_OVERFLOW_CHECK into a torch_npu source tree.

    Finds the stream creation and the three Python functions by their structure, and adds the C++
    and Python gates, a CANN version test of their own, the API schema entry and the
    environment-variable page. Refuses with a reason, and leaves the tree untouched, on any doubt.
    Running it again changes nothing.
    """
    if check and (diff or revert):
        raise click.UsageError("--check goes with neither --diff nor --revert")
    try:
        made = plan_revert(checkout) if revert else plan(checkout)
        if not (check or diff):
            carry_out(checkout, made)
    except PatchRefusedError as error:
        _fail(f"refused: {error}", FINDINGS)
    except OSError as error:
        _fail(f"{error}; the tree is as it was", USAGE)
    if diff:
        click.echo(made.diff(), nl=False)
    elif not check:
        for change in made.changes:
            word = "added" if change.before is None else "removed" if change.after is None else "edited"
            click.echo(f"{word:8}{change.path}")
    for note in made.notes:
        click.echo(f"ovf npu: {note}", err=True)
    if check and made.changes:
        _fail(f"not patched: {len(made.changes)} files would change", FINDINGS)
