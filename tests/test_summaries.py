"""Summaries: reports from them are the reports from the dumps, byte for byte; and every way a file can be wrong."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ovf
from ovf import _core
from ovf.summaries import each_summary, write_tar
from ovf.testing import Fault, Layout, Training, write_training
from small import INF, NAN, collective, loss_chain, op, t, write_rank, write_step
from test_layouts import CASES

HERE = Path(__file__).parent
STORIES = [*sorted(p for p in (HERE / "data").iterdir() if p.is_dir()), HERE.parent / "examples" / "tp2_pp4"]


def both(path):
    """Everything a report says, records included."""
    report = ovf.find_first_overflow(path)
    return report.json(), [f.record for f in report.findings]


def mixed(dump: Path, summaries: Path, out: Path) -> Path:
    """The step with every second rank's dump replaced by its summary."""
    shutil.copytree(dump, out)
    kept = itertools.cycle([True, False])
    for rank, keep in zip(sorted(out.glob("step*/rank*")), kept, strict=False):
        if not keep:
            shutil.rmtree(rank)
            number = int(rank.name.removeprefix("rank") or 0)
            shutil.copy(summaries / rank.parent.name / f"rank{number}.ovfs", rank.parent)
    return out


# --- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dump", STORIES, ids=lambda p: p.name)
def test_reports_from_summaries_are_those_from_dumps(tmp_path, dump):
    files = ovf.summarize(dump, tmp_path / "all")
    assert len(files) == len(list(dump.glob("step*/*/dump.json")))
    assert both(tmp_path / "all") == both(dump)
    assert both(mixed(dump, tmp_path / "all", tmp_path / "mixed")) == both(dump)


@pytest.mark.parametrize(("layout", "fault", "options"), CASES, ids=lambda v: getattr(v, "name", None))
def test_generated_steps_too(tmp_path, layout, fault, options):
    write_training(tmp_path / "dump", Training(layout, layers=2 * layout.pp, faults=(fault,), **options))
    ovf.summarize(tmp_path / "dump", tmp_path / "all")
    assert both(tmp_path / "all") == both(tmp_path / "dump")
    assert both(mixed(tmp_path / "dump", tmp_path / "all", tmp_path / "mixed")) == both(tmp_path / "dump")
    for rank in range(layout.tp * layout.pp * layout.dp):
        trace = ovf.trace_rank(tmp_path / "all", rank)
        assert trace == ovf.trace_rank(tmp_path / "dump", rank)


def test_what_was_asked_for_besides_is_the_same(tmp_path):
    """Near misses, levels, strips, losses and the chart are in a summary, and in a report only where they are asked for."""
    dump = HERE.parent / "examples" / "tp2_pp4"
    ovf.summarize(dump, tmp_path / "all")
    alone = mixed(dump, tmp_path / "all", tmp_path / "mixed")
    for also in (["near"], ["levels"], ["strip"], ["near", "levels", "strip"]):
        wanted = ovf.find_first_overflow(dump, also=also, chart=True)
        for place in (tmp_path / "all", alone):
            report = ovf.find_first_overflow(place, also=also, chart=True)
            assert report.json() == wanted.json()
            assert report.atlas() == wanted.atlas()
    assert repr(ovf.steps(tmp_path / "all")) == repr(ovf.steps(dump))  # NaN differs from itself


def test_dumps_that_are_cut_empty_or_not_there(tmp_path):
    step = tmp_path / "dump" / "step4"
    bad = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}
    write_step(step, dict.fromkeys(range(5), bad))
    whole = (step / "rank1" / "dump.json").read_text()
    (step / "rank1" / "dump.json").write_text(whole[: len(whole) // 2])
    (step / "rank2" / "dump.json").write_text("")
    (step / "rank3" / "dump.json").unlink()
    (step / "rank4" / "dump.json").write_bytes(b"\xef\xbb\xbf" + whole.encode())
    write_rank(step / "rankabc", bad)
    ovf.summarize(tmp_path / "dump", tmp_path / "all")
    report = ovf.find_first_overflow(tmp_path / "all")
    assert both(tmp_path / "all") == both(tmp_path / "dump")
    assert [u.rank for u in report.unreadable] == [1, 2, 3]
    assert "rankabc" in report.notes[0].text


def test_phases_several_steps_and_process_folders(tmp_path):
    fine = {"Torch.add.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}
    bad = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(INF, NAN)]), **loss_chain()}
    dump = tmp_path / "dump"
    write_step(dump / "actor" / "step0", {0: fine, 1: fine})
    write_step(dump / "actor" / "step10", {0: fine, 1: bad})
    write_rank(dump / "ref" / "step2" / "proc77", fine)
    write_rank(dump / "ref" / "step2" / "proc78", fine)
    files = ovf.summarize(dump, tmp_path / "all")
    names = [str(f.relative_to(tmp_path / "all")) for f in files]
    assert names == [
        *(f"actor/step{s}/rank{r}.ovfs" for s in (0, 10) for r in (0, 1)),
        *(f"ref/step2/rank{r}.ovfs" for r in (0, 1)),
    ]
    assert both(tmp_path / "all") == both(dump)
    one = ovf.find_first_overflow(tmp_path / "all", step="ref/step2")
    assert one.json() == ovf.find_first_overflow(dump, step="ref/step2").json()
    assert [r.label for r in one.ranks] == ["proc77", "proc78"]
    # One file alone, like one rank folder alone.
    alone = ovf.find_first_overflow(tmp_path / "all/actor/step10/rank1.ovfs")
    assert alone.json() == ovf.find_first_overflow(dump / "actor/step10/rank1").json()


