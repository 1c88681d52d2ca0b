"""Watching a job that is still writing: the first verdict is the one that the finished dump gives."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ovf
from ovf.watch import Watch
from small import NAN, collective, loss_chain, op, t, write_rank, write_step

HERE = Path(__file__).parent
FINE = t(1.0, -1.0)
BAD = t(NAN, NAN)


def calm(count, start=0):
    return [(f"Torch.add.{start + i}.forward", op([FINE], [FINE])) for i in range(count)]


def healed(count=1200):
    """A NaN at op 999 that op 1100 replaces: bad at the flush of 1000 ops, clean in the end."""
    ops = calm(count)
    ops[999] = ("Torch.log.0.forward", op([FINE], [BAD]))
    ops[1100] = ("Torch.nan_to_num.0.forward", op([BAD], [FINE]))
    return ops


def late(count=1200):
    """Rank 1: its own NaN at op 1100, which the all_reduce at op 1150 gives to rank 0."""
    ops = calm(count)
    ops[1100] = ("Torch.log.0.forward", op([FINE], [BAD]))
    ops[1150] = collective("all_reduce", BAD, BAD, ranks=(0, 1))
    return [*ops, *loss_chain().items()]


def early(count=1200):
    """Rank 0: gets rank 1's NaN at op 990, its last communication; a NaN of its own follows behind at op 995."""
    ops = calm(count)
    ops[990] = collective("all_reduce", FINE, BAD, ranks=(0, 1))
    ops[995] = ("Torch.log.0.forward", op([FINE], [BAD]))
    return [*ops, *loss_chain().items()]


def plan(tmp_path, name, steps):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(steps))
    return path


def writers(tmp_path, pause=1.6, stall=0.6):
    """Two ranks, two steps; step 0 is clean in the end, in step 1 rank 1 is first."""
    dump = tmp_path / "dump"
    script = str(HERE / "slow_writer.py")
    made = []
    for rank, ops in ((0, [healed(), early()]), (1, [calm(1300), late()])):
        steps = [
            {
                "folder": str(dump / f"step{n}" / f"rank{rank}"),
                "ops": o,
                "flushes": [1000, len(o)],
                "pause": pause * (1 + rank),
                "stall": stall,
            }
            for n, o in enumerate(ops)
        ]
        made.append(subprocess.Popen([sys.executable, script, str(plan(tmp_path, f"plan{rank}", steps))]))
    return dump, made


def test_prefixes_give_other_answers(tmp_path):
    """What makes the tests below able to fail: a verdict from what is there too early would be a wrong one."""
    write_step(tmp_path / "a" / "step0", {0: healed()[:1000], 1: calm(1000)})
    assert ovf.find_first_overflow(tmp_path / "a").verdict == "overflow"
    write_step(tmp_path / "b" / "step0", {0: healed(), 1: calm(1300)})
    assert ovf.find_first_overflow(tmp_path / "b").verdict == "clean"
    write_step(tmp_path / "c" / "step1", {0: early()[:1000], 1: late()[:1000]})
    assert ovf.find_first_overflow(tmp_path / "c").first.rank == 0
    write_step(tmp_path / "d" / "step1", {0: early(), 1: late()})
    assert ovf.find_first_overflow(tmp_path / "d").first.rank == 1


def test_a_job_that_is_still_writing(tmp_path):
    dump, processes, said = tmp_path / "dump", [], []

    def say(line):
        said.append(line)
        if line.startswith("waiting for a dump"):
            processes.extend(writers(tmp_path)[1])

    try:
        report = Watch(dump, settle=0.8, say=say).until_overflow(0.1)
        assert len(processes) == 2
        assert all(p.wait(30) == 0 for p in processes)
    finally:
        for p in processes:
            p.kill()
    assert (report.step, report.first.rank, report.first.op_name) == (1, 1, "Torch.log.0.forward")
    assert report.json() == ovf.find_first_overflow(dump).json()
    assert report.first.stack[0].line == 1100
    assert any(line.startswith("step0: clean, 2 ranks") for line in said)


