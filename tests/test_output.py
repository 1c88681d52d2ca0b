"""New files: nothing is written where a dump lies, whatever part of it is named."""

from __future__ import annotations

import json

import pytest

import ovf
from ovf.output import homes, write_new
from small import NAN, loss_chain, op, t, write_rank
from test_cli import run

BAD = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}


@pytest.fixture
def dump(tmp_path):
    """Two steps of two ranks, alone in their root."""
    root = tmp_path / "dump"
    for step in range(2):
        for rank in range(2):
            write_rank(root / f"step{step}" / f"rank{rank}", BAD)
    return root


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


PARTS = [".", "step1", "step1/rank0", "step1/rank0/dump.json"]


@pytest.mark.parametrize("part", PARTS)
def test_home_is_the_root_that_holds_the_steps(dump, part, monkeypatch):
    assert homes(dump / part) == [dump.resolve()]
    assert homes([str(dump / part)]) == [dump.resolve()]
    monkeypatch.chdir((dump / part).parent if part.endswith(".json") else dump / part)
    assert homes("dump.json" if part.endswith(".json") else ".") == [dump.resolve()]


@pytest.mark.parametrize(
    ("folder", "named", "home"),
    [
        ("phase/step3/rank_4", "phase/step3/rank_4", "phase"),
        ("mine/step0/proc812", "mine/step0", "mine"),
        ("mine/step0/rank0", "mine/step0", "mine"),
        ("ranks_of_today/rank0", "ranks_of_today", "ranks_of_today"),
        ("today/rank0", "today/rank0", "today"),
        ("loose", "loose/dump.json", "loose"),
    ],
)
def test_home_of_other_layouts(tmp_path, folder, named, home):
    write_rank(tmp_path / folder, BAD)
    assert homes(tmp_path / named) == [(tmp_path / home).resolve()]


def test_a_step_beside_other_folders_is_its_own_home(tmp_path):
    write_rank(tmp_path / "step0" / "rank0", BAD)
    (tmp_path / "results").mkdir()
    (tmp_path / "step0.log").touch()
    assert homes(tmp_path / "step0" / "rank0") == [(tmp_path / "step0").resolve()]
    ovf.find_first_overflow(tmp_path / "step0").to_json(tmp_path / "results" / "report.json")


def test_a_link_keeps_both_its_ends_free(tmp_path, dump):
    link = tmp_path / "elsewhere" / "step0"
    link.parent.mkdir()
    link.symlink_to(dump / "step0")
    assert homes(link) == [(tmp_path / "elsewhere").resolve(), dump.resolve()]
    with pytest.raises(ValueError, match="never writes there"):
        write_new(dump / "new.json", "x", link)


COMMANDS = [
    (["check", "--json"], "new.json"),
    (["check", "--json"], "folder"),
    (["check"], "folder"),
    (["check", "--format", "msprobe"], "folder"),
    (["report"], "new.html"),
    (["report"], "folder"),
    (["ranks"], "folder"),
    (["trace", "--rank", "0"], "folder"),
    (["export"], "new.csv"),
    (["export"], "new.parquet"),
    (["steps"], "folder"),
    (["summarize"], "folder"),
]


@pytest.mark.parametrize(("command", "name"), COMMANDS, ids=lambda x: x if isinstance(x, str) else " ".join(x))
@pytest.mark.parametrize("part", ["step1", "step1/rank0"])
def test_no_command_writes_into_the_root_of_the_part_it_is_given(dump, command, name, part):
    before = files(dump)
    out = run(*command, dump / part, "-o", dump / name)
    assert out.returncode == 2
    assert out.stderr.splitlines()[-1].startswith("ovf: error: ")
    assert "never writes there" in out.stderr
    assert "Traceback" not in out.stderr
    assert files(dump) == before


@pytest.mark.parametrize("method", ["to_json", "to_html"])
def test_nor_does_a_report(dump, method):
    before = files(dump)
    report = ovf.find_first_overflow(dump / "step1" / "rank0", chart=True)
    with pytest.raises(ValueError, match="never writes there"):
        getattr(report, method)(dump / "new.file")
    assert files(dump) == before


def test_beside_the_dump_is_fine(dump, tmp_path):
    out = run("check", dump / "step1", "--json", "-o", tmp_path / "new.json")
    assert out.returncode == 1
    assert json.loads((tmp_path / "new.json").read_text())["verdict"] == "overflow"


@pytest.mark.parametrize("command", ["check", "report", "ranks", "export", "steps"])
def test_a_dash_is_no_file(command, dump, tmp_path):
    out = run(command, dump, "-o", "-", cwd=tmp_path)
    assert out.returncode == 2
    assert out.stderr.splitlines()[-1].endswith("- is no name for a file; standard output cannot be chosen here")
    assert [p.name for p in tmp_path.iterdir()] == ["dump"]


def test_help_of_summarize_names_its_files():
    text = run("summarize", "--help", env={"COLUMNS": "200"}).stdout
    assert "STEP/rankR.ovfs" in text