def test_a_flat_folder_is_called_what_its_summaries_say(tmp_path):
    dump = STORIES[-1]
    flat = tmp_path / "gathered"
    flat.mkdir()
    for file in ovf.summarize(dump, tmp_path / "all"):
        shutil.copy(file, flat)
    assert both(flat) == both(dump)
    assert ovf.find_first_overflow(flat, step=0).verdict == "overflow"


def test_several_paths_are_one_dump(tmp_path):
    dump = STORIES[-1]
    hosts = [tmp_path / "a" / "dump", tmp_path / "b" / "dump"]
    for number, rank in enumerate(sorted(dump.glob("step0/rank*"))):
        shutil.copytree(rank, hosts[number % 2] / "step0" / rank.name)
    assert both(hosts) == both(dump)
    sums = [ovf.summarize(h, tmp_path / f"s{i}")[0].parent.parent for i, h in enumerate(hosts)]
    assert both(sums) == both(dump)
    assert both([sums[0], hosts[1]]) == both(dump)
    assert ovf.cross_rank(sums) == ovf.cross_rank(dump)
    everything = ovf.find_first_overflow([sums[0], hosts[0], hosts[1]])
    passed_over = [n.text for n in everything.notes if n.kind == "layout"]
    assert len(passed_over) == 4
    assert all("a summary beside the rank's dump" in text for text in passed_over)
    assert (everything.first.rank, everything.first.op_name) == (2, "Tensor.__truediv__.1.forward")


def test_the_same_bytes_every_time():
    dump = STORIES[-1]
    made = [{s.name: s.content for s in each_summary(dump, threads=n)} for n in (1, 8)]
    assert made[0] == made[1]
    # From memory, too.
    folder = dump / "step0" / "rank3"
    content = _core.summarize(
        bytearray((folder / "dump.json").read_bytes()),
        construct=memoryview((folder / "construct.json").read_bytes()),
        stack=(folder / "stack.json").read_bytes(),
        rank=3,
        label="rank3",
        path=str(folder / "dump.json"),
        step_number=0,
        step_label="step0",
    )
    assert content == {str(n): c for n, c in made[0].items()}["step0/rank3.ovfs"]


def test_summaries_of_summaries_are_copies(tmp_path):
    first = ovf.summarize(STORIES[0], tmp_path / "a")
    second = ovf.summarize(tmp_path / "a", tmp_path / "b")
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]


def test_they_are_small(tmp_path):
    write_training(
        tmp_path / "dump", Training(Layout(tp=2, pp=2), layers=8, micro_batches=8, faults=(Fault("forward", 1),))
    )
    files = ovf.summarize(tmp_path / "dump", tmp_path / "all")
    dumped = sum(p.stat().st_size for p in tmp_path.rglob("dump.json"))
    assert sum(f.stat().st_size for f in files) < 0.02 * dumped


# --- what can be wrong ------------------------------------------------------------------------------------------------


