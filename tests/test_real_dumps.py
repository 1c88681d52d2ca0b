"""Real dumps written by msProbe, each with a planted fault or only benign values; `expected.json` has the answer."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import ovf

DATA = Path(__file__).parent / "data"
STORIES = sorted(p.name for p in DATA.iterdir() if (p / "expected.json").exists())


@pytest.mark.parametrize("story", STORIES)
def test_the_answer_is_right(story):
    expected = json.loads((DATA / story / "expected.json").read_text())
    report = ovf.find_first_overflow(DATA / story)
    assert report.verdict == expected["verdict"], expected["why"]
    if expected["first"] is None:
        assert report.first is None
        return
    good = [expected["first"], *expected["also_acceptable"]]
    assert {"rank": report.first.rank, "op_name": report.first.op_name} in good, expected["why"]


@pytest.mark.parametrize("story", STORIES)
def test_the_same_bytes_for_any_number_of_threads(story):
    texts = {ovf.find_first_overflow(DATA / story, threads=n).json() for n in (1, 2, 8, 1)}
    assert len(texts) == 1


@pytest.mark.parametrize("story", STORIES)
def test_every_hop_of_the_path_is_on_one_rank_or_a_communication(story):
    report = ovf.find_first_overflow(DATA / story)
    path = report.path
    if report.first is None:
        assert path == ()
        return
    members = {(m.rank, m.op_name) for m in (*report.first.members, report.first)}
    assert (path[0].rank, path[0].op_name) in members
    assert path[0].via == "origin"
    together = [{(m.rank, m.exec_order) for m in c.members} for c in report.communications]
    for before, after in itertools.pairwise(path):
        if after.via == "data":
            assert before.rank == after.rank
            # Module records stand at their exit, behind what happened inside.
            modules = all(step.op_name.startswith("Module.") for step in (before, after))
            assert modules or before.exec_order < after.exec_order
        else:
            assert any({(before.rank, before.exec_order), (after.rank, after.exec_order)} <= m for m in together)


def test_nothing_is_written_into_the_dump(tmp_path):
    import shutil

    copy = tmp_path / "dump"
    shutil.copytree(DATA / "healed_then_real", copy)
    before = {p: p.stat().st_mtime_ns for p in copy.rglob("*")}
    ovf.find_first_overflow(copy).to_dict()
    assert {p: p.stat().st_mtime_ns for p in copy.rglob("*")} == before
