"""Report -> one HTML file that opens from disk: the verdict, the map of all ranks, the path, the tables.

What is words is written here, by a template with autoescape: it stands without script, on paper too. What is drawn
comes from one block of data (JSON, deflated, base64: no sign of it can end the block), and the scripts set text only
as text. A content security policy lets the page's own script and style run, by their hashes, and forbids every request.
Names are user text: control and bidirectional characters are made visible, long names are cut.

The same report gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

import ovf
from ovf.render.words import KINDS, bytes_text, module_name, number, plural, printable, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ovf.finding import Finding, Value
    from ovf.report import Report
    from ovf.spread import Communication

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("atlas.js", "map.js", "controls.js", "page.js")

#: Communications in the table and members of communications on the map: what a browser shows without delay.
_ROWS = 400
_MEMBERS = 100_000

#: Largest finite number of a dtype, after IEEE 754 and torch.finfo.
_DTYPE_MAX = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
}
_NEAR_LIMIT = 0.5

#: Ops shown at both ends of a rank's part of the path.
_LEG_ENDS = 2

SYMPTOMS = {
    "loss": "the loss",
    "gradient_norm": "a gradient norm",
    "optimizer": "a state the optimizer wrote",
    "forward_output": "the last value of the forward part",
    "gradient": "a gradient",
    "last_op": "the last bad op of the file",
}


def html(report: Report, atlas: str) -> str:
    """The page.

    Args:
        report: The answer.
        atlas: Every op of every rank, as JSON (docs/report.md, "Atlas").

    Returns:
        A whole HTML document.
    """
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "p": printable,
        "n": number,
        "ranks": _ranks,
        "share": share_of_limit,
        "pair": lambda v, before: (before, v),
    }
    env.globals |= {"plural": plural, "lead_up": lead_up}
    style = (_PAGE / "style.css").read_text(encoding="utf-8")
    script = "".join((_PAGE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    drawn = json.loads(atlas)
    communications = [c for c in report.communications if c.source_ranks or c.propagated_ranks]
    unmatched = [c for c in report.communications if not (c.source_ranks or c.propagated_ranks)]
    page: str = env.get_template(
        "report.html.j2"
    ).render(
        report=report,
        version=ovf.__version__,
        kinds=KINDS,
        symptoms=SYMPTOMS,
        size=bytes_text(report.total_bytes),
        policy=_policy(script, style),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - a file of this package
        data=_packed(_drawing(report, drawn)),
        concurrent=[f for f in report.findings[1:] if f.concurrent],
        later=[f for f in report.findings[1:] if not f.concurrent],
        communications=[_row(c) for c in (communications + unmatched)[:_ROWS]],
        more_communications=max(0, len(report.communications) - _ROWS),
        total_of={r.rank: r.ops for r in report.ranks},
        legs=_legs(report),
        module=module_name,
    )
    return page


def share_of_limit(value: Value) -> float | None:
    """How much of its dtype's range a finite value takes, when that is half of it or more.

    Limits are the largest finite numbers of IEEE 754 and torch.finfo.
    """
    limit = _DTYPE_MAX.get(value.dtype)
    if limit is None or value.class_ != "finite" or value.max is None or value.min is None:
        return None
    share = max(abs(value.max), abs(value.min)) / limit
    return share if share >= _NEAR_LIMIT else None


def magnitude(value: Value | None) -> float | None:
    """Largest absolute value; infinite for NaN and Inf, `None` where not known."""
    if value is None or value.max is None or value.min is None:
        return None
    largest = max(abs(value.max), abs(value.min))
    return largest if value.class_ == "finite" and math.isfinite(largest) else math.inf


def lead_up(finding: Finding) -> list[dict[str, Any]]:
    """The ops before a finding and the finding itself: how large their values were, and how they grew.

    Each row: `op_name`, `exec_order`, `value` (its largest output, else input), `size` (largest absolute value),
    `growth` (of the output over the input, where both are finite and not zero), `share` (of the dtype's range, where it
    is half or more), `room` (0 to 1: where the size stands between 1e-8 and the dtype's limit, by powers of ten).
    """
    last: dict[str, Any] = {
        "op_name": finding.op_name,
        "exec_order": finding.exec_order,
        "input": max(finding.inputs, key=lambda v: magnitude(v) or 0.0, default=None),
        "output": max(finding.outputs, key=lambda v: magnitude(v) or 0.0, default=None),
    }
    before: list[dict[str, Any]] = [
        {"op_name": b.op_name, "exec_order": b.exec_order, "input": b.input, "output": b.output} for b in finding.before
    ]
    rows = []
    for op in [*before, last] if before else []:
        value = op["output"] or op["input"]
        size, taken, given = magnitude(value), magnitude(op["input"]), magnitude(op["output"])
        growth = given / taken if taken and given and math.isfinite(taken) and math.isfinite(given) else None
        limit = _DTYPE_MAX.get(value.dtype, _DTYPE_MAX["float32"]) if value else 1.0
        room = 0.0 if not size else 1.0 if math.isinf(size) else (math.log10(size) + 8) / (math.log10(limit) + 8)
        rows.append(
            {
                "op_name": op["op_name"],
                "exec_order": op["exec_order"],
                "value": value,
                "size": size,
                "growth": growth,
                "share": share_of_limit(value) if value else None,
                "room": round(min(max(room, 0.0), 1.0), 3),
            }
        )
    return rows


def _ranks(ranks: tuple[int, ...]) -> str:
    """`0-3, 8`, or a dash."""
    return ranks_text(ranks).split(" ", 1)[1] if ranks else "-"


def _legs(report: Report) -> list[dict[str, Any]]:
    """The path by rank: each leg's ops, the middle of long ones folded."""
    apis = {(m.rank, m.exec_order): c.api for c in report.communications for m in c.members}
    legs: list[dict[str, Any]] = []
    for position, step in enumerate(report.path):
        if not legs or step.via == "communication":
            giver = report.path[position - 1] if legs else step
            named = giver.op_name.split(".")[1:2] or ["communication"]  # where the list of communications was cut
            api = apis.get((giver.rank, giver.exec_order), named[0])
            legs.append({"rank": step.rank, "giver": giver.rank, "api": api, "steps": []})
        legs[-1]["steps"].append(step)
    for leg in legs:
        steps = leg.pop("steps")
        middle = steps[_LEG_ENDS:-_LEG_ENDS] if len(steps) > 2 * _LEG_ENDS + 1 else []
        shown = [{"step": s, "folded": []} for s in steps]
        if middle:
            folded = {"folded": middle, "omitted": sum(s.omitted for s in middle)}
            shown[_LEG_ENDS:-_LEG_ENDS] = [folded]
        leg["parts"] = shown
    return legs


def _policy(script: str, style: str) -> str:
    def hashed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _packed(data: dict[str, Any]) -> str:
    """Data that no sign of can end the block it stands in."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _row(c: Communication) -> dict[str, Any]:
    """One line of the table of communications."""
    pair = c.api in {"send", "isend", "recv", "irecv"} and len(c.members) == 2  # noqa: PLR2004 - giver and getter
    members = f"{c.members[0].rank} → {c.members[1].rank}" if pair else _ranks(tuple(sorted(m.rank for m in c.members)))
    first = c.members[0] if c.members else None
    return {"c": c, "members": members, "lost": tuple(sorted((*c.missing_ranks, *c.unmatched_ranks))), "first": first}


def _drawing(report: Report, atlas: dict[str, Any]) -> dict[str, Any]:
    """What the map needs beside the atlas."""
    members = 0
    links = []
    for c in report.communications:
        if not (c.source_ranks or c.propagated_ranks) or c.verdict not in {"overflow", "origin", "entered"}:
            continue
        members += len(c.members)
        if members > _MEMBERS:
            break
        links.append(_link(c))
    spread = report.spread
    return {
        "atlas": atlas,
        "links": links,
        "hops": [[h.api, h.from_rank, h.exec_order, list(h.to), list(h.arrivals)] for h in spread.hops]
        if spread
        else [],
        "path": [[s.rank, s.exec_order, s.via, s.symptom] for s in report.path],
        "findings": [
            [f.rank, f.exec_order, [x for m in f.members for x in (m.rank, m.exec_order)]] for f in report.findings
        ],
        "details": dict(_details(report)),
        "broken": sorted({u.rank for u in report.unreadable}),
    }


def _link(c: Communication) -> list[Any]:
    sources, getters = set(c.source_ranks), set(c.propagated_ranks)
    return [
        c.api,
        [x for m in c.members if m.rank in sources for x in (m.rank, m.exec_order)],
        [x for m in c.members if m.rank in getters for x in (m.rank, m.exec_order)],
    ]


def _details(report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a card says of findings beyond their look."""
    for finding in report.findings:
        if finding.inputs or finding.outputs:
            values = [_value(v) for v in (*finding.inputs, *finding.outputs)]
            yield f"{finding.rank}:{finding.exec_order}", {"reason": finding.reason, "values": values}


def _value(v: Value) -> list[Any]:
    return [printable(v.slot), printable(v.dtype), list(v.shape), number(v.max), number(v.min), v.class_]
