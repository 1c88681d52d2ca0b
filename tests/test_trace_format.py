"""The trace: the rules of the Trace Event Format, order as time, bounds, hostile names.

The format: "Trace Event Format" (Chromium), JSON object form. Perfetto's importer takes exactly these phases.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest

import ovf
from ovf.render import trace as room
from ovf.render.trace import trace
from small import NAN, loss_chain, op, t, write_rank, write_step
from test_cli import run

DATA = Path(__file__).parent / "data"
CASES = sorted(p.name for p in DATA.iterdir() if (p / "expected.json").exists())


def traced(path, **options):
    report = ovf.find_first_overflow(path, also=["strip"], **options)
    return report, json.loads(trace(report), parse_constant=lambda c: pytest.fail(f"{c} is not strict JSON"))


def check_format(data):
    """Every rule of the format that these phases have; slices of a thread nest, arrows bind to slices."""
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in {"ms", "ns"}
    slices = defaultdict(list)
    flows = defaultdict(dict)
    named = set()
    for event in data["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        match event["ph"]:
            case "M":
                assert event["name"] in {
                    "process_name",
                    "process_labels",
                    "process_sort_index",
                    "thread_name",
                    "thread_sort_index",
                }
                (value,) = event["args"].values()
                assert isinstance(value, int if event["name"].endswith("sort_index") else str)
                if event["name"] == "thread_name":
                    named.add((event["pid"], event["tid"]))
            case "X":
                assert event["dur"] > 0
                slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            case "i":
                assert event["s"] in {"g", "p", "t"}
            case "s" | "f":
                assert event["ph"] not in flows[event["id"]]
                flows[event["id"]][event["ph"]] = event
            case phase:
                pytest.fail(f"unexpected phase {phase}")
    assert set(slices) <= named
    for track in slices.values():
        open_until = []
        for start, end in sorted(track, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], "slices of a thread overlap without nesting"
            open_until.append(end)
    for ends in flows.values():
        start, end = ends["s"], ends["f"]
        assert end["bp"] == "e"
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        assert start["ts"] <= end["ts"]
        for side in (start, end):
            track = slices[side["pid"], side["tid"]]
            assert any(low <= side["ts"] < high for low, high in track), "an arrow that starts or ends nowhere"
    return slices, flows


@pytest.mark.parametrize("case", CASES)
def test_every_real_dump(case):
    report, data = traced(DATA / case)
    slices, _ = check_format(data)
    executed = {pid for pid, tid in slices if tid == 1}
    assert executed == {r.rank for r in report.ranks}
    instants = [e for e in data["traceEvents"] if e["ph"] == "i"]
    if report.first is None:
        assert instants == []
    else:
        (instant,) = instants
        assert instant["pid"] == report.first.rank
        assert instant["args"]["reason"] == report.first.reason
        assert instant["args"]["exec_order"] == report.first.exec_order
        assert report.first.op_name in instant["name"]


def test_runs_cover_every_op_once():
    report, data = traced(DATA / "experts_all_to_all")
    for rank in report.ranks:
        runs = [e for e in data["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank.rank, 1)]
        assert sum(e["args"]["ops"] for e in runs) == rank.ops
        assert [e["args"]["first_exec_order"] for e in runs] == sorted(e["args"]["first_exec_order"] for e in runs)
        times = [(e["ts"], e["ts"] + e["dur"]) for e in runs]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))


def test_arrows_follow_the_spread():
    report, data = traced(DATA / "experts_all_to_all")
    starts = {e["id"]: e for e in data["traceEvents"] if e["ph"] == "s" and e["cat"] == "spread"}
    ends = {e["id"]: e for e in data["traceEvents"] if e["ph"] == "f" and e["cat"] == "spread"}
    pairs = {(starts[i]["pid"], ends[i]["pid"]) for i in starts}
    wanted = {(c.source_ranks[0], r) for c in report.communications if c.source_ranks for r in c.propagated_ranks}
    assert wanted
    assert pairs == wanted


def test_hostile_names_stay_text(tmp_path):
    names = ["</script>.0.forward", '"\\\n\u202e.0.forward', "y" * 10_000, "\U0001f525"]
    data = {n: op([t(NAN, NAN) if i else t(1.0, 0.0)], [t(NAN, NAN)]) for i, n in enumerate(names)}
    report, shown = traced(write_rank(tmp_path / "step0" / "rank0", {**data, **loss_chain()}))
    check_format(shown)
    assert report.first.op_name == names[0]
    assert {e["name"] for e in shown["traceEvents"] if e["ph"] == "X"} >= set(names)


def test_the_size_is_bounded(monkeypatch, tmp_path):
    data = {
        f"Torch.foo.{i}.forward": op([t(NAN, NAN) if i % 2 else t(1.0, 0.0)], [t(NAN, NAN) if i % 3 else t(1.0, 0.0)])
        for i in range(2000)
    }
    step = write_step(tmp_path / "step0", dict.fromkeys(range(4), data))
    monkeypatch.setattr(room, "_RUNS", 100)
    monkeypatch.setattr(room, "_COMMUNICATIONS", 0)
    report, shown = traced(step)
    check_format(shown)
    runs = [e for e in shown["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    assert len(runs) <= 100
    assert sum(e["args"]["ops"] for e in runs) == report.total_ops


def test_the_same_bytes_for_any_number_of_threads():
    path = DATA / "experts_all_to_all"
    assert len({trace(ovf.find_first_overflow(path, also=["strip"], threads=n)) for n in (1, 2, 5)}) == 1


def test_the_command(tmp_path):
    path = DATA / "sum_overflows_in_all_reduce"
    done = run("check", path, "--format", "trace", "-o", tmp_path / "t.json")
    assert (done.returncode, done.stdout) == (1, "")
    check_format(json.loads((tmp_path / "t.json").read_text()))
    assert run("check", path, "--format", "trace").stdout == (tmp_path / "t.json").read_text()
    again = run("check", path, "--format", "trace", "-o", tmp_path / "t.json")
    assert again.returncode == 2
    assert "nothing is overwritten" in again.stderr
