"""A real Ray cluster of two node processes: the local report byte for byte; killed workers and lost nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ovf
import places
from ovf.testing import Fault, Layout, Training, write_training

ray = pytest.importorskip("ray")

#: Makes the tasks slow while the file `slow` is there, and tells which process has which rank.
SLOW = """
import os, time
folder = os.environ.get("OVF_TEST_FOLDER")
if folder:
    from ovf.remote.local import LocalFiles
    whole = LocalFiles.summarise

    def summarise(self, rank, *rest):
        slow = os.path.join(folder, "slow")
        if os.path.exists(slow):
            open(os.path.join(folder, f"rank{rank.rank}.{os.getpid()}"), "w").close()
            time.sleep(float(open(slow).read()))
        return whole(self, rank, *rest)

    LocalFiles.summarise = summarise
"""


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """64 ranks."""
    root = tmp_path_factory.mktemp("ranks")
    layout = Layout(tp=4, pp=4, dp=4)
    write_training(root, Training(layout, layers=4, micro_batches=1, faults=(Fault("forward", 21),)))
    return root / "step0"


@pytest.fixture(scope="module")
def answer(step):
    return ovf.find_first_overflow(step).json()


@pytest.fixture(scope="module")
def halves(step, tmp_path_factory):
    """The step on two local disks."""
    root = tmp_path_factory.mktemp("disks")
    for rank in range(64):
        shutil.copytree(step / f"rank{rank}", root / ("a" if rank < 32 else "b") / "step0" / f"rank{rank}")
    return root / "a/step0", root / "b/step0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes of two processors."""
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("OVF_TEST_FOLDER", str(folder))
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "node_name": "node-a", "include_dashboard": False}
        )
        made.add_node(num_cpus=2, node_name="node-b")
        patch.setenv("RAY_ADDRESS", made.address)
        made.folder = folder
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def slow(cluster):
    """Makes tasks take this long; tells who runs what."""

    def begin(seconds):
        (cluster.folder / "slow").write_text(str(seconds))

    def begun():
        return {path.name for path in cluster.folder.glob("rank*")}

    yield begin, begun
    for path in [cluster.folder / "slow", *cluster.folder.glob("rank*")]:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def waited_for(condition, act):
    """Does `act` once `condition` gives something, while the block runs."""

    def watch():
        end = time.monotonic() + 120
        while time.monotonic() < end:
            found = condition()
            if found:
                act(found)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


@pytest.mark.usefixtures("cluster")
def test_a_path_that_every_node_sees(step, answer):
    calls = []
    report = ovf.find_first_overflow(step, engine="ray", progress=lambda *numbers: calls.append(numbers))
    assert report.json() == answer
    total = sum(path.stat().st_size for path in step.rglob("dump.json"))
    assert calls[-1] == (total, total)
    assert not ray.is_initialized()


@pytest.mark.usefixtures("cluster")
def test_folders_on_hosts(halves, answer):
    hosts = {"node-a": halves[0], "node-b": halves[1]}
    assert ovf.find_first_overflow(None, engine="ray", hosts=hosts).json() == answer


@pytest.mark.usefixtures("cluster")
def test_an_open_connection_is_used_and_left_open(step):
    ray.init(log_to_driver=False)
    try:
        report = ovf.find_first_overflow(step, engine="ray", ranks=range(20, 24))
        assert report.json() == ovf.find_first_overflow(step, ranks=range(20, 24)).json()
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_rules_and_damaged_ranks_are_the_same(tmp_path):
    step = places.copied(tmp_path)
    (step / "rank6/dump.json").write_bytes((step / "rank6/dump.json").read_bytes()[:5000])
    (step / "rank7/dump.json").unlink()
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"schema_version": 1, "library_paths": ["/somewhere/"]}))
    for options in ({}, {"rules": rules}):
        report = ovf.find_first_overflow(step, engine="ray", **options)
        assert report.json() == ovf.find_first_overflow(step, **options).json()
    report = ovf.find_first_overflow(None, engine="ray", hosts={"node-b": step})
    assert [u.path for u in report.unreadable] == [f"node-b:{step}/rank{r}/dump.json" for r in (6, 7)]


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_s_rank_is_done_again(halves, answer, slow):
    begin, begun = slow
    begin(0.4)
    killed = []

    def kill(names):
        name = min(names)
        os.kill(int(name.partition(".")[2]), signal.SIGKILL)
        killed.append(name.partition(".")[0])

    with waited_for(begun, kill):
        report = ovf.find_first_overflow(None, engine="ray", hosts={"node-a": halves[0], "node-b": halves[1]})
    assert report.json() == answer
    again = {name for name in begun() if name.startswith(f"{killed[0]}.")}
    assert len(again) >= 2  # another process took it up