def test_the_command_stops_with_1(tmp_path):
    dump, processes = writers(tmp_path, pause=0.5, stall=0.2)
    command = [
        sys.executable,
        "-m",
        "ovf",
        "check",
        "--watch",
        str(dump),
        "--interval",
        "0.1",
        "--settle",
        "0.6",
        "--json",
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    finally:
        for p in processes:
            p.kill()
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["first"]["rank"] == 1


def test_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "ovf", "check", "--watch", str(tmp_path / "dump"), "--interval", "0.1"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert b"waiting for a dump" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 130


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def watch(tmp_path):
    clock = Clock()
    said = []
    made = Watch(tmp_path / "dump", settle=10, say=said.append, clock=clock)
    made.said = said

    def after(seconds):
        clock.now += seconds
        return made.look()

    made.after = after
    return made


def bad(*, last):
    return [*calm(last - 3), ("Torch.log.0.forward", op([FINE], [BAD])), *loss_chain().items()]


def test_the_last_step_counts_when_nothing_changes(tmp_path, watch):
    step = tmp_path / "dump" / "step0"
    assert watch.after(1) is None
    write_step(step, {0: bad(last=20), 1: calm(20)})
    assert watch.after(1) is None  # first look
    assert watch.after(9) is None  # not quiet for long enough
    (step / "rank1" / "stack.json").write_text("{}")
    assert watch.after(9) is None  # something changed
    assert watch.after(9) is None
    assert watch.after(1).first.rank == 0


def test_a_periodic_flush_is_not_the_end(tmp_path, watch):
    write_step(tmp_path / "dump" / "step0", {0: bad(last=1000)})
    assert watch.after(1) is None
    assert watch.after(50) is None
    assert watch.after(50).first.rank == 0  # ten times as long


def test_ranks_that_have_no_dump_yet(tmp_path, watch):
    ops = [*calm(5), collective("all_reduce", FINE, FINE, ranks=(0, 1)), *bad(last=20)]
    write_step(tmp_path / "dump" / "step0", {0: ops})
    (tmp_path / "dump" / "step0" / "rank1").mkdir()
    assert watch.after(1) is None
    assert watch.after(1000) is None  # rank 1 has begun and written nothing
    (tmp_path / "dump" / "step0" / "rank1").rmdir()
    assert watch.after(0) is None
    assert watch.after(11) is None  # rank 1 is named, but has no folder
    assert watch.after(100).first.rank == 0


def test_a_cut_file_is_never_judged(tmp_path, watch):
    step = write_step(tmp_path / "dump" / "step0", {0: bad(last=20), 1: calm(20)})
    text = (step / "rank0" / "dump.json").read_text()
    for kept in (0, 1, len(text) // 2, len(text) - 1):
        (step / "rank0" / "dump.json").write_text(text[:kept])
        assert watch.after(1) is None
        assert watch.after(1000) is None
    assert any("not whole: rank 0" in line for line in watch.said)
    # The rank has begun the next step: nobody will write the file again.
    write_step(tmp_path / "dump" / "step1", {0: calm(20), 1: calm(20)})
    report = watch.after(1)
    assert report.first.rank == 0
    assert report.incomplete


def test_a_later_step_ends_a_step_at_once(tmp_path, watch):
    write_step(tmp_path / "dump" / "step0", {0: calm(1000), 1: calm(1000)})
    write_step(tmp_path / "dump" / "step1", {0: bad(last=20)})
    assert watch.after(1) is None
    assert watch.after(1) is None  # rank 1 has not gone on
    assert not watch.said
    write_rank(tmp_path / "dump" / "step1" / "rank1", calm(20))
    assert watch.after(1) is None
    assert watch.after(1) is None
    assert watch.said == ["step0: clean, 2 ranks, 2,000 ops"]
    assert watch.after(10).first.rank == 0


def test_only_what_changed_is_read_again(tmp_path, watch, monkeypatch):
    from ovf import _core

    read = []
    real = _core.summarize
    monkeypatch.setattr(_core, "summarize", lambda dump, **more: (read.append(more["rank"]), real(dump, **more))[1])
    step = write_step(tmp_path / "dump" / "step0", {r: calm(20) for r in range(4)})
    for _ in range(3):
        assert watch.after(10) is None
    assert sorted(read) == [0, 1, 2, 3]
    write_rank(step / "rank2", bad(last=20))
    assert watch.after(10) is None
    assert watch.after(10).first.rank == 2
    assert sorted(read) == [0, 1, 2, 2, 3]


def test_phases_do_not_wait_for_each_other(tmp_path, watch):
    write_step(tmp_path / "dump" / "actor" / "step0", {0: calm(1000)})
    write_step(tmp_path / "dump" / "ref" / "step0", {0: bad(last=20)})
    assert watch.after(1) is None
    assert watch.after(10).step_label == "ref/step0"


def test_a_file_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    """A change between two stats of one look is seen, whatever the content."""
    from ovf import _core

    step = write_step(tmp_path / "dump" / "step0", {0: bad(last=20)})
    real = _core.summarize

    def replaced(dump, **more):
        made = real(dump, **more)
        write_rank(step / "rank0", calm(21))
        return made

    monkeypatch.setattr(_core, "summarize", replaced)
    watch = Watch(tmp_path / "dump", settle=0)
    for _ in range(4):
        assert watch.look() is None
    monkeypatch.setattr(_core, "summarize", real)
    said = []
    watch._say = said.append
    for _ in range(2):
        assert watch.look() is None
    assert said == ["step0: clean, 1 ranks, 21 ops"]


def test_files_larger_than_a_map_truncated_all_the_time(tmp_path):
    """Reading where another process truncates must not raise SIGBUS."""
    rank = write_rank(tmp_path / "dump" / "step0" / "rank0", calm(4000))
    assert (rank / "dump.json").stat().st_size > 1 << 20
    script = (
        "import sys, time\npath = sys.argv[1]\ntext = open(path).read()\nend = time.time() + 3\n"
        "while time.time() < end:\n"
        "    with open(path, 'w') as f:\n        f.write(text[: len(text) // 2]); f.flush(); f.write(text[len(text) // 2 :])\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(rank / "dump.json")])
    looks = (
        "import sys, time\nfrom ovf import _core\nend = time.time() + 3\n"
        "while time.time() < end:\n    _core.about(_core.summarize(sys.argv[1], rank=0, label='rank0', map=False))\n"
    )
    done = subprocess.run([sys.executable, "-c", looks, str(rank / "dump.json")], capture_output=True, timeout=60)
    writer.kill()
    writer.wait()
    assert done.returncode == 0, done.stderr
