"""The probe, its file and the merge, with a register and clocks of our own: no device, no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovf.npu import OverflowProbe
from ovf.npu.clock import Clock
from ovf.npu.intervals import Interval, IntervalFile, ProbeFormatError, probe_path, read_probe
from ovf.npu.merge import merge, merge_probes

CLOCK = Clock("boot", 1_000_000, 0, None)


class FakeRegister:
    """A register that a test sets; every call must come from the probe's thread."""

    def __init__(self, *, visible: bool = True, broken: str = "") -> None:
        self.set, self.reads, self.clears = False, 0, 0
        self.visible, self.broken = visible, broken
        self.threads: set[int] = set()

    def open(self):
        self.threads.add(threading.get_ident())
        if self.broken == "open":
            raise RuntimeError("no such device\nsecond line")
        return {"soc": "fake"}

    def sees_overflow(self):
        self.threads.add(threading.get_ident())
        return self.visible

    def read(self):
        self.threads.add(threading.get_ident())
        self.reads += 1
        if self.broken == "read":
            raise RuntimeError("device lost")
        return self.set

    def clear(self):
        self.clears += 1
        self.set = False


def wait_for(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_probe_notes_when_and_in_which_step(tmp_path):
    register = FakeRegister()
    moments = []
    with OverflowProbe(tmp_path, rank=3, period=0.005, register=register) as probe:
        for step in range(4):
            reads = register.reads
            wait_for(lambda reads=reads: register.reads > reads + 2)
            if step in (1, 3):
                moments.append((step, time.monotonic_ns()))
                register.set = True
                wait_for(lambda: not register.set)
                reads = register.reads
                wait_for(lambda reads=reads: register.reads > reads + 1)
            probe.step()
    record = read_probe(probe_path(tmp_path, 3))
    assert record.rank == 3
    assert len(record.intervals) == len(moments) == 2
    for interval, (step, moment) in zip(record.intervals, moments, strict=True):
        assert interval.begin_ns <= moment <= interval.end_ns
        assert interval.step_begin == interval.step_end == step
    assert record.end["reason"] == "stopped"
    assert record.end["reads"] == register.reads
    assert register.threads
    assert threading.get_ident() not in register.threads


def test_overflow_in_every_read_is_one_interval(tmp_path):
    register = FakeRegister()
    register.clear = lambda: setattr(register, "clears", register.clears + 1)  # set again at once
    register.set = True
    with OverflowProbe(tmp_path, rank=0, period=0.002, register=register):
        wait_for(lambda: register.reads > 10)
    record = read_probe(probe_path(tmp_path, 0))
    (interval,) = record.intervals
    assert interval.reads == register.reads == register.clears


@pytest.mark.parametrize(
    ("register", "reason"),
    [(FakeRegister(visible=False), "self test"), (FakeRegister(broken="open"), "no such device")],
)
def test_probe_that_cannot_run_says_so_and_lets_training_go_on(tmp_path, register, reason, caplog):
    with OverflowProbe(tmp_path, rank=0, period=0.002, register=register) as probe:
        assert reason in probe.failure
        probe.step()
    assert register.reads == 0
    assert reason in caplog.text
    merged = merge_probes(tmp_path)
    assert reason in merged.not_watched[0]
    assert merged.clean == ()


def test_probe_gives_up_after_failing_reads_and_counts_them(tmp_path):
    register = FakeRegister(broken="read")
    probe = OverflowProbe(tmp_path, rank=0, period=0.001, register=register).start()
    wait_for(lambda: register.reads >= 10)
    probe.stop()
    end = read_probe(probe.path).end
    assert end["failures"] == 10
    assert "gave up" in end["reason"]
    assert merge_probes(tmp_path).not_watched[0] == end["reason"]


def test_probe_that_gave_up_half_way_does_not_count_as_clean(tmp_path):
    register = FakeRegister()
    probe = OverflowProbe(tmp_path, rank=0, period=0.001, register=register).start()
    wait_for(lambda: register.reads >= 5)
    register.broken = "read"
    wait_for(lambda: "gave up" in probe.path.read_text())
    probe.stop()
    merged = merge_probes(tmp_path)
    assert merged.clean == ()
    assert "gave up after 10 failed reads: device lost" in merged.not_watched[0]


def test_probe_without_torch_npu_does_not_raise(tmp_path):
    if importlib.util.find_spec("torch_npu") is not None:
        pytest.skip("torch_npu is installed here")
    with OverflowProbe(tmp_path, rank=0) as probe:
        assert "not installed" in probe.failure
    assert "not installed" in merge_probes(tmp_path).not_watched[0]


@pytest.mark.parametrize("arguments", [{"period": 0.0}, {"max_bytes": 10}])
def test_nonsense_is_refused(tmp_path, arguments):
    with pytest.raises(ValueError, match=r"period|max_bytes"):
        OverflowProbe(tmp_path, rank=0, **arguments)


def write(folder, rank, *intervals, clock=CLOCK, end=True, max_bytes=1 << 20):
    file = IntervalFile(
        probe_path(folder, rank),
        {"rank": rank, "host": clock.host, "clock": clock.to_dict()},
        max_bytes=max_bytes,
    )
    for begin, finish in intervals:
        file.clean()
        file.add(Interval(begin, finish, 1, 2))
    if end:
        file.close({"at_ns": 10**9, "step": 5, "reads": 7, "failures": 0, "reason": "stopped"})
    return probe_path(folder, rank)


def test_file_is_bounded_and_says_what_it_dropped(tmp_path):
    path = write(tmp_path, 0, *((n * 100, n * 100 + 10) for n in range(1000)), max_bytes=4096)
    assert path.stat().st_size <= 4096
    record = read_probe(path)
    assert 0 < len(record.intervals) < 1000
    assert record.end["intervals"] == len(record.intervals)
    assert record.end["dropped"] == 1000 - len(record.intervals)
    assert merge([record]).notes == (f"rank 0: {record.end['dropped']} intervals did not fit its file",)


def test_file_survives_a_crash_at_any_byte(tmp_path):
    path = write(tmp_path, 0, (10, 20), (50, 60))
    data = path.read_bytes()
    header = data.index(b"\n") + 1
    for length in range(header, len(data)):
        path.write_bytes(data[:length])
        record = read_probe(path)
        assert [i.begin_ns for i in record.intervals] == [10, 50][: len(record.intervals)]
        assert merge([record]).crashed == ({} if record.end is not None else {0: CLOCK.wall(record.last_seen_ns)})
    path.write_bytes(data)
    assert len(read_probe(path).intervals) == 2


def test_an_interval_is_on_disk_before_the_file_is_closed(tmp_path):
    path = write(tmp_path, 0, (10, 20), end=False)
    assert len(read_probe(path).intervals) == 1
    assert read_probe(path).end is None


def test_older_file_is_kept(tmp_path):
    first = write(tmp_path, 0, (1, 2)).read_bytes()
    write(tmp_path, 0, (3, 4))
    assert probe_path(tmp_path, 0).with_name("probe_rank0.jsonl.1").read_bytes() == first
    assert merge_probes(tmp_path).overflows[0].begin_wall_ns == CLOCK.wall(3)


@pytest.mark.parametrize(("text", "reason"), [
    ("", "header"),
    ('{"kind":"other"}\n', "header"),
    ('{"kind":"probe","schema_version":1}\n', "missing"),
    ('{"kind":"probe","schema_version":9,"rank":0}\n', "schema version"),
    ("[1]\n", "object"),
    ("x\n{}\n", "JSON line"),
])  # fmt: skip
def test_damaged_files_are_named(tmp_path, text, reason):
    path = probe_path(tmp_path, 0)
    path.write_text(text)
    with pytest.raises(ProbeFormatError, match=reason) as caught:
        read_probe(path)
    assert str(path) in str(caught.value)


def test_order_on_one_host_needs_no_slack(tmp_path):
    write(tmp_path, 0, (500, 600), (900, 950))
    write(tmp_path, 1)
    write(tmp_path, 2, (100, 200))
    write(tmp_path, 3, (201, 300))
    merged = merge_probes(tmp_path)
    assert merged.first == (2,)
    assert [(row.place, row.rank, row.intervals) for row in merged.overflows] == [
        (1, 2, 1),
        (2, 3, 1),
        (3, 0, 2),
    ]
    assert (merged.clean, merged.uncertainty_ns) == ((1,), 0)


def test_overlapping_intervals_are_undecided(tmp_path):
    write(tmp_path, 0, (100, 300))
    write(tmp_path, 1, (200, 250))
    write(tmp_path, 2, (400, 500))
    merged = merge_probes(tmp_path)
    assert merged.first == (0, 1)
    assert [(row.place, row.rank) for row in merged.overflows] == [(1, 0), (1, 1), (3, 2)]


def test_between_hosts_the_clocks_decide(tmp_path):
    here, there = Clock("a", 0, 0, 30), Clock("b", 0, 0, 20)
    write(tmp_path, 0, (100, 200), clock=here)
    write(tmp_path, 1, (240, 300), clock=there)
    merged = merge_probes(tmp_path)
    assert (merged.first, merged.uncertainty_ns) == ((0, 1), 50)  # 40 apart, 50 uncertain
    assert "bounds" in merged.uncertainty
    assert merge_probes(tmp_path, clock_uncertainty_ns=39).first == (0,)
    write(tmp_path, 1, (251, 300), clock=there)
    assert merge_probes(tmp_path).first == (0,)


def test_an_undisciplined_clock_decides_nothing_between_hosts(tmp_path):
    write(tmp_path, 0, (100, 200), clock=Clock("a", 0, 0, None))
    write(tmp_path, 1, (10**12, 10**12 + 1), clock=Clock("b", 0, 0, 5))
    merged = merge_probes(tmp_path)
    assert (merged.first, merged.uncertainty_ns) == ((0, 1), None)
    assert merged.uncertainty.startswith("unknown")
    assert merge_probes(tmp_path, clock_uncertainty_ns=10**6).first == (0,)


def test_wall_clocks_are_anchored(tmp_path):
    """The same moment under two monotonic clocks that started at different times."""
    write(tmp_path, 0, (1000, 1100), clock=Clock("a", 5_000, 0, 1))
    write(tmp_path, 1, (70_000, 70_100), clock=Clock("b", 5_500, 70_000, 1))
    assert [row.begin_wall_ns for row in merge_probes(tmp_path).overflows] == [5_500, 6_000]


@settings(deadline=None)  # files and processes, on a machine that others use too
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100)), min_size=1, max_size=6),
    st.integers(0, 50),
)
def test_first_is_never_certainly_after_another(tmp_path_factory, spans, slack):
    """Against the obvious definition: the true moment of each rank may be anywhere in its interval."""
    folder = tmp_path_factory.mktemp("probes")
    for rank, (begin, width) in enumerate(spans):
        write(folder, rank, (begin, begin + width), clock=Clock(f"host{rank}", 0, 0, slack))
    merged = merge_probes(folder)
    can_be_first = [
        rank for rank, (begin, _) in enumerate(spans)
        if all(other == rank or e_begin + e_width + 2 * slack >= begin for other, (e_begin, e_width) in enumerate(spans))
    ]  # fmt: skip
    assert list(merged.first) == can_be_first
    assert merged.first
    places = {row.rank: row.place for row in merged.overflows}
    assert min(places.values()) == 1
    json.dumps(merged.to_dict(), allow_nan=False)