def test_a_lost_node_s_ranks_are_named_and_the_rest_is_analysed(cluster, step, halves, slow, tmp_path):
    begin, begun = slow
    begin(0.3)
    node = cluster.add_node(num_cpus=2, node_name="node-c")
    lost = {f"rank{rank}" for rank in range(32, 64)}

    def of_that_node():
        names = {name.partition(".")[0] for name in begun()} & lost
        return names if len(names) >= 5 else None

    with waited_for(of_that_node, lambda _: cluster.remove_node(node, allow_graceful=False)):
        report = ovf.find_first_overflow(None, engine="ray", hosts={"node-a": halves[0], "node-c": halves[1]})
    gone = [u.rank for u in report.unreadable]
    assert gone
    assert set(gone) <= set(range(32, 64))
    assert {u.message for u in report.unreadable} == {"the Ray node node-c was lost"}
    assert report.unreadable[0].path == f"node-c:{halves[1]}/rank{gone[0]}/dump.json"
    assert {r.rank for r in report.ranks} == set(range(64)) - set(gone)
    assert report.exit_code == 2
    # What is left is analysed as it is where those dumps are not there.
    local = Path(shutil.copytree(step, tmp_path / "step0"))
    for rank in gone:
        (local / f"rank{rank}" / "dump.json").unlink()
    told, left = report.to_dict(), ovf.find_first_overflow(local).to_dict()
    assert [told[key] for key in ("findings", "ranks", "path", "communications")] == [
        left[key] for key in ("findings", "ranks", "path", "communications")
    ]
    assert (report.first.rank, report.first.op_name) == (21, "Torch.div.0.forward")


def test_a_node_that_was_dead_before_is_a_remark_and_a_name_that_never_was_an_error(cluster, halves):
    node = cluster.add_node(num_cpus=1, node_name="node-d")
    cluster.remove_node(node, allow_graceful=False)
    report = ovf.find_first_overflow(None, engine="ray", hosts={"node-a": halves[0], "node-d": halves[1]})
    assert report.incomplete
    assert report.exit_code == 2
    assert [n.text for n in report.notes if "node-d" in n.text] == [
        "the Ray node node-d was lost: its ranks are not read"
    ]
    assert {r.rank for r in report.ranks} == set(range(32))
    with pytest.raises(ValueError, match="the Ray cluster has no node node-x; it has node-a, node-b"):
        ovf.find_first_overflow(None, engine="ray", hosts={"node-x": halves[0]})
    with pytest.raises(FileNotFoundError) as raised:
        ovf.find_first_overflow(None, engine="ray", hosts={"node-a": "/no/such/folder"})
    assert raised.value.filename == "node-a:/no/such/folder"
    with pytest.raises(ValueError, match="is the same rank's; give each rank's folder once"):
        ovf.find_first_overflow(None, engine="ray", hosts={"node-a": halves[0], "node-b": halves[0]})


@pytest.mark.usefixtures("cluster")
def test_the_command(halves, answer):
    command = [sys.executable, "-m", "ovf", "check", "--json", "--engine", "ray"]
    hosts = ["--host", f"node-a={halves[0]}", "--host", f"node-b={halves[1]}"]
    done = subprocess.run([*command, *hosts], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, answer), done.stderr
    done = subprocess.run(
        [*command, *hosts],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ovf: error: engine 'ray': no Ray cluster answers at 127.0.0.1:1")


def test_what_does_not_go_together_is_said(step, tmp_path):
    for arguments, words in [
        ({"path": step, "engine": "spark"}, "no engine 'spark'"),
        ({"path": None, "hosts": {"a": step}}, "need engine 'ray'"),
        ({"path": None}, "need engine 'ray'"),
        ({"path": step, "hosts": {"a": step}, "engine": "ray"}, "one of the two"),
    ]:
        with pytest.raises(ValueError, match=words):
            ovf.find_first_overflow(**arguments)
    packed = tmp_path / "step0.tar.gz"
    packed.write_bytes(places.tar_of(places.files_of(places.step()), "gz"))
    with pytest.raises(ValueError, match="leave the engine out"):
        ovf.find_first_overflow(packed, engine="ray")


def test_a_missing_extra_is_said(step, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match="engine 'ray': Ray is not installed") as raised:
        ovf.find_first_overflow(step, engine="ray")
    assert raised.value.help == "pip install 'ovf-npu[ray]'"
