"""The start and the end of the command: what it imports, Ctrl-C meanwhile, how the process ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from small import NAN, loss_chain, op, t, write_step

DATA = Path(__file__).parent / "data"
FAULTY = DATA / "healed_then_real"
HEAVY = {"rich", "rich_click", "jinja2", "markupsafe", "pyarrow", "polars", "ray", "fsspec", "numpy", "torch"}
SELDOM = {"dataclasses", "urllib.request", "concurrent.futures", "ovf.step"}

LOOK = """
import sys
before = set(sys.modules)  # what this machine's interpreter comes with
import atexit, gc
atexit.register(lambda: print(*sorted(set(sys.modules) - before), gc.isenabled(), file=sys.stderr))
from ovf.__main__ import main
sys.argv = ["ovf", *sys.argv[1:]]
main()
"""


def python(code, *args, env=None):
    command = [sys.executable, "-c", code, *map(str, args)]
    clean = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR"}}
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **(env or {})}, timeout=120)


@pytest.mark.parametrize("options", [["--quiet"], [], ["-v", "--top", "3"], ["--color", "always"], ["--json"]])
def test_a_plain_check_imports_no_more_than_it_needs(options):
    out = python(LOOK, "check", FAULTY, *options)
    assert out.returncode == 1
    *modules, collects = out.stderr.split()
    assert "ovf.analyzer" in modules
    assert HEAVY & set(modules) == set()
    assert SELDOM & set(modules) == set()
    assert collects == str(options not in ([], ["--quiet"]))
    assert ("click" in modules) == (collects == "True")


def test_a_quiet_check_makes_no_parts_of_a_report():
    modules = set(python(LOOK, "check", "--quiet", FAULTY).stderr.split())
    assert "ovf.report" in modules
    rooms = ("finding", "spread", "evidence", "extra", "render", "output", "ticker", "watch", "remote")
    assert {f"ovf.{room}" for room in rooms} & modules == set()


def test_the_parts_of_a_report_are_in_ovf_report_too():
    import ovf
    import ovf.report

    for name in ovf.report.__all__:
        if name != "Verdict":
            part = getattr(ovf.report, name)
            assert getattr(ovf, name, part) is part
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ovf.report.Nothing


def test_the_repr_of_a_finding_leaves_the_record_out():
    import ovf

    first = ovf.find_first_overflow(FAULTY).first
    assert first.record
    assert first.record not in repr(first)
    assert f"op_name={first.op_name!r}" in repr(first)


def test_the_library_leaves_the_collector_alone():
    out = python(
        "import gc; before = gc.get_freeze_count()\n"
        "import ovf, ovf.cli, ovf.__main__; ovf.Report; print(gc.isenabled(), gc.get_freeze_count() == before)"
    )
    assert out.stdout.split() == ["True", "True"]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "watched",
    [
        "sys.settrace(lambda *_: None)",
        "sys.setprofile(lambda *_: None)",
        "import cProfile; cProfile.Profile().enable()",
    ],
)
def test_who_watches_the_process_sees_its_end(watched):
    """A debugger or a profiler gets the SystemExit, and what stands behind `main`."""
    code = f"import sys\nfrom ovf.__main__ import main\nsys.argv = ['ovf', *sys.argv[1:]]\n{watched}\ntry: main()\nexcept SystemExit as e: print('end', e.code)"
    assert python(code, "check", "-q", FAULTY).stdout == "end 1\n"


def test_a_thread_is_waited_for():
    code = "import sys, threading, time\nfrom ovf.__main__ import main\nsys.argv = ['ovf', *sys.argv[1:]]\nthreading.Thread(target=lambda: (time.sleep(0.5), print('done'))).start()\nmain()"
    out = python(code, "check", "-q", FAULTY)
    assert (out.returncode, out.stdout) == (1, "done\n")


def test_all_of_a_long_answer_reaches_a_pipe(tmp_path):
    import ovf

    bad = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}
    step = write_step(tmp_path / "step0", dict.fromkeys(range(100), bad))
    command = [sys.executable, "-m", "ovf", "check", str(step), "--json"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert len(out.stdout) > 100_000  # more than a pipe holds
    assert (out.returncode, out.stdout) == (1, ovf.find_first_overflow(step).json())


def test_an_answer_that_nobody_can_take_is_no_traceback():
    if not Path("/dev/full").exists():
        pytest.skip("no full device here")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ovf", "check", str(FAULTY)]
        out = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert out.returncode != 0
    assert "No space left" in out.stderr
    assert "Traceback" not in out.stderr


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("ovf.cli.plain", []),
        ("ovf.analyzer", []),
        ("json", []),
        ("click", ["-v"]),
        ("ovf.cli.check", ["-v"]),
        ("ovf.cli.commands", ["-v"]),
    ],
)
def test_ctrl_c_during_imports_is_no_traceback(module, options):
    """The module is replaced by one that is interrupted."""
    code = f"""
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
sys.argv = ["ovf", "check", {str(FAULTY)!r}, *{options!r}]
from ovf.__main__ import main
main()
"""
    out = python(code)
    assert out.returncode == 130
    assert "Traceback" not in out.stderr
    assert out.stdout == ""


# --- plain calls ------------------------------------------------------------------------------------------------------

PLAIN = """
import sys
from ovf.__main__ import main
sys.argv = ["ovf", *sys.argv[1:]]
main()
"""
PARSED = f"""
import ovf.cli.plain
ovf.cli.plain.plain = lambda arguments: None
{PLAIN}
"""


@pytest.mark.parametrize("options", [[], ["-q"], ["--quiet"], ["--threads", "1"], ["-q", "--threads", "02"]])
@pytest.mark.parametrize(
    "path", [FAULTY, DATA / "nowhere", "step7", FAULTY / "step0", "", ".", "ovf:x", Path(__file__)]
)
def test_a_plain_call_is_what_the_parser_makes_of_it(path, options):
    for arguments in (["check", *options, str(path)], ["check", str(path), *options]):
        plain, parsed = (
            subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
            for command in ([sys.executable, "-c", PLAIN], [sys.executable, "-c", PARSED])
        )
        seconds = re.compile(r"read in [0-9.]+ s")
        assert seconds.sub("", plain.stdout) == seconds.sub("", parsed.stdout)
        assert (plain.returncode, plain.stderr) == (parsed.returncode, parsed.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["check"],
        ["check", "-q"],
        ["check", "a", "b"],
        ["check", "-v", "a"],
        ["check", "--", "-q"],
        ["check", "-qv", "a"],
        ["check", "--threads", "a"],
        ["check", "--threads", "0", "a"],
        ["check", "--threads", "-1", "a"],
        ["check", "--threads", "1" * 5000, "a"],
        ["check", "--threads=2", "a"],
        ["check", "a", "--threads"],
        ["check", "--json", "a"],
        ["check", "-"],
        ["check", "s3://bucket/a"],
        ["check", "zip::a"],
        ["check", ""],
        ["check", "--help"],
        ["ranks", "a"],
    ],
)
def test_all_else_is_left_to_the_parser(arguments):
    from ovf.cli.plain import plain

    assert plain(arguments) is None
