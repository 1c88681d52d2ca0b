"""The screen: the map of ranks, hints by kind of fault, hostile names."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import ovf
from ovf.render.line import Line, Screen
from ovf.render.map import map_rows
from ovf.render.text import render
from small import INF, NAN, collective, grad, loss_chain, op, recv, scalar, t, write_rank, write_step

DATA = Path(__file__).parent / "data"
HALF, FULL = "torch.float16", "torch.float32"


def screen(path, *, width=100, encoding="utf-8"):
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    report = ovf.find_first_overflow(path, also=["strip"])
    screen = Screen(buffer, width)
    screen.show(map_rows(report, screen))
    return report, buffer.buffer.getvalue().decode(encoding).splitlines()


# --- the map ----------------------------------------------------------------------------------------------------------


def test_a_row_a_rank_and_the_first_overflow_in_it():
    report, (head, *rows) = screen(DATA / "experts_all_to_all")
    assert head.startswith("MAP")
    assert [r.split()[1] for r in rows] == [str(r.rank) for r in report.ranks]
    marked = [r for r in rows if "◆" in r]
    assert [r.split()[1] for r in marked] == [str(report.first.rank)]
    assert all(len(r) <= 100 for r in rows)


def test_each_op_is_a_cell_where_they_fit(tmp_path):
    data = {
        "Torch.a.0.forward": op([t(1.0, 0.0)], [t(1.0, 0.0)]),
        "Torch.b.0.forward": op([t(1.0, 0.0)], [t(NAN, NAN)]),
        "Torch.c.0.forward": op([t(NAN, NAN)], [t(1.0, 0.0)]),
        **loss_chain(),
    }
    write_rank(tmp_path / "step0" / "rank0", data)
    write_rank(tmp_path / "step0" / "rank1", {"Torch.a.0.forward": op([], [t(1.0, 0.0)])})
    _, (_, first, second) = screen(tmp_path)
    assert (first.split()[-1], second.split()[-1]) == ("·◆▒██", "·")


def test_without_unicode_and_without_room():
    _, (head, *rows) = screen(DATA / "experts_all_to_all", encoding="ascii")
    assert "X first overflow" in head
    assert any("X" in r for r in rows)
    assert screen(DATA / "experts_all_to_all", width=15)[1] == []


def test_many_ranks_are_grouped(tmp_path):
    fine = {f"Torch.a.{i}.forward": op([], [t(1.0, 0.0)]) for i in range(40)}
    ranks = dict.fromkeys(range(100), fine)
    ranks[57] = {**fine, "Torch.log.0.forward": op([t(1.0, 0.0)], [t(NAN, NAN)]), **loss_chain()}
    _, (_, *rows) = screen(write_step(tmp_path / "step0", ranks))
    assert len(rows) <= 16
    (marked,) = [r for r in rows if "◆" in r]
    low, high = marked.split()[1].split("-")
    assert int(low) <= 57 <= int(high)
    assert rows[0].startswith("  ranks 0-6")
    assert rows[-1].strip().startswith("ranks 98-99")


@pytest.mark.parametrize("ops", [3, 99, 150, 230, 256, 257, 301, 700])
def test_the_only_origin_is_the_diamond(tmp_path, ops):
    for at in {0, 1, ops // 3, ops // 2, ops - 2, ops - 1}:
        names = [f"Torch.a.{i}.forward" for i in range(ops)]
        data = dict.fromkeys(names, op([t(1.0, 0.0)], [t(1.0, 0.0)]))
        data[names[at]] = op([t(1.0, 0.0)], [t(NAN, NAN)])
        write_rank(tmp_path / f"{at}" / "rank0", {**data, **loss_chain()})
        _, (_, row) = screen(tmp_path / f"{at}")
        assert (row.count("◆"), row.count("▓")) == (1, 0), at


def test_a_clean_step_has_no_map():
    assert screen(DATA / "clean_log_mask")[1] == []


def test_hostile_names_on_the_screen(tmp_path):
    name = "\x1b[31m[bold]\u202e" + "z" * 1000 + ".0.forward"
    path = write_rank(tmp_path / "step0" / "rank0", {name: op([t(1.0, 0.0)], [t(NAN, NAN)]), **loss_chain()})
    report = ovf.find_first_overflow(path, also=["strip", "near", "levels"])
    buffer = io.StringIO()
    render(report, Screen(buffer, width=120), seconds=0.0, top=1, verbose=True)
    text = buffer.getvalue()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text


# --- lines and screens: what rich makes of the same ---------------------------------------------------------------------

STYLES = ["", "bold", "dim", "default", "red", "green", "yellow", "magenta", "cyan", "bold red", "bold green"]
PARTS = [
    [("a line", "")],
    [("", ""), ("after nothing", "dim")],
    [("one", ""), ("two", ""), ("three", "red"), ("", "cyan"), ("four", "red"), ("five", ""), ("six", "bold magenta")],
    [("[bold]no markup[/bold] :smile: \\[x]", ""), ("123 'text' http://x.y/z None", "dim")],
    [("wide " * 60, "yellow"), ("   ", "")],
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("colored", [True, False])
def test_a_line_is_what_rich_would_print(style, colored):
    from rich.console import Console
    from rich.text import Text

    for parts in PARTS:
        ours, theirs = Line(parts[0][0], style=style), Text(parts[0][0], style=style)
        for text, own in parts[1:]:
            ours.append(text, style=own)
            theirs.append(text, style=own)
        for styled in (True, False):
            buffers = io.StringIO(), io.StringIO()
            Screen(buffers[0], 80, styled=styled, colored=colored).show([ours])
            system = "standard" if styled else None
            console = Console(
                file=buffers[1], width=80, force_terminal=styled, color_system=system, no_color=not colored
            )
            console.print(theirs, soft_wrap=True, highlight=False)
            assert buffers[0].getvalue() == buffers[1].getvalue()
        assert ours.plain == theirs.plain


def test_control_characters_in_a_line_are_visible():
    line = Line("a\x1b[31mb\x07\x9b1m", style="red")
    line.append("\x00\r")
    assert line.plain == "a\\x1b[31mb\\x07\\x9b1m\\x00\\x0d"
    assert line.ansi(colored=True) == f"\x1b[31m{line.plain}\x1b[0m"


class Stdout(io.StringIO):
    """A standard output that is a terminal or not."""

    def __init__(self, *, tty):
        super().__init__()
        self.tty = tty

    def isatty(self):
        return self.tty


@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize("color", ["auto", "always", "never"])
@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TERM": "dumb"},
        {"TERM": "unknown"},
        {"TERM": "xterm"},
        {"NO_COLOR": "1"},
        {"NO_COLOR": ""},
        {"FORCE_COLOR": "1"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
        {"FORCE_COLOR": "1", "TERM": "dumb"},
        {"COLUMNS": "57"},
        {"COLUMNS": "many"},
    ],
    ids=str,
)
def test_a_screen_goes_by_the_signs_that_rich_goes_by(tty, color, env, monkeypatch):
    from rich.console import Console

    from ovf.cli.screen import screen_for

    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Stdout(tty=tty))
    screen = screen_for(color)
    options = {
        "always": {"force_terminal": True, "color_system": "standard"},
        "never": {"no_color": True},
        "auto": {} if tty else {"width": 400},
    }
    console = Console(**options[color])
    assert screen.styled == (console.color_system is not None)
    assert screen.colored == (not console.no_color)
    assert screen.width == console.width


def test_many_unreadable_ranks_are_folded(tmp_path):
    step = write_step(tmp_path / "step0", {r: {"Torch.a.0.forward": op([], [t(1.0, 0.0)])} for r in range(40)})
    for rank in range(3, 30):
        (step / f"rank{rank}" / "dump.json").write_text("{")
    report = ovf.find_first_overflow(step)

    def lines(*, verbose):
        buffer = io.StringIO()
        render(report, Screen(buffer, width=120), seconds=0.0, top=1, verbose=verbose)
        return [x for x in buffer.getvalue().splitlines() if x.startswith("UNREADABLE") or "more, ranks" in x]

    assert lines(verbose=False)[8:] == ["  (+19 more, ranks 11-29, -v)"]
    assert len(lines(verbose=True)) == 27


# --- hints by kind of fault: every hint stands where its fault is, and nowhere else ------------------------------------

X, ZERO, NEG = t(3.0, 0.5, FULL), t(0.0, 0.0, FULL), t(-0.5, -3.0, FULL)
INFS, NANS = t(INF, 1.0, FULL), t(NAN, NAN, FULL)
MASK = t(1.0, -INF, FULL)


def named(api, inputs, outputs, before=()):
    return {**dict(before), f"{api}.0.forward": op(inputs, outputs)}


FAULTS = {
    "fp16 cast": (named("Tensor.half", [t(1e6, 0.0, FULL)], [t(INF, 0.0, HALF)]), "does not fit float16"),
    "fp8 cast": (
        named("Tensor.to", [t(1e6, 0.0, FULL)], [t(NAN, 0.0, "torch.float8_e4m3fn")]),
        "does not fit the 8-bit float",
    ),
    "bf16 cast": (named("Tensor.bfloat16", [t(3.4e38, 0.0, FULL)], [t(INF, 0.0)]), "beyond the bfloat16 limit"),
    "fp16 product": (
        named("Torch.matmul", [t(300.0, 1.0, HALF)], [t(INF, 0.0, HALF)]),
        "product passes the float16 limit",
    ),
    "fp16 sum": (named("Torch.add", [t(60000.0, 1.0, HALF)], [t(INF, 0.0, HALF)]), "passes the float16 limit"),
    "log of 0": (named("Torch.log", [ZERO], [t(-INF, -INF, FULL)]), "log of 0"),
    "log of softmax": (
        named(
            "Torch.log",
            [t(1.0, 0.0, FULL)],
            [t(0.0, -INF, FULL)],
            named("Torch.softmax", [X], [t(1.0, 0.0, FULL)]).items(),
        ),
        "log of a softmax that underflowed",
    ),
    "log of negative": (named("Torch.log", [NEG], [NANS]), "negative element"),
    "sqrt of negative": (named("Torch.sqrt", [NEG], [NANS]), "negative element"),
    "rsqrt of 0": (named("Torch.rsqrt", [ZERO], [INFS]), "reciprocal root of 0"),
    "masked row": (
        named("Torch.softmax", [MASK], [NANS], named("Tensor.masked_fill", [X, scalar(-INF)], [MASK]).items()),
        "fully masked row",
    ),
    "0/0": (named("Torch.div", [t(1.0, 0.0, FULL), ZERO], [NANS]), "0/0"),
    "mean of nothing": (
        named("Torch.div", [t(0.0, 0.0, FULL, ()), t(0.0, 0.0, FULL, ())], [t(NAN, NAN, FULL, ())]),
        "the mean or share of nothing",
    ),
    "x/0": (named("Torch.div", [X, ZERO], [INFS]), "division by 0"),
    "zero vector": (
        named(
            "Torch.div",
            [t(1.0, -1.0, FULL), t(2.0, 0.0, FULL)],
            [NANS],
            named("Torch.norm", [X], [t(2.0, 0.0, FULL)]).items(),
        ),
        "zero vector divided by its norm",
    ),
    "cosine": (named("Functional.cosine_similarity", [X, ZERO], [NANS]), "zero vector has no direction"),
    "every label ignored": (
        named("Functional.nll_loss", [X], [t(NAN, NAN, FULL, ())]),
        "every label of the batch is ignored",
    ),
    "exp": (named("Torch.exp", [t(200.0, 0.0, FULL)], [INFS]), "exponential leaves the range"),
    "exp fp16": (named("Torch.exp", [t(12.0, 0.0, HALF)], [t(INF, 0.0, HALF)]), "exponential passes the float16 limit"),
    "pow": (named("Tensor.pow", [t(1e30, 0.0)], [t(INF, 0.0)]), "power or square leaves the range"),
    "norm": (named("Torch.norm", [t(1e30, 0.0, FULL)], [t(INF, INF, FULL, ())]), "sum of squares leaves the range"),
    "var of one": (named("Torch.var", [X], [NANS]), "unbiased variance of a single element"),
    "acos": (named("Torch.acos", [t(1.1, 0.0, FULL)], [NANS]), "outside of [-1, 1]"),
    "layer norm": (named("Functional.layer_norm", [ZERO], [NANS]), "variance of 0 with an eps of 0"),
    "linear": (named("Functional.linear", [X, t(2e38, 0.0, FULL)], [INFS]), "product leaves the range"),
    "mask times 0": (
        named("Torch.mul", [MASK, ZERO], [NANS], named("Tensor.masked_fill", [X, scalar(-INF)], [MASK]).items()),
        "0 times inf",
    ),
    "module": ({"Module.mlp.MLP.forward.0": op([X], [NANS])}, "operator inside this module"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_forward_hints(fault, tmp_path):
    data, says = FAULTS[fault]
    bad = next(reversed(data.values()))["output"][0]
    level = {"level": "L0"} if "Module" in next(iter(data)) else {}
    path = write_rank(tmp_path / "step0" / "rank0", {**data, **loss_chain(bad)}, **level)
    first = ovf.find_first_overflow(path).first
    assert first.op_name == list(data)[-1]
    assert says in first.hint.likely
    assert first.hint.check
    assert first.hint.source


BACKWARD = {
    "sqrt": ("Torch.sqrt", ZERO, NANS, "derivative of a root at 0"),
    "norm": ("Torch.norm", ZERO, NANS, "derivative of a norm or distance at 0"),
    "log": ("Torch.log", t(1.0, 0.0, FULL), INFS, "derivative of a logarithm at 0"),
    "std": ("Torch.std", ZERO, NANS, "derivative of the standard deviation"),
    "div": ("Torch.div", t(1.0, 0.0, FULL), NANS, "derivative of a division by 0"),
    "fp16": ("Torch.mul", t(1.0, 0.5, HALF), t(INF, 0.0, HALF), "a gradient passes the float16 limit"),
    "range": ("Torch.mul", X, INFS, "a gradient leaves the range"),
}


@pytest.mark.parametrize("fault", BACKWARD)
def test_backward_hints(fault, tmp_path):
    api, forward, gradient, says = BACKWARD[fault]
    good = t(1.0, 0.5, forward["dtype"])
    data = {
        f"{api}.0.forward": op([forward], [good]),
        "Functional.cross_entropy.0.forward": op([good], [t(1.0, 1.0, FULL, ())]),
        "Functional.cross_entropy.0.backward": grad([t(1.0, 1.0, FULL, ())], [good]),
        f"{api}.0.backward": grad([good], [gradient]),
    }
    first = ovf.find_first_overflow(write_rank(tmp_path / "step0" / "rank0", data)).first
    assert first.op_name == f"{api}.0.backward"
    assert says in first.hint.likely


def test_communication_hints(tmp_path):
    fine = t(30000.0, 0.0, HALF)
    ranks = {
        r: dict(
            [collective("all_reduce", fine, t(INF, 0.0, HALF), ranks=[0, 1]), *loss_chain(t(INF, 0.0, HALF)).items()]
        )
        for r in (0, 1)
    }
    first = ovf.find_first_overflow(write_step(tmp_path / "a" / "step0", ranks)).first
    assert "sum over the group passes the float16 limit" in first.hint.likely
    sender = {"Distributed.send.0.forward": op([X, scalar(1)], [X, scalar(1)])}
    receiver = dict([recv(NANS, 0), *loss_chain(NANS).items()])
    first = ovf.find_first_overflow(write_step(tmp_path / "b" / "step0", {0: sender, 1: receiver})).first
    assert "what arrived is not what was sent" in first.hint.likely


def test_adam_without_eps(tmp_path):
    data = {
        "Functional.cross_entropy.0.forward": op([X], [t(1.0, 1.0, FULL, ())]),
        "Functional.cross_entropy.0.backward": grad([t(1.0, 1.0, FULL, ())], [X]),
        "Torch.div.0.forward": op([t(1.0, 0.0, FULL), t(1.0, 0.0, FULL)], [NANS]),
        "Tensor.sub_.0.forward": op([X, NANS], [NANS]),
    }
    first = ovf.find_first_overflow(write_rank(tmp_path / "step0" / "rank0", data)).first
    assert "0/0 in the optimizer" in first.hint.likely


def test_made_by_names_the_writer_of_an_input(tmp_path):
    data = {
        "Torch.sub.0.forward": op([X], [ZERO]),
        "Torch.add.0.forward": op([X], [t(7.0, 1.5, FULL)]),
        "Torch.div.0.forward": op([t(7.0, 1.5, FULL), ZERO, t(9.0, 9.0, FULL)], [INFS]),
        **loss_chain(INFS),
    }
    first = ovf.find_first_overflow(write_rank(tmp_path / "step0" / "rank0", data)).first
    assert [v.made_by for v in first.inputs] == ["Torch.add.0.forward", "Torch.sub.0.forward", None]


def test_every_hint_has_a_source_and_something_to_do():
    from ovf._core import effective_rules

    for row in json.loads(effective_rules())["hints"]:
        assert row["source"], row["text"]
        assert row["check"], row["text"]