def test_two_files_of_one_rank_are_refused(tmp_path):
    write(tmp_path, 0, (1, 2))
    os.link(probe_path(tmp_path, 0), tmp_path / "probe_rank00.jsonl")
    with pytest.raises(ProbeFormatError, match="more than one"):
        merge_probes(tmp_path)


def test_this_hosts_clock():
    clock = Clock.here()
    assert clock.host
    assert abs(clock.wall(time.monotonic_ns()) - time.time_ns()) < 1_000_000_000
    assert clock.uncertainty_ns(clock) == 0
    assert Clock.from_dict(json.loads(json.dumps(clock.to_dict()))) == clock


@pytest.mark.parametrize(
    "change",
    [
        {"begin_ns": "5"},
        {"begin_ns": float("inf")},
        {"begin_ns": 10**30},
        {"begin_ns": 9, "end_ns": 5},
        {"step_begin": "[/]"},
    ],
)
def test_an_interval_that_cannot_be_is_refused_in_one_line(tmp_path, change):
    clock = {"host": "h", "wall_ns": 0, "monotonic_ns": 0, "error_ns": 0}
    header = {"kind": "probe", "schema_version": 1, "rank": 0, "clock": clock}
    interval = {"kind": "interval", "begin_ns": 1, "end_ns": 2, "step_begin": 0, "step_end": 0, "reads": 1, **change}
    path = probe_path(tmp_path, 0)
    path.write_text(f"{json.dumps(header)}\n{json.dumps(interval)}\n")
    with pytest.raises(ProbeFormatError):
        read_probe(path)
    header["clock"]["error_ns"] = -1
    path.write_text(f"{json.dumps(header)}\n")
    with pytest.raises(ProbeFormatError):
        read_probe(path)
