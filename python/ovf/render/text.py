"""Report -> one screen for people: the answer first, then its evidence, its way, what else there is.

Names come from user code: they are shown as text, never as markup, control characters made visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.render.line import Line
from ovf.render.words import KINDS, bytes_text, module_name, number, plural, printable, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ovf.finding import Finding, Value
    from ovf.render.line import Screen
    from ovf.report import Report

_STYLE = {"overflow": "bold red", "clean": "bold green", "no_evidence": "bold yellow"}
_DTYPE_MAX = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
}
_NEAR_LIMIT = 0.5
_FRAMES = 3
_NOTE_OPS = 3
_PROBLEMS = 8


def render(report: Report, screen: Screen, *, seconds: float, top: int, verbose: bool = False) -> None:
    """Print the report.

    Args:
        report: What to show.
        screen: Where to.
        seconds: How long reading took.
        top: Findings to show.
        verbose: Show every stack frame, all notes' ops and the whole path.
    """
    screen.show(_lines(report, screen, seconds=seconds, top=top, verbose=verbose))


def _lines(report: Report, screen: Screen, *, seconds: float, top: int, verbose: bool) -> Iterator[Line]:
    yield _head(report, seconds)
    yield Line()
    if report.verdict == "overflow":
        from ovf.render.map import map_rows  # noqa: PLC0415 - only where it has something to say

        for position, finding in enumerate(report.findings[:top]):
            title = "FIRST OVERFLOW" if position == 0 else "CONCURRENT" if finding.concurrent else "LATER"
            yield from _finding(finding, report, title, verbose=verbose)
            yield Line()
        yield from _spread(report, verbose=verbose)
        yield from map_rows(report, screen)
        yield from _also(report, top)
    elif report.verdict == "clean":
        text = Line("CLEAN  ", style=_STYLE["clean"])
        text.append("no non-finite value that was not intended or healed", style="default")
        if report.incomplete:
            text.append(", in what could be read", style="yellow")
        yield text
    else:
        text = Line("NO EVIDENCE  ", style=_STYLE["no_evidence"])
        text.append("nothing in this dump can be judged", style="default")
        yield text
        yield Line('  record values: "task": "statistics", "summary_mode": "statistics" in msProbe\'s config')
    if len(report.steps) + report.steps_omitted > 1:
        from ovf.render.steps import report_steps  # noqa: PLC0415 - only where it has something to say

        yield from report_steps(report)
    if report.near is not None:
        from ovf.render.near import near  # noqa: PLC0415 - only where it has something to say

        yield from near(report.near, verbose=verbose)
    if report.levels is not None:
        from ovf.render.levels import levels  # noqa: PLC0415 - only where it has something to say

        yield from levels(report.levels, verbose=verbose)
    yield from _unreadable(report, verbose=verbose)
    yield from _notes(report, verbose=verbose)
    if report.exit_code == 2 and report.verdict != "no_evidence":  # noqa: PLR2004 - the documented status
        yield Line("exit 2: the evidence is incomplete; --allow-incomplete-ranks accepts that", style="yellow")


def _head(report: Report, seconds: float) -> Line:
    parts = [
        printable(report.step_label),
        plural(len(report.ranks), "rank"),
        plural(report.total_ops, "op"),
        f"{bytes_text(report.total_bytes)} read in {seconds:.2f} s",
    ]
    others = [label for label, verdict in report.steps[:-1] if verdict == "clean"]
    if others:
        parts.append(f"clean before: {', '.join(printable(o) for o in others)}")
    return Line(" · ".join(parts), style="dim")


def _finding(finding: Finding, report: Report, title: str, *, verbose: bool) -> Iterator[Line]:
    total = next((r.ops for r in report.ranks if r.rank == finding.rank), 0)
    head = Line(f"{title}  ", style="bold red" if title == "FIRST OVERFLOW" else "bold")
    head.append(f"rank {finding.rank}   ", style="bold")
    head.append(printable(finding.op_name), style="bold cyan")
    head.append(f"   exec_order {finding.exec_order:,} of {total:,} ops   ", style="default")
    head.append(finding.certainty, style="green" if finding.certainty == "certain" else "yellow")
    yield head
    yield Line(f"  {printable(finding.reason)}  ({KINDS[finding.kind]}, {finding.phase})")
    for value in finding.inputs:
        yield _value(value)
    for value in finding.forward_inputs:
        yield _value(value, before="forward ")
    for value in finding.outputs:
        yield _value(value)
    for slot, text in finding.scalars:
        if text.lower().lstrip("-") in {"inf", "nan"}:
            yield Line(f"    {printable(slot)}   {text}   given as an argument", style="dim")
    yield from _place(finding, verbose=verbose)
    for doubt in finding.why_not_certain:
        yield _labelled("but", printable(doubt), style="yellow")
    if finding.only_in_recompute:
        yield _labelled("note", "it ran in activation recomputation", style="yellow")
    if finding.members:
        shown = sorted({m.rank for m in finding.members})
        word = "sent by" if finding.inputs == () and finding.kind in {"communication", "corruption"} else "shown by"
        yield _labelled("also", f"{word} {ranks_text(shown)}")
    if finding.hint:
        yield _labelled("likely", finding.hint.likely, style="magenta")
        yield _labelled("next", finding.hint.check, style="magenta")


def _value(value: Value, before: str = "") -> Line:
    bad = value.class_ not in {"finite", "unknown"}
    shape = "[" + ", ".join(map(str, value.shape)) + "]"
    line = Line(f"    {before + printable(value.slot):<22} {shape:<16} {printable(value.dtype):<9}  ")
    if value.class_ == "unknown":
        line.append("no statistics", style="dim")
        return line
    line.append(f"max {number(value.max):<10} min {number(value.min)}", style="red" if bad else "default")
    if value.made_by is not None:
        line.append(f"{'':<{max(0, 10 - len(number(value.min)))}} made by {printable(value.made_by)}", style="dim")
    limit = _DTYPE_MAX.get(value.dtype)
    if limit and not bad and value.max is not None and value.min is not None:
        share = max(abs(value.max), abs(value.min)) / limit
        if share >= _NEAR_LIMIT:
            line.append(f"   at {share:.0%} of the {value.dtype} range", style="yellow")
    return line


def _labelled(label: str, text: str, style: str = "default") -> Line:
    line = Line(f"  {label:<8}", style="dim")
    line.append(text, style=style)
    return line


def _place(finding: Finding, *, verbose: bool) -> Iterator[Line]:
    modules = [m for m in finding.construct_chain[1:] if m]
    if modules:
        yield _labelled("module", " in ".join(printable(module_name(m)) for m in modules))
    user = [f for f in finding.stack if not f.library]
    shown = finding.stack if verbose or not user else user[:_FRAMES]
    for position, frame in enumerate(shown):
        place = frame.file if frame.line is None else f"{frame.file}:{frame.line}"
        text = printable(place) + (f" in {printable(frame.function)}" if frame.function else "")
        line = _labelled("code" if position == 0 else "", text)
        if frame.code:
            line.append(f"   {printable(frame.code)}", style="bold")
        yield line
    folded = len(finding.stack) - len(shown)
    if folded > 0:
        yield _labelled("", f"(+{folded} more frames, -v)", style="dim")


def _spread(report: Report, *, verbose: bool) -> Iterator[Line]:
    spread = report.spread
    if spread is None:
        return
    line = Line("SPREAD  ", style="bold")
    bad = "1 op after it is bad" if spread.ops == 1 else f"{spread.ops:,} ops after it are bad"
    line.append(f"{bad}, on {len(spread.ranks)} of {plural(len(report.ranks), 'rank')}")
    if len(report.ranks) > 1 and report.total_communications == 0:
        line.append(" (no communication is in the dump: how it reached other ranks is not known)")
    if spread.symptom is not None and spread.symptom_kind is not None:
        what = spread.symptom_kind.replace("_", " ")
        seen = f"; first noticed: {what}, rank {spread.symptom.rank}, {printable(spread.symptom.op_name)}"
        line.append(seen)
    yield line
    hops = spread.hops if verbose else spread.hops[:4]
    for hop in hops:
        arrow = f"  rank {hop.from_rank} --{printable(hop.api)}--> {ranks_text(hop.to)}"
        text = Line(arrow)
        text.append(f"   {printable(hop.op_name)}", style="dim")
        yield text
    if len(spread.hops) > len(hops):
        yield Line(f"  (+{plural(len(spread.hops) - len(hops), 'more hop')}, -v)", style="dim")
    if verbose:
        for step in report.path:
            omitted = f"   ({plural(step.omitted, 'op')} between)" if step.omitted else ""
            yield Line(
                f"    {step.via:<14} rank {step.rank:<5} {printable(step.op_name)}{omitted}",
                style="dim",
            )


def _also(report: Report, top: int) -> Iterator[Line]:
    rest = report.findings[top:]
    line = Line("ALSO    ", style="bold")
    concurrent = [f for f in rest if f.concurrent]
    if not report.findings[0].concurrent:
        line.append("concurrent origins: none")
    elif concurrent:
        names = ", ".join(f"rank {f.rank} {printable(f.op_name)}" for f in concurrent[:3])
        line.append(f"{len(concurrent)} concurrent, not ordered against it: {names}", style="yellow")
        if len(concurrent) > 3:  # noqa: PLR2004 - as many as are named
            line.append(", ...")
    later = len(rest) - len(concurrent) + report.findings_omitted
    if later:
        line.append(f"; {plural(later, 'later finding')} (--top N)")
    if line.plain.strip() != "ALSO":
        yield line


def _unreadable(report: Report, *, verbose: bool) -> Iterator[Line]:
    problems = report.unreadable
    shown = problems if verbose or len(problems) <= _PROBLEMS else problems[:_PROBLEMS]
    for problem in shown:
        line = Line("UNREADABLE  ", style="bold yellow")
        line.append(f"rank {problem.rank}  {printable(str(problem))}")
        yield line
        if problem.help:
            yield Line(f"  help: {problem.help}", style="dim")
    rest = problems[len(shown) :]
    if rest:
        yield Line(f"  (+{len(rest)} more, {ranks_text([p.rank for p in rest])}, -v)", style="dim")


def _notes(report: Report, *, verbose: bool) -> Iterator[Line]:
    for position, note in enumerate(report.notes):
        line = Line("NOTES   " if position == 0 else "        ", style="bold")
        line.append(printable(note.text))
        ops = note.ops if verbose else note.ops[:_NOTE_OPS]
        if ops:
            names = ", ".join(f"rank {o.rank} {printable(o.op_name)}" for o in ops)
            line.append(f": {names}{', ...' if note.count > len(ops) else ''}", style="dim")
        yield line
