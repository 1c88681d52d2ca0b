"""The Python API: types, errors with attributes, cheap import, threads, forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ovf
from small import NAN, loss_chain, op, t, write_step

DATA = Path(__file__).parent / "data"
FAULTY = DATA / "healed_then_real"


def test_importing_is_cheap():
    code = "import sys, ovf; print([m for m in ('rich', 'click', 'hypothesis', 'json', 'ovf._core', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_report_object():
    report = ovf.find_first_overflow(FAULTY)
    first = report.first
    assert first is report.findings[0]
    assert (first.kind, first.severity, first.phase) == ("compute", "+inf", "forward")
    assert first.outputs[0].max == float("inf")
    assert first.outputs[0].class_ == "+inf"
    assert first.inputs[0].shape == (6, 4, 8)
    assert first.stack[0].function == "power"
    assert report.to_dict()["first"]["op_name"] == first.op_name
    assert json.loads(report.json()) == report.to_dict()
    assert "Torch.exp.0.forward" in repr(report)
    report.to_dict()["first"]["op_name"] = "changed"  # a copy
    assert report.to_dict()["first"]["op_name"] == first.op_name
    with pytest.raises(AttributeError):
        first.rank = 3


def test_to_json_never_overwrites(tmp_path):
    report = ovf.find_first_overflow(FAULTY)
    report.to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == report.to_dict()
    with pytest.raises(FileExistsError):
        report.to_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match="never writes there"):
        report.to_json(FAULTY / "a.json")


def test_errors_have_attributes(tmp_path):
    with pytest.raises(FileNotFoundError):
        ovf.find_first_overflow(tmp_path / "nothing")
    with pytest.raises(ovf.DumpFormatError) as caught:
        ovf.find_first_overflow(tmp_path)
    assert caught.value.path == str(tmp_path)
    assert "dump_path" in caught.value.help
    rules = tmp_path / "rules.json"
    rules.write_text("{\n]")
    with pytest.raises(ovf.RulesError) as caught:
        ovf.find_first_overflow(FAULTY, rules=rules)
    assert (caught.value.line, caught.value.column) == (2, 1)
    assert isinstance(caught.value, ovf.OvfError)
    with pytest.raises(ValueError, match="no step 7"):
        ovf.find_first_overflow(FAULTY, step=7)
    with pytest.raises(ValueError, match="no rank 9; it has"):
        ovf.trace_rank(FAULTY, 9)
    with pytest.raises(ValueError, match="say which one"):
        ovf.trace_rank(FAULTY)


def test_progress_is_told():
    seen = []
    ovf.find_first_overflow(FAULTY, progress=lambda done, total: seen.append((done, total)))
    done, total = seen[-1]
    assert done == total > 0


def test_threads_of_one_process_do_not_disturb_each_other():
    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: ovf.find_first_overflow(FAULTY).json(), range(16)))
    assert len(texts) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_after_use_can_analyse():
    ovf.find_first_overflow(FAULTY)
    code = f"""
import os, signal, sys, ovf
ovf.find_first_overflow({str(FAULTY)!r})
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if ovf.find_first_overflow({str(FAULTY)!r}).first.rank == 1 else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_cross_rank_and_trace():
    assert ovf.cross_rank(FAULTY)["Distributed.all_reduce.0.forward"]["source_ranks"] == [1]
    assert ovf.cross_rank(DATA / "clean_log_mask") == {}
    trace = ovf.trace_rank(DATA / "weight_bad_before_the_step", 1)
    assert trace["first_anomaly"]["cause"] == "parameter"
    assert trace["warnings"]


def test_an_unknown_name_of_the_package():
    with pytest.raises(AttributeError, match="nonsense"):
        ovf.nonsense  # noqa: B018


def test_a_byte_order_mark_is_skipped(tmp_path):
    step = write_step(
        tmp_path / "step0",
        {0: {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}},
    )
    file = step / "rank0" / "dump.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert ovf.find_first_overflow(step).first.op_name == "Torch.log.0.forward"


def test_interrupting_stops_soon(tmp_path):
    record = json.dumps(op([t(1.0, -1.0)] * 3, [t(NAN, NAN)]))
    folder = tmp_path / "rank0"
    folder.mkdir()
    with (folder / "dump.json").open("w") as file:
        file.write('{"task": "statistics", "data": {"a.0.forward": {}')
        for i in range(500_000):
            file.write(f',\n"Torch.log.{i}.forward": {record}')
        file.write("}}")
    code = """
import signal, sys, threading, time, ovf
def stop():
    global sent
    sent = time.monotonic()
    signal.raise_signal(signal.SIGINT)
threading.Timer(0.04, stop).start()
try:
    ovf.find_first_overflow(sys.argv[1], threads=int(sys.argv[2]))
except KeyboardInterrupt:
    print(time.monotonic() - sent)
"""
    for threads in (1, 2):
        command = [sys.executable, "-c", code, str(folder), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout, f"the analysis was over before it was interrupted {done.stderr}"
        assert float(done.stdout) < 0.5
