"""The C++ decision against the rule, compiled with g++ and nothing else."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import CSRC, HERE, compile_program
from table import ROWS, VALUES, rule

from ovf.npu import gate


@pytest.fixture(scope="module")
def decide(tmp_path_factory):
    program = compile_program(
        tmp_path_factory.mktemp("decision") / "decision", "-Wall", "-Wextra", "-Werror", "-std=c++11", "-I", CSRC,
        HERE / "cpp" / "decision_table.cpp", "-ldl",
    )  # fmt: skip

    def ask(rows):
        lines = "".join(
            f"{'-' if value is None else value}\t{version}\t{int(inf_nan)}\n" for value, version, inf_nan in rows
        )
        done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    return ask


def test_the_decision_follows_the_rule_in_every_row(decide):
    answers = decide([(value, version, mode == "INF_NAN") for value, version, mode in ROWS])
    assert len(answers) == 72
    for row, (decision, switch, asked) in zip(ROWS, answers, strict=True):
        expected = rule(*row)
        assert (decision == 2) is expected["force"], row
        assert bool(switch) is expected["switch"], row
        assert (decision == 1) is (row[0] == "1" and not expected["force"]), row  # what the one warning says
        assert asked == (row[0] == "1"), row  # a process without the variable never asks for the version


#: Measured on the shipped wheel with a simulated CANN: what its own comparison takes for at least
#: 9.1.0.
ACCEPTED = ["9.1.0", "9.1.1", "9.2.0", "10.0.0"]
REFUSED = [
    "9.1.0-beta.1", "9.1.0.alpha003", "9.1.0.RC1", "9.1.RC1", "9.1", "9.1.0.1", "9.1.T5", "9.1.0.b083", "9.1.0.T1",
    "8.5.0", "8.5.1", "9.0.9", "", "garbage", "9.1.0 ", " 9.1.0", "9.1.0\u0660", "99999999999.1.0",
]  # fmt: skip


def test_the_own_version_helper_agrees_in_both_languages(decide):
    versions = [version for version in ACCEPTED + REFUSED if version]
    answers = decide([("1", version, True) for version in versions])
    assert [decision == 2 for decision, _, _ in answers] == [gate.cann_allows(version) for version in versions]
    assert [version for version in ACCEPTED + REFUSED if gate.cann_allows(version)] == ACCEPTED
    assert not gate.cann_allows(None)


@settings(deadline=None)  # files and processes, on a machine that others use too
@given(st.text(st.sampled_from("0189.-RCb "), max_size=12))
def test_python_and_cpp_agree_on_any_version(decide, version):
    ((decision, _, _),) = decide([("1", version, True)])
    assert (decision == 2) is gate.cann_allows(version)


def test_only_exactly_one_requests(decide):
    values = [*VALUES, "1 ", "01", "10", "1.0", "on", "TRUE", "-1"]
    answers = decide([(value, "9.1.0", True) for value in values])
    assert [value for value in values if gate.is_requested(value)] == ["1"]
    assert [v for v, (decision, _, _) in zip(values, answers, strict=True) if decision] == ["1"]
