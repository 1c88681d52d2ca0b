"""`ovf npu` as a person meets it, and the package without torch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from simulator import ROOT
from test_npu_probe import write
from trees import make_tree

from ovf.npu.cli import npu


def run(*arguments: object):
    return CliRunner().invoke(npu, [str(argument) for argument in arguments])


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "python")},
    )
    return done.stdout


def test_import_is_cheap_and_needs_no_torch():
    code = "import sys, ovf.npu\nprint([name for name in ('torch', 'torch_npu', 'rich', 'click', 'numpy', 'jinja2') if name in sys.modules])"
    assert python(code).strip() == "[]"


def test_everything_answers_without_torch_npu():
    code = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ('torch', 'torch_npu') else find(name, *rest)
import ovf.npu
print(ovf.npu.status().reason)
print(ovf.npu.is_force_overflow_check())
for name, arguments in (('get_npu_overflow_flag', ()), ('npu_check_overflow', (1.0,)), ('clear_npu_overflow_flag', ()), ('enable', ())):
    try:
        getattr(ovf.npu, name)(*arguments)
    except ovf.npu.UnavailableError as error:
        print(error)
"""
    assert python(code).split("\n")[:-1] == [
        "unavailable: torch is not installed",
        "False",
        *["torch is not installed"] * 4,
    ]


def test_a_broken_torch_npu_is_unavailable_with_its_reason(tmp_path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file\\nmore')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport ovf.npu\nprint(ovf.npu.status().reason)"
    assert python(code).strip() == "unavailable: importing torch_npu failed: libhccl.so: cannot open shared object file"


def test_status_exits_one_where_it_is_off(monkeypatch):
    monkeypatch.setenv("FORCE_OVERFLOW_CHECK", "true")
    result = run("status", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["on"], found["variable"], found["requested"]) == (False, "true", False)
    assert run("status").exit_code == 1


def test_patch_check_diff_and_revert(tmp_path):
    tree = make_tree(tmp_path / "tree")
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert (run("patch", tree, "--check").exit_code, run("patch", tree, "--diff").exit_code) == (
        1,
        0,
    )
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
    diff = run("patch", tree, "--diff").stdout
    assert "+++ b/torch_npu/csrc/core/npu/ForceOverflowCheck.h" in diff
    applied = run("patch", tree)
    assert applied.exit_code == 0
    assert "edited  torch_npu/npu/utils.py" in applied.stdout
    assert run("patch", tree, "--check").exit_code == 0
    again = run("patch", tree)
    assert (again.exit_code, again.stdout) == (0, "")
    assert "nothing to do" in again.stderr
    assert run("patch", tree, "--revert", "--diff").exit_code == 0
    assert run("patch", tree, "--revert").exit_code == 0
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_the_diff_is_what_patch_applies(tmp_path):
    tree, other = make_tree(tmp_path / "a"), make_tree(tmp_path / "b")
    (tmp_path / "change.diff").write_text(run("patch", tree, "--diff").stdout)
    done = subprocess.run(
        ["git", "apply", "../change.diff"],
        cwd=other,
        capture_output=True,
        text=True,
        check=False,
        env={"GIT_CEILING_DIRECTORIES": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert run("patch", other, "--check").exit_code == 0


def test_patch_refuses_in_one_line(tmp_path):
    result = run("patch", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "refused: torch_npu/csrc/core/npu/interface/AclInterface.cpp: no such file" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("patch", "/no/such/tree"),
        ("patch", ".", "--check", "--diff"),
        ("patch",),
        ("probe", "/no/such.py"),
        ("nonsense",),
    ],
)
def test_usage_errors_exit_two(arguments):
    assert run(*arguments).exit_code == 2


def test_merge_probes(tmp_path):
    write(tmp_path, 0, (500, 600))
    write(tmp_path, 1)
    write(tmp_path, 7, (100, 200))
    result = run("merge-probes", tmp_path)
    assert result.exit_code == 1
    assert "first overflow: rank 7\n" in result.stdout
    assert "clock uncertainty: none" in result.stdout
    data = json.loads(run("merge-probes", tmp_path, "--json").stdout)
    assert (data["first"], data["clean"], data["schema_version"]) == ([7], [1], 1)


def test_merge_probes_without_overflow_and_with_bad_input(tmp_path):
    assert run("merge-probes", tmp_path).exit_code == 2
    write(tmp_path, 0)
    clean = run("merge-probes", tmp_path)
    assert (clean.exit_code, "no overflow seen" in clean.stdout) == (0, True)
    (tmp_path / "probe_rank1.jsonl").write_text("x\ny\n")
    bad = run("merge-probes", tmp_path)
    assert bad.exit_code == 2
    assert bad.stderr.count("\n") == 1


def test_probe_needs_torch_npu(tmp_path):
    (tmp_path / "train.py").write_text("print('trained')")
    if importlib.util.find_spec("torch_npu") is not None:
        pytest.skip("torch_npu is installed here")
    result = run("probe", "-o", tmp_path, tmp_path / "train.py", "--lr", "1")
    assert result.exit_code == 1
    assert "unavailable" in result.stderr


def test_probe_runs_a_script_in_the_simulator(simulator, tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys, time, torch\n"
        "weight = torch.ones(4).npu().requires_grad_()\n"
        "class Sgd(torch.optim.Optimizer):\n"
        "    def __init__(self): super().__init__([weight], {})\n"
        "    def step(self, closure=None): pass\n"
        "sgd = Sgd()\n"
        "for step in range(6):\n"
        "    time.sleep(0.1)\n"
        "    if step == 3:\n"
        "        half = torch.full((4,), 65504.0, dtype=torch.float16).npu(); half + half\n"
        "        time.sleep(0.1)\n"
        "    sgd.step()\n"
        "print(sys.argv[1:], __name__)\n"
        "sys.exit(3)\n"
    )
    code = "import sys; from ovf.npu.cli import npu; npu()"
    done = subprocess.run(
        [simulator.python("without"), "-c", code, "probe", "-o", tmp_path / "probes", "--period", "0.02", tmp_path / "train.py", "--lr", "1"],
        env=simulator.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr[-2000:]
    assert "['--lr', '1'] __main__" in done.stdout
    data = json.loads(run("merge-probes", tmp_path / "probes", "--json").stdout)
    (row,) = data["overflows"]
    assert (row["rank"], row["step_begin"], row["step_end"]) == (0, 3, 3)


def test_status_in_the_simulator(simulator):
    code = "import sys; from ovf.npu.cli import npu; npu()"
    base = [simulator.python("with"), "-c", code, "status", "--json"]
    on = subprocess.run(
        [*base, "--touch-device"],
        env=simulator.environment(FORCE_OVERFLOW_CHECK="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(on.stdout[on.stdout.index("{") :])
    assert on.returncode == 0
    assert (found["on"], found["mode"], found["soc"], found["feature_in_wheel"]) == (
        True,
        "INF_NAN",
        "Ascend910B2",
        True,
    )
    assert found["streams"] == [{"device": 0, "on": 1, "off": 0, "unknown": 0}]
    off = subprocess.run(
        base,
        env=simulator.environment(FORCE_OVERFLOW_CHECK="1", OVF_SIM_CANN="9.0.0"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert off.returncode == 1
    assert "not 9.1.0 or newer" in json.loads(off.stdout[off.stdout.index("{") :])["reason"]