@pytest.fixture
def four(tmp_path):
    """Summaries of four ranks, the first overflow on rank 2."""
    bad = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)])}
    fine = {"Torch.add.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}
    data = {
        r: dict(
            [
                *(bad if r == 2 else fine).items(),
                collective("all_reduce", t(NAN, NAN) if r == 2 else t(1.0, 1.0), t(NAN, NAN), ranks=range(4)),
            ]
        )
        for r in range(4)
    }
    write_step(tmp_path / "dump" / "step0", data)
    ovf.summarize(tmp_path / "dump", tmp_path / "all")
    return tmp_path / "all" / "step0"


def unreadable(path):
    report = ovf.find_first_overflow(path)
    assert (report.first.rank, report.first.op_name) == (2, "Torch.log.0.forward")
    assert report.incomplete
    (found,) = report.unreadable
    return found


def test_another_format(four):
    file = four / "rank3.ovfs"
    content = bytearray(file.read_bytes())
    content[8] += 1
    file.write_bytes(content)
    found = unreadable(four)
    assert (found.rank, found.path) == (3, str(file))
    assert "a summary of format" in found.message
    assert "summarise the rank again" in found.help


@pytest.mark.parametrize("at", [13, 22, 30, 100, -1])
def test_changed_bytes(four, at):
    file = four / "rank1.ovfs"
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)
    found = unreadable(four)
    assert found.rank == 1
    assert "damaged" in found.message or "ends early" in found.message


@pytest.mark.parametrize("kept", [0, 5, 11, 20, 40, -3])
def test_a_cut_file(four, kept):
    file = four / "rank1.ovfs"
    file.write_bytes(file.read_bytes()[:kept])
    assert any(text in unreadable(four).message for text in ("ends early", "expected an ovf summary"))


def test_something_else(four):
    (four / "rank1.ovfs").write_text("{}")
    assert "expected an ovf summary" in unreadable(four).message


def test_another_rank_under_its_name(four):
    shutil.copy(four / "rank0.ovfs", four / "rank1.ovfs")
    assert "a summary of rank 0 under the name of rank 1" in unreadable(four).message


def test_another_step_among_them(four, tmp_path):
    fine = {"Torch.add.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}
    write_step(tmp_path / "dump" / "step7", {1: fine})
    ovf.summarize(tmp_path / "dump" / "step7", tmp_path / "other")
    shutil.copy(tmp_path / "other/step7/rank1.ovfs", four)
    assert "a summary of step 7 among those of step 0" in unreadable(four).message


def test_two_files_for_one_rank(four, tmp_path):
    shutil.copy(four / "rank1.ovfs", four / "rank_1.ovfs")
    assert ovf.find_first_overflow(four).unreadable == ()  # equal: which one is read does not matter
    write_step(tmp_path / "more" / "step0", {1: {"Torch.add.0.forward": op([t(2.0, -1.0)], [t(1.0, -1.0)])}})
    ovf.summarize(tmp_path / "more", tmp_path / "others")
    shutil.copy(tmp_path / "others/step0/rank1.ovfs", four / "rank_1.ovfs")
    found = unreadable(four)
    assert found.rank == 1
    assert "two dumps or summaries, which differ" in found.message
    assert "rank1.ovfs" in found.message
    assert "rank_1.ovfs" in found.message
    (four / "rank_1.ovfs").unlink()
    assert "which differ" in unreadable([four, tmp_path / "others"]).message


def test_the_dump_stands_before_its_summary(four, tmp_path):
    shutil.copytree(tmp_path / "dump/step0/rank3", four / "rank3")
    report = ovf.find_first_overflow(four)
    assert [n.text for n in report.notes if n.kind == "layout"] == [
        "rank3.ovfs: a summary beside the rank's dump in rank3, passed over"
    ]
    assert not report.unreadable


def test_other_rules(four, tmp_path):
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"schema_version": 1, "communication_prefixes": ["MyComm"]}))
    report = ovf.find_first_overflow(four, rules=rules)
    assert (report.verdict, len(report.unreadable)) == ("no_evidence", 4)
    assert "other rules" in report.unreadable[0].message
    ovf.summarize(tmp_path / "dump", tmp_path / "again", rules=rules)
    assert ovf.find_first_overflow(tmp_path / "again", rules=rules).verdict == "overflow"
    # What is only looked at for the report may differ.
    rules.write_text(json.dumps({"schema_version": 1, "library_paths": ["/my/lib"]}))
    assert ovf.find_first_overflow(four, rules=rules).verdict == "overflow"


def test_reduce_says_which_bytes(four):
    good = (four / "rank0.ovfs").read_bytes()
    with pytest.raises(ovf.DumpFormatError, match="summary 1: expected an ovf summary"):
        _core.reduce([good, b"nothing"])
    with pytest.raises(ValueError, match="no rank 5"):
        _core.reduce([good], ranks=[5])
    absent = _core.absent(rank=1, label="rank1", path="host7:/dump", message="the node is lost", help="restart it")
    report = json.loads(_core.reduce([absent, good])[0])
    assert report["unreadable"][0]["path"] == "host7:/dump"
    assert report["step_label"] == "step0"  # as the summaries say
    assert json.loads(_core.reduce([good], step_label="mine")[0])["step_label"] == "mine"


BAD_RANK = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    folder = write_rank(
        tmp_path_factory.mktemp("one") / "rank0",
        BAD_RANK,
        stack={"0": [["Torch.log.0.forward"], ["File a.py, line 1, in f, \n c"]]},
    )
    return _core.summarize(folder / "dump.json", rank=0, label="rank0")


@given(data=st.data())
def test_no_mutation_of_the_bytes_does_harm(content, data):
    """A changed file is refused; it never gives another report, and never ends the process."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "zero"])):
            case "flip" if at < len(changed):
                changed[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del changed[at : at + data.draw(st.integers(1, 64))]
            case "insert":
                changed[at:at] = data.draw(st.binary(min_size=1, max_size=16))
            case "zero":
                changed[at : at + 8] = bytes(len(changed[at : at + 8]))
    try:
        text, *_ = _core.reduce([bytes(changed)])
    except ovf.DumpFormatError:
        return
    assert text == _core.reduce([content])[0]


# --- files and the command --------------------------------------------------------------------------------------------


def run(*args, **more):
    command = [sys.executable, "-m", "ovf", *map(str, args)]
    return subprocess.run(command, capture_output=True, timeout=120, **more)


def test_nothing_is_overwritten_and_twice_is_harmless(four, tmp_path):
    before = {f: f.stat().st_mtime_ns for f in four.iterdir()}
    assert run("summarize", tmp_path / "dump", "-o", four.parent).returncode == 0
    assert {f: f.stat().st_mtime_ns for f in four.iterdir()} == before
    (four / "rank2.ovfs").write_bytes(b"mine")
    done = run("summarize", tmp_path / "dump", "-o", four.parent)
    assert done.returncode == 2
    assert b"rank2.ovfs: exists; nothing is overwritten" in done.stderr
    assert (four / "rank2.ovfs").read_bytes() == b"mine"
    assert sorted(f.name for f in four.iterdir()) == [f"rank{r}.ovfs" for r in range(4)]  # no leftovers


@pytest.mark.parametrize(
    ("given", "out"),
    [("dump", "dump/x"), ("dump/step0", "dump"), ("dump/step0/rank1", "dump"), ("dump/step0/rank1/dump.json", "dump")],
)
@pytest.mark.usefixtures("four")
def test_never_into_the_dump(tmp_path, given, out):
    before = sorted((tmp_path / "dump").rglob("*"))
    done = run("summarize", tmp_path / given, "-o", tmp_path / out)
    assert done.returncode == 2
    assert b"ovf never writes there" in done.stderr
    assert sorted((tmp_path / "dump").rglob("*")) == before


def test_the_command(four, tmp_path):
    done = run("summarize", tmp_path / "dump", "-o", tmp_path / "new", "--ranks", "0,2")
    assert done.returncode == 0
    assert b"step0: 2 ranks" in done.stderr
    assert sorted(f.name for f in (tmp_path / "new/step0").iterdir()) == ["rank0.ovfs", "rank2.ovfs"]
    assert run("check", four, "-q").returncode == 1
    assert run("check", *(four / f"rank{r}.ovfs" for r in range(4)), "-q").returncode == 1
    assert run("ranks", four).stdout == run("ranks", tmp_path / "dump").stdout
    assert run("trace", four, "--rank", "2").stdout == run("trace", tmp_path / "dump", "--rank", "2").stdout
    assert b"say where the summaries go" in run("summarize", tmp_path / "dump").stderr
    assert run("summarize", tmp_path / "nothing", "-o", tmp_path / "x").returncode == 2
    (tmp_path / "dump/step0/rank0/dump.json").write_text("{")
    done = run("summarize", tmp_path / "dump", "-o", tmp_path / "cut")
    assert done.returncode == 2
    assert b"rank0" in done.stderr
    assert len(list((tmp_path / "cut/step0").iterdir())) == 4
    assert run("summarize", tmp_path / "dump", "-o", tmp_path / "cut", "--allow-incomplete-ranks").returncode == 0


def test_an_archive_on_standard_output(four, tmp_path):
    done = run("summarize", tmp_path / "dump", "-o", "-")
    assert done.returncode == 0
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        found = {m.name: archive.extractfile(m).read() for m in archive}
    assert found == {f"step0/rank{r}.ovfs": (four / f"rank{r}.ovfs").read_bytes() for r in range(4)}
    stream = io.BytesIO()
    write_tar(each_summary(tmp_path / "dump", ranks=[1]), stream)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as archive:
        assert archive.getnames() == ["step0/rank1.ovfs"]
