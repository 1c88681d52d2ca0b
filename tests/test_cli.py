"""The command: exit statuses, formats, every error message, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from small import NAN, loss_chain, op, t, write_rank, write_step

DATA = Path(__file__).parent / "data"
FAULTY = DATA / "healed_then_real"
CLEAN = DATA / "clean_log_mask"


def run(*args, cwd=None, env=None):
    command = [sys.executable, "-m", "ovf", *map(str, args)]
    clean = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR"}}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**clean, **(env or {})}, timeout=120)


BAD = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}
FINE = {"Torch.add.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}


# --- exit statuses and formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["check", FAULTY], 1),
        (["check", FAULTY, "--exit-zero"], 0),
        (["check", CLEAN], 0),
        (["check", DATA / "no_statistics"], 2),
        (["check", DATA / "no_statistics", "--exit-zero"], 2),
        (["check", "nowhere"], 2),
        (["check"], 2),
        (["check", CLEAN, "--no-such-option"], 2),
        (["ranks", FAULTY], 1),
        (["ranks", CLEAN], 0),
        (["trace", FAULTY, "--rank", 1], 1),
        (["trace", FAULTY, "--rank", 7], 2),
        (["rules"], 0),
        (["--version"], 0),
        (["--help"], 0),
        (["check", "--help"], 0),
    ],
)
def test_exit_status(args, code):
    assert run(*args).returncode == code


def test_the_answer_is_the_first_thing_on_the_screen():
    lines = run("check", FAULTY).stdout.splitlines()
    assert lines[2].startswith("FIRST OVERFLOW  rank 1   Torch.exp.0.forward   exec_order 14 of 47 ops   certain")
    text = "\n".join(lines)
    for part in (
        "max 200",
        "max inf",
        "trainlib.py:146 in power",
        "likely",
        "SPREAD",
        "healed",
        "concurrent origins: none",
    ):
        assert part in text
    assert "\x1b[" not in text  # no terminal, no colour


def test_quiet_and_colour():
    assert run("check", FAULTY, "-q").stdout == ""
    assert "\x1b[" in run("check", FAULTY, "--color", "always").stdout
    assert "\x1b[" in run("check", FAULTY, env={"FORCE_COLOR": "1"}).stdout
    plain = run("check", FAULTY, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout
    assert not re.search("\x1b\\[[0-9;]*3[0-7]m", plain)  # bold is no colour


def test_verbose_shows_all_frames_and_the_path():
    text = run("check", FAULTY, "-v").stdout
    assert "more frames" not in text
    assert "origin         rank 1" in text


def strict(text):
    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict_versioned_and_the_same_every_time():
    first = run("check", FAULTY, "--json").stdout
    data = strict(first)
    assert data["schema_version"] == 1
    assert data["verdict"] == "overflow"
    assert data["first"]["op_name"] == "Torch.exp.0.forward"
    assert data["first"]["outputs"][0]["max"] == "Infinity"
    assert data["findings"][0] == data["first"]
    for key in (
        "step",
        "notes",
        "ranks",
        "unreadable",
        "communications",
        "path",
        "spread",
        "incomplete",
        "steps",
    ):
        assert key in data
    assert run("check", FAULTY, "--format", "json", "--threads", 1).stdout == first


def test_every_field_of_the_json_is_documented():
    page = (Path(__file__).parent.parent / "docs" / "report.md").read_text()

    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from keys(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    data = strict(run("check", DATA / "sum_overflows_in_all_reduce", "--json").stdout)
    missing = sorted({k for k in keys(data) if f"`{k}`" not in page})
    assert missing == []


def test_jsonl_has_one_object_a_line():
    lines = [strict(line) for line in run("check", FAULTY, "--format", "jsonl").stdout.splitlines()]
    assert lines[0]["type"] == "begin"
    assert next(line for line in lines if line["type"] == "finding")["rank"] == 1
    assert {line["type"] for line in lines} >= {
        "begin",
        "finding",
        "path",
        "communication",
        "rank",
        "note",
    }


def test_as_msprobe_users_type_it(tmp_path):
    done = run("check", "-i", FAULTY, "-o", tmp_path / "out")
    assert done.returncode == 1
    (file,) = (tmp_path / "out").glob("anomaly_analyze_*.json")
    data = json.loads(file.read_text())
    assert list(data) == ["rank_1"]
    (node,) = data["rank_1"]
    assert sorted(node) == ["construct_info", "data_info", "op_name", "stack_info"]
    assert node["op_name"] == "Torch.exp.0.forward"
    assert node["data_info"]["output"][0]["Max"] == float("inf")
    assert "trainlib.py" in node["stack_info"]["Torch.exp.0.forward"][0]
    clean = run("check", "--input_path", CLEAN, "--output_path", tmp_path / "none", "--format", "msprobe")
    assert clean.stdout.strip() == "Cannot find any anomaly node, no need to generate analyze file."
    assert not (tmp_path / "none").exists()


def test_ranks_gives_the_table_and_the_skill_json(tmp_path):
    assert "Distributed.all_reduce.0.forward" in run("ranks", FAULTY).stdout
    data = json.loads(run("ranks", FAULTY, "--json").stdout)
    assert data["Distributed.all_reduce.0.forward"] == {
        "source_ranks": [1],
        "propagated_ranks": [0],
        "normal_ranks": [],
        "total_ranks": [0, 1],
    }
    run("ranks", FAULTY, "-o", tmp_path)
    assert json.loads((tmp_path / "cross_rank_analysis.json").read_text()) == data


def test_trace_has_the_skill_keys_and_every_candidate(tmp_path):
    done = run("trace", FAULTY, "--rank", 1)
    data = json.loads(done.stdout)
    assert data["rank"] == 1
    first = data["first_anomaly"]
    for key in ("op_name", "exec_order", "output", "input_info", "construct_chain", "stack_info"):
        assert key in first
    assert (first["op_name"], first["exec_order"]) == ("Torch.exp.0.forward", 14)
    assert first["input_info"] == [{"shape": [6, 4, 8], "Max": "200", "Min": "200", "dtype": "float32"}]
    assert "trainlib.py" in first["stack_info"][0]
    later = [a["op_name"] for a in data["all_anomalies"][1:]]
    assert "Torch.div.0.forward" in later  # healed, but at hand when the first is ruled out
    alone = json.loads(run("trace", FAULTY / "step0" / "rank1").stdout)
    assert alone["first_anomaly"]["op_name"] == "Torch.exp.0.forward"
    run("trace", FAULTY, "--rank", 1, "-o", tmp_path)
    assert json.loads((tmp_path / "single_rank_trace.json").read_text()) == data


def test_a_rules_file_adds_and_switches_off(tmp_path):
    file = tmp_path / "rules.json"
    rows = [{"is": "uninitialised", "match": ["Torch.log"]}]
    file.write_text(json.dumps({"schema_version": 1, "operators": rows}))
    step = write_step(tmp_path / "step0", {0: {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)])}})
    assert run("check", step).returncode == 1
    assert run("check", step, "--rules", file).returncode == 0
    assert "Torch.log" in run("rules", "--rules", file).stdout
    file.write_text('{"schema_version": 1,\n "operators": [{"is": "magic", "match": []}]}')
    done = run("check", step, "--rules", file)
    assert done.returncode == 2
    assert f"{file}:2:" in done.stderr
    assert "magic" in done.stderr


def test_selecting_steps_and_ranks(tmp_path):
    write_step(tmp_path / "step0", {0: FINE, 1: BAD})
    write_step(tmp_path / "step1", {0: BAD, 1: BAD})
    assert run("check", tmp_path, "--ranks", "0").returncode == 1  # step 1
    assert run("check", tmp_path, "--ranks", "0", "--step", "0").returncode == 0
    assert run("check", tmp_path, "--step", "step1", "--ranks", "0-1").returncode == 1
    for args, text in [
        (["--step", "9"], "no step 9; it has step0, step1"),
        (["--ranks", "5"], "no rank 5 in this step; it has ranks 0-1"),
        (["--ranks", "x"], "write ranks like 0,3,8-15"),
    ]:
        done = run("check", tmp_path, *args)
        assert done.returncode == 2
        assert text in done.stderr.replace("\n", " ").replace("│", "").replace("  ", " ")


# --- bad input --------------------------------------------------------------------------------------------------------


def lone(text):
    return json.dumps({"data": {f"Torch.{text}.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}})


DAMAGED = {
    "truncated": (lambda text: text[: len(text) * 2 // 3], "the file ends early"),
    "empty": (lambda _: "", "the file is empty"),
    "no_op": (lambda _: '{"task": "statistics", "data": {}}', "the dump holds no op"),
    "text": (lambda _: "hello", "1:1: expected a JSON object, found 'h'"),
    "other_json": (lambda _: '{"a": 1}', 'without a "data" object'),
    "a_list": (lambda _: "[]", "expected a JSON object, found '['"),
    "bad_comma": (
        lambda text: text.replace('},\n  "Functional', '};\n  "Functional', 1),
        "expected ',' or '}' after an op, found ';'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_rank_is_named_and_the_others_analysed(tmp_path, damage):
    change, message = DAMAGED[damage]
    step = write_step(tmp_path / "step0", {0: BAD, 1: BAD})
    file = step / "rank1" / "dump.json"
    file.write_text(change(file.read_text()))
    done = run("check", step)
    assert done.returncode == 2
    assert "FIRST OVERFLOW  rank 0" in done.stdout
    assert message in done.stdout
    assert str(file) in done.stdout
    assert "help:" in done.stdout
    assert run("check", step, "--allow-incomplete-ranks").returncode == 1
    assert "Traceback" not in done.stderr


def write_bytes(tmp_path, content):
    step = write_step(tmp_path / "step0", {0: BAD})
    (step / "rank1").mkdir()
    (step / "rank1" / "dump.json").write_bytes(content)
    return step


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(range(256)) * 10, "1:1: expected a JSON object, found byte 0x00"),
        ("{}".encode("utf-16"), "expected a JSON object, found byte 0xff"),
        (b'{"data": {"Torch.caf\xe9.0.forward": {}}}', "expected UTF-8, found byte 0xe9"),
    ],
)
def test_bytes_that_are_no_text(tmp_path, content, message):
    done = run("check", write_bytes(tmp_path, content))
    assert done.returncode == 2
    assert message in done.stdout
    assert "FIRST OVERFLOW  rank 0" in done.stdout


def test_odd_but_valid_content_is_read(tmp_path):
    deep = (
        json.dumps(op([t(1.0, -1.0)], [t(1.0, 0.0)]))
        .replace("[{", "[" * 400 + "{", 1)
        .replace("}]", "}" + "]" * 400, 1)
    )
    odd = f'{{"data": {{"a.0.forward": {deep}, "\\ud800.0.forward": {{}}, "a.1.forward": {{"x": 1}}, "a.1.forward": {{"x": 2}}}}}}'
    done = run("check", write_bytes(tmp_path, odd.encode()))
    assert done.returncode == 1
    assert "1 op names stand twice" in done.stdout


def test_links_whose_end_is_gone_are_ranks_that_cannot_be_read(tmp_path):
    step = write_step(tmp_path / "step0", {0: FINE})
    (step / "rank1").symlink_to(tmp_path / "other_host" / "rank1")
    (step / "rank2.ovfs").symlink_to(tmp_path / "other_host" / "rank2.ovfs")
    done = run("check", step)
    assert done.returncode == 2
    assert "rank1/dump.json" in done.stdout
    assert "rank2.ovfs" in done.stdout


def test_a_missing_dump_and_an_unreadable_folder(tmp_path):
    step = write_step(tmp_path / "step0", {0: BAD})
    (step / "rank1").mkdir()
    done = run("check", step)
    assert done.returncode == 2
    assert "no such file or directory" in done.stdout
    assert "FIRST OVERFLOW  rank 0" in done.stdout
    if os.geteuid() != 0:  # root may read everything
        shutil.rmtree(step / "rank1")
        write_rank(step / "rank1", BAD)
        (step / "rank1" / "dump.json").chmod(0)
        assert "permission denied" in run("check", step).stdout


def test_a_folder_in_place_of_a_file(tmp_path):
    step = write_step(tmp_path / "step0", {0: BAD})
    (step / "rank1" / "dump.json").mkdir(parents=True)
    done = run("check", step)
    assert done.returncode == 2
    assert "is a folder" in done.stdout


@pytest.mark.parametrize("missing", ["stack.json", "construct.json"])
@pytest.mark.parametrize("content", [None, "", "{", "[1]", '{"0": 7}'])
def test_context_files_may_be_missing_or_broken(tmp_path, missing, content):
    copy = tmp_path / "dump"
    shutil.copytree(FAULTY, copy)
    for file in copy.rglob(missing):
        file.unlink()
        if content is not None:
            file.write_text(content)
    assert "FIRST OVERFLOW  rank 1   Torch.exp.0.forward" in run("check", copy).stdout


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "nothing", "no such file or directory"),
        (lambda p: p, "no msProbe dump here"),
        (lambda p: (p / "rank0").mkdir() or p / "rank0", "no dump.json in this rank folder"),
    ],
)
def test_paths_that_are_no_dump(tmp_path, make, message):
    done = run("check", make(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_legacy_pickle_is_refused_in_one_line(tmp_path):
    file = tmp_path / "api_stack_dump.pkl"
    file.write_text('["Functional_linear_0_forward_input.0",1,[],"torch.float32",[3,2],[1.0,0.0,0.5]]\n')
    done = run("check", file)
    assert done.returncode == 2
    assert "ptdbg" in done.stdout + done.stderr


# --- writing ----------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_and_nothing_goes_into_the_dump(tmp_path):
    target = tmp_path / "report.json"
    assert run("check", FAULTY, "--json", "-o", target).returncode == 1
    before = target.read_text()
    again = run("check", FAULTY, "--json", "-o", target)
    assert again.returncode == 2
    assert "exists; nothing is overwritten" in again.stderr
    assert target.read_text() == before
    copy = tmp_path / "dump"
    shutil.copytree(FAULTY, copy)
    for args in (["--json", "-o", copy / "x.json"], ["-o", copy / "out"], ["-o", copy]):
        done = run("check", copy, *args)
        assert done.returncode == 2
        assert "never writes there" in done.stderr
    assert not (copy / "out").exists()


# --- names are text ---------------------------------------------------------------------------------------------------


def test_hostile_names_are_shown_as_text(tmp_path):
    name = "Torch.[red]\x1b[31m\u202eevil.0.forward"
    step = write_step(tmp_path / "step0", {0: {name: op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}})
    out = run("check", step, "--color", "always").stdout
    assert "\x1b[31m\u202e" not in out
    assert "\\x1b[31m\\u202eevil" in out
    assert "[red]" in out


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_closed_pipe_is_no_error():
    shell = f"{sys.executable} -m ovf check {FAULTY} --format jsonl | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr
