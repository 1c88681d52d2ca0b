"""The probe on four simulated ranks, with overflows at known times (simulated CANN)."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from simulator import HERE, read_log

from ovf.npu.intervals import read_probe
from ovf.npu.merge import merge_probes

RANK = HERE / "sim" / "rank.py"
#: Rank -> seconds after the common start at which it overflows; None for never. Rank 2 is the
#: first.
OVERFLOWS = {0: 2.5, 1: None, 2: 1.0, 3: 1.75}
SYNCHRONISATION = ("aclrtSynchronizeStream", "aclrtSynchronizeStreamWithTimeout", "aclrtSynchronizeDevice",
                   "aclrtSynchronizeEvent", "aclrtStreamWaitEvent", "aclrtRecordEvent")  # fmt: skip


def train(simulator, folder, *, probe: bool, overflows=OVERFLOWS, **knobs):
    """Run the ranks, and give each one's log, what it printed, and the moment of its overflow."""
    ranks = {}
    for rank, at in overflows.items():
        environment = simulator.environment(
            FORCE_OVERFLOW_CHECK="1", RANK=str(rank), OVF_SIM_LOG=str(folder / f"rank{rank}.log"),
            OVERFLOW_AT="" if at is None else str(at), PROBE=str(folder / "probes") if probe else "", **knobs,
        )  # fmt: skip
        ranks[rank] = subprocess.Popen(
            [simulator.python("without"), RANK],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    for process in ranks.values():
        # torch_npu prints a line of its own at import.
        assert "ready\n" in iter(process.stdout.readline, "")
    begin = time.monotonic() + 1.0
    told = {}
    for process in ranks.values():
        process.stdin.write(f"{begin!r}\n")
        process.stdin.flush()
    for rank, process in ranks.items():
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-3000:]
        told[rank] = json.loads(out.splitlines()[-1])
    return {rank: read_log(folder / f"rank{rank}.log") for rank in ranks}, told


def during_training(log, told):
    """Keep the calls made while the rank trained, between its two marks."""
    return [line for line in log if told["begin_ns"] <= int(line[0]) <= told["end_ns"]]


def fields(line) -> dict[str, str]:
    return dict(field.split("=", 1) for field in line[3].split() if "=" in field)


@pytest.fixture(scope="module")
def runs(simulator, tmp_path_factory):
    with_probe, without = tmp_path_factory.mktemp("with"), tmp_path_factory.mktemp("without")
    return (with_probe, *train(simulator, with_probe, probe=True)), (
        without,
        *train(simulator, without, probe=False),
    )


def test_merged_order_is_the_order_of_the_overflows(runs):
    (folder, _, told), _ = runs
    merged = merge_probes(folder / "probes")
    assert merged.first == (2,)
    assert [(row.place, row.rank) for row in merged.overflows] == [(1, 2), (2, 3), (3, 0)]
    assert merged.clean == (1,)
    assert merged.uncertainty_ns == 0  # one host, one clock
    for row in merged.overflows:
        record = read_probe(folder / "probes" / f"probe_rank{row.rank}.jsonl")
        (interval,) = record.intervals
        assert interval.begin_ns <= told[row.rank]["overflow_ns"][1]
        assert told[row.rank]["overflow_ns"][0] <= interval.end_ns
        assert interval.end_ns - interval.begin_ns < 1_000_000_000
        assert interval.step_begin <= told[row.rank]["overflow_step"] <= interval.step_end + 1
        assert record.header["self_test"] == "passed"


def test_training_streams_see_no_synchronisation_of_the_probe(runs):
    (_, logs, told), (_, plain_logs, plain_told) = runs
    for rank, log in logs.items():
        calls = during_training(log, told[rank])
        own = {fields(line)["stream"] for line in calls if "FloatStatus" in line[3]}
        assert len(own) == 1  # the probe's stream, and no other reads the register
        assert not own & set(told[rank]["training_streams"])
        # Of all that the probe's thread did while the rank trained, nothing touched a stream of
        # the training.
        probe_calls = [line for line in calls if line[1] == str(told[rank]["probe_thread"])]
        assert len([line for line in probe_calls if "NPUGetFloatStatus" in line[3]]) > 20
        assert {fields(line).get("stream", "?") for line in probe_calls if line[2] in SYNCHRONISATION} == own
        assert not [line for line in probe_calls if line[2] == "aclrtSynchronizeDevice"]
        # And the training's own streams were synchronised as often as without a probe.
        plain = during_training(plain_logs[rank], plain_told[rank])
        count = lambda lines, told_: sorted(  # noqa: E731
            line[2]
            for line in lines
            if line[2] in SYNCHRONISATION and fields(line).get("stream") in told_["training_streams"]
        )
        assert count(calls, told[rank]) == count(plain, plain_told[rank])
        # The operators of the training were launched in the same order on the same streams.
        operators = lambda lines, own_: [  # noqa: E731
            (line[2], fields(line)["stream"])
            for line in lines
            if line[2].startswith("aclnn") and fields(line)["stream"] not in own_
        ]
        assert [name for name, _ in operators(calls, own)] == [name for name, _ in operators(plain, set())]


@pytest.mark.parametrize(("knobs", "reason"), [
    ({"OVF_SIM_REGISTER": "stream"}, "self test"),
    ({"OVF_SIM_SWITCH": "inert"}, "self test"),
    ({"OVF_SIM_CANN": "9.0.0"}, "do not have the overflow switch"),
    ({"OVF_SIM_SOC": "Ascend950PR_9599"}, "no operators"),
])  # fmt: skip
def test_a_probe_that_could_see_nothing_says_so(simulator, tmp_path, knobs, reason):
    train(simulator, tmp_path, probe=True, overflows={0: 0.5}, **knobs)
    merged = merge_probes(tmp_path / "probes")
    assert reason in merged.not_watched[0]
    assert merged.overflows == ()
