"""Steps -> lines for people and plain data: one row a step, and what changed where it went bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ovf.render.line import Line
from ovf.render.words import number, plural, printable
from ovf.seen import last_good

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ovf.report import Report
    from ovf.step import StepSummary

_STYLE = {"overflow": "red", "clean": "green", "no_evidence": "yellow"}
_ROWS_IN_REPORT = 5
"""Rows before the answered step that a report shows."""


def steps_json(steps: Sequence[StepSummary]) -> dict[str, Any]:
    """What `ovf steps --json` prints: strict JSON, non-finite numbers as strings."""
    rows = [_strict(_row(s)) for s in steps]
    bad = next((s.step_label for s in steps if s.verdict == "overflow"), None)
    good = last_good([_short(s) for s in steps])
    return {"schema_version": 1, "first_bad": bad, "last_good": _strict(good) if good else None, "steps": rows}


def _row(step: StepSummary) -> dict[str, Any]:
    """A summary as a table of tables."""
    parts = {"first": step.first, "loss": step.loss, "gradient_norm": step.gradient_norm}
    return {**step._asdict(), **{name: part._asdict() if part else None for name, part in parts.items()}}


def _strict(data: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, float) and value - value != 0:
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - NaN
        return value

    return {k: plain(v) for k, v in data.items()}


def _short(step: StepSummary) -> dict[str, Any]:
    """A step as a report's `steps` have it."""
    first = step.first
    return {
        "step": step.step,
        "step_label": step.step_label,
        "verdict": step.verdict,
        "first": {"rank": first.rank, "op_name": first.op_name} if first else None,
        "loss": step.loss.value if step.loss else None,
        "gradient_norm": step.gradient_norm.value if step.gradient_norm else None,
    }


def overview(steps: Sequence[StepSummary]) -> Iterator[Line]:
    """Every step, and where it went bad."""
    rows = [_short(s) for s in steps]
    yield from _table(rows, "")
    yield Line()
    bad = next((s for s in steps if s.verdict == "overflow"), None)
    if bad is None:
        judged = sum(s.verdict == "clean" for s in steps)
        yield Line(f"no overflow in {plural(judged, 'step')}" + _unjudged(len(steps) - judged))
        return
    line = Line("FIRST BAD STEP  ", style="bold red")
    line.append(printable(bad.step_label), style="bold")
    if bad.first is not None:
        line.append(
            f"   rank {bad.first.rank}   {printable(bad.first.op_name)}   {bad.first.certainty}", style="default"
        )
        line.append(f"   on {bad.ranks_reached} of {plural(bad.ranks, 'rank')}", style="default")
    yield line
    yield from _link(rows)


def _unjudged(count: int) -> str:
    return f"; {plural(count, 'step')} could not be judged" if count else ""


def report_steps(report: Report) -> Iterator[Line]:
    """The short table that a report of one step of many shows."""
    rows = report.to_dict()["steps"]
    shown = rows[-_ROWS_IN_REPORT:]
    yield from _table(shown, "STEPS   ")
    before, after = len(rows) - len(shown), report.steps_omitted
    if before or after:
        parts = [
            f"{plural(before, 'step')} before" if before else "",
            f"{plural(after, 'later step')} not looked at" if after else "",
        ]
        yield Line(f"        ({'; '.join(p for p in parts if p)}: ovf steps)", style="dim")
    yield from _link(rows, indent="        ")


def _table(rows: Sequence[Mapping[str, Any]], label: str) -> Iterator[Line]:
    labels = [printable(r["step_label"]) for r in rows]
    width = max(map(len, [*labels, "step"]))
    numbers = any(r["loss"] is not None or r["gradient_norm"] is not None for r in rows)
    head = Line(label, style="bold")
    head.append(f"{'step':<{width}}  {'verdict':<11}  ", style="dim")
    if numbers:
        head.append(f"{'loss':>10}  {'grad norm':>10}  ", style="dim")
    head.append("first overflow", style="dim")
    yield head
    for row, name in zip(rows, labels, strict=True):
        line = Line(" " * len(label) + f"{name:<{width}}  ")
        line.append(f"{row['verdict']:<11}  ", style=_STYLE[row["verdict"]])
        if numbers:
            line.append(f"{_reading(row['loss']):>10}  {_reading(row['gradient_norm']):>10}  ")
        first = row["first"]
        line.append(f"rank {first['rank']}  {printable(first['op_name'])}" if first else "-")
        yield line


def _reading(value: float | str | None) -> str:
    return number(None if value is None else float(value))


def _link(rows: Sequence[Mapping[str, Any]], indent: str = "") -> Iterator[Line]:
    """From the last good step to the first bad one."""
    good = last_good(rows)
    bad = next((r for r in rows if r["verdict"] == "overflow"), None)
    if good is None or bad is None:
        return
    line = Line(f"{indent}last good {printable(good['step_label'])}")
    changes = [
        f"{name} {_reading(good[key])} -> {_reading(bad[key])}"
        for name, key in (("loss", "loss"), ("gradient norm", "gradient_norm"))
        if good[key] is not None or bad[key] is not None
    ]
    line.append(f": {', '.join(changes)} in {printable(bad['step_label'])}" if changes else "")
    yield line
