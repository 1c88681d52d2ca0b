"""The tables: real readers read them, every value survives, the same rows for any number of threads."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ovf
from ovf.testing import strategies
from ovf.testing import write_step as write_simulated
from small import INF, NAN, loss_chain, op, scalar, t, write_rank, write_step
from test_cli import run

DATA = Path(__file__).parent / "data"
FAULTY = DATA / "sum_overflows_in_all_reduce"
DOCS = Path(__file__).parent.parent / "docs"

HOSTILE = [
    'a,"b"\n.0.forward',
    "</script><img src=x>.0.forward",
    "\u202eright-to-left\u202c.0.forward",
    "=HYPERLINK(1).0.forward",
    "x" * 10_000 + ".0.forward",
    "tab\tand\x00null\x1f.0.forward",
    "\U0001f525 \u4e2d\u6587.0.forward",
    " spaces .0.forward ",
    "null",
    "",
]


@pytest.fixture
def hostile(tmp_path):
    data = {name: op([t(1.0, -1.0)], [t(NAN, NAN) if i == 3 else t(2.0, -INF)]) for i, name in enumerate(HOSTILE)}
    return write_rank(tmp_path / "step0" / "rank0", {**data, **loss_chain()})


def rows_of(table, form="csv"):
    text = b"".join(table.text(form)).decode()
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    return [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n") if line]


# --- the rows ---------------------------------------------------------------------------------------------------------


def test_one_row_an_op_of_every_rank_in_order():
    report = ovf.find_first_overflow(FAULTY)
    rows = rows_of(report.to_arrow("ops"), "jsonl")
    places = [(r["rank"], r["exec_order"]) for r in rows]
    assert places == [(rank.rank, i) for rank in report.ranks for i in range(rank.ops)]
    for rank in report.ranks:
        states = [r["state"] for r in rows if r["rank"] == rank.rank]
        assert {s: states.count(s) for s in set(states)} == {k: n for k, n in rank.counts.items() if n}
    names = json.loads((FAULTY / "step0" / "rank0" / "dump.json").read_text())["data"]
    assert [r["op_name"] for r in rows if r["rank"] == 0] == list(names)


def test_the_worst_output_and_what_went_in(tmp_path):
    data = {
        "Torch.foo.0.forward": op(
            [t(3.0, -7.0), t(9.0, 1.0, "torch.int64")], [t(1.0, -1.0), t(5.0, -INF, shape=(4,)), t(7.0, 0.0)]
        ),
        "Torch.bar.0.forward": op([scalar(2.0)], [t(1.0, -1.0, "torch.float16"), t(0.5, -6550.4, "torch.float16")]),
        "Torch.none.0.forward": op([], [None]),
    }
    first, second, third = rows_of(ovf.op_table(write_rank(tmp_path / "step7" / "rank3", data)), "jsonl")
    assert (first["step"], first["step_label"], first["rank"]) == (7, "step7", 3)
    assert (first["slot"], first["shape"], first["min"], first["bad_outputs"]) == (
        "output[1]",
        [4],
        "-Infinity",
        "-inf",
    )
    assert (first["input_max"], first["input_min"], first["limit_share"]) == (3.0, -7.0, None)
    assert (first["level"], first["api"], first["direction"]) == ("critical", "foo", "forward")
    assert (second["slot"], second["dtype"], second["bad_outputs"], second["input_max"]) == (
        "output[1]",
        "float16",
        None,
        None,
    )
    assert second["limit_share"] == pytest.approx(0.1)
    assert (third["slot"], third["max"], third["shape"], third["state"]) == (None, None, None, "clean")


def test_a_missing_statistic_is_null_and_a_nan_is_nan(tmp_path):
    lonely = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], "Max": "nan", "Min": None}
    path = write_rank(tmp_path / "step0" / "rank0", {"Torch.a.0.forward": op([], [lonely])})
    (row,) = rows_of(ovf.op_table(path), "jsonl")
    assert (row["max"], row["min"], row["norm"], row["shape"]) == ("NaN", None, None, [])
    (row,) = rows_of(ovf.op_table(path))
    assert (row["max"], row["min"], row["shape"], row["bad_outputs"]) == ("nan", "", "[]", "nan")


def test_findings_and_communications_are_the_report_s():
    report = ovf.find_first_overflow(FAULTY)
    findings = rows_of(report.to_arrow("findings"), "jsonl")
    assert [(f["rank"], f["op_name"], f["place"]) for f in findings] == [
        (f.rank, f.op_name, i) for i, f in enumerate(report.findings)
    ]
    assert findings[0]["likely"] == report.first.hint.likely
    assert findings[0]["max"] == "Infinity"
    communications = rows_of(report.to_arrow("communications"), "jsonl")
    assert [(c["op_name"], c["propagated_ranks"], c["verdict"]) for c in communications] == [
        (c.op_name, list(c.propagated_ranks), c.verdict) for c in report.communications
    ]
    with pytest.raises(ValueError, match="no table"):
        report.to_arrow("nothing")


def test_all_steps_or_one(tmp_path):
    for step in (2, 10):
        write_step(tmp_path / f"step{step}", {0: loss_chain(), 1: loss_chain()})
    assert [r["step"] for r in rows_of(ovf.op_table(tmp_path), "jsonl")][:: len(loss_chain())] == [2, 2, 10, 10]
    assert {(r["step"], r["rank"]) for r in rows_of(ovf.op_table(tmp_path, step=10, ranks=[1]), "jsonl")} == {(10, 1)}
    with pytest.raises(ValueError, match="no rank 5"):
        rows_of(ovf.op_table(tmp_path, ranks=[5]))


def test_the_same_bytes_for_any_number_of_threads():
    texts = {b"".join(ovf.op_table(DATA / "experts_all_to_all", threads=n).text("csv")) for n in (1, 2, 3, 8)}
    assert len(texts) == 1


def test_a_table_may_be_read_again_and_left_half_read():
    table = ovf.op_table(FAULTY, threads=2)
    half = table.text("csv")
    next(half)
    next(half)
    del half
    assert b"".join(table.text("csv")) == b"".join(table.text("csv"))


def test_many_batches_keep_their_order(tmp_path):
    data = {f"Torch.add.{i}.forward": op([], [t(float(i), 0.0)]) for i in range(20_000)}
    rows = rows_of(ovf.op_table(write_rank(tmp_path / "step0" / "rank0", data)))
    assert [float(r["max"]) for r in rows] == list(range(20_000))


def test_a_cut_dump_is_given_as_far_as_it_goes_and_named(tmp_path):
    step = write_step(tmp_path / "step0", {0: loss_chain(), 1: loss_chain()})
    file = step / "rank1" / "dump.json"
    file.write_text(file.read_text()[:-40])
    (step / "rank0" / "dump.json").write_text("")
    table = ovf.op_table(step)
    rows = rows_of(table)
    assert [r["rank"] for r in rows] == ["1"] * (len(loss_chain()) - 1)
    empty, cut = table.unreadable
    assert re.search(r"rank0.dump.json: the file is empty", empty)
    assert re.search(r"rank1.dump.json:\d+:\d+: the file ends early", cut)


def test_docs_name_every_column():
    page = (DOCS / "tables.md").read_text()
    report = ovf.find_first_overflow(FAULTY)
    for name in ("ops", "findings", "communications"):
        section = page.split(f"### {name}\n")[1].split("\n## ")[0].split("\n### ")[0]
        columns = [c for c, *_ in report.to_arrow(name).columns]
        assert [c for c in columns if f"`{c}`" not in section] == []


# --- real readers -----------------------------------------------------------------------------------------------------


def check_hostile(names, tops, lows):
    assert list(names)[: len(HOSTILE)] == HOSTILE
    assert math.isnan(tops[3])
    assert (tops[0], lows[0]) == (2.0, -INF)


def test_polars_reads_every_value(hostile):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ovf.op_table(hostile))
    check_hostile(frame["op_name"], frame["max"], frame["min"])
    assert frame["shape"].to_list()[0] == [2, 16]
    assert frame["state"].dtype == polars.Categorical
    assert frame.filter(polars.col("bad_outputs") == "-inf").height == len(HOSTILE) - 1
    many = polars.DataFrame(ovf.op_table(DATA / "experts_all_to_all"))
    assert many["dtype"].cast(polars.String).to_list() == [
        r["dtype"] or None for r in rows_of(ovf.op_table(DATA / "experts_all_to_all"))
    ]


def test_duckdb_reads_every_value(hostile):
    duckdb = pytest.importorskip("duckdb")
    ops = ovf.op_table(hostile)  # noqa: F841 - duckdb finds it by name
    found = duckdb.sql("select op_name, max, min from ops order by rank, exec_order").fetchall()
    check_hostile(*zip(*found, strict=True))
    ranks = ovf.op_table(FAULTY)  # noqa: F841
    counted = dict(duckdb.sql("select rank, count(*) from ranks group by rank").fetchall())
    assert counted == {r.rank: r.ops for r in ovf.find_first_overflow(FAULTY).ranks}


def test_pyarrow_reads_every_value_batch_by_batch(hostile):
    pa = pytest.importorskip("pyarrow")
    table = pa.table(ovf.op_table(hostile))
    table.validate(full=True)
    check_hostile(*(table[c].to_pylist() for c in ("op_name", "max", "min")))
    assert not table.schema.field("op_name").nullable
    assert pa.schema(ovf.op_table(hostile)) == table.schema
    for name in ("findings", "communications"):
        found = pa.table(ovf.find_first_overflow(FAULTY).to_arrow(name))
        found.validate(full=True)
        assert found.num_rows > 0


def test_pandas_reads_every_value(hostile):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas", minversion="3")
    frame = pandas.DataFrame.from_arrow(ovf.op_table(hostile))
    check_hostile(frame["op_name"], frame["max"], frame["min"])


def test_text_keeps_every_name(hostile):
    for form in ("csv", "jsonl"):
        rows = rows_of(ovf.op_table(hostile), form)
        check_hostile([r["op_name"] for r in rows], *([float(r[c]) for r in rows] for c in ("max", "min")))


# --- the command ------------------------------------------------------------------------------------------------------


def test_export_writes_each_form(tmp_path):
    done = run("export", FAULTY, "-o", tmp_path / "ops.csv")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "ops.csv").read_bytes() == b"".join(ovf.op_table(FAULTY).text("csv"))
    assert run("export", FAULTY, "--table", "findings", "-o", tmp_path / "f.jsonl").returncode == 0
    assert len((tmp_path / "f.jsonl").read_text().splitlines()) == len(ovf.find_first_overflow(FAULTY).findings)
    printed = run("export", FAULTY, "--ranks", 1, "--format", "jsonl").stdout
    assert {json.loads(line)["rank"] for line in printed.splitlines()} == {1}


def test_export_writes_parquet(tmp_path, hostile):
    pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run("export", hostile, "-o", tmp_path / "ops.parquet").returncode == 0
    table = parquet.read_table(tmp_path / "ops.parquet")
    check_hostile(*(table[c].to_pylist() for c in ("op_name", "max", "min")))
    again = run("export", hostile, "-o", tmp_path / "again.parquet", "--threads", 1)
    assert again.returncode == 0
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "ops.parquet").read_bytes()


def test_export_without_an_extra_says_what_to_install(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from ovf.cli.export import export

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    done = CliRunner().invoke(export, [str(FAULTY), "-o", str(tmp_path / "x.parquet")])
    assert done.exit_code == 2
    assert "pip install 'ovf-npu[export]'" in done.output
    assert not (tmp_path / "x.parquet").exists()


def test_export_with_polars_alone(tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")
    from click.testing import CliRunner

    from ovf.cli.export import export

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert CliRunner().invoke(export, [str(FAULTY), "-o", str(tmp_path / "x.parquet")]).exit_code == 0
    assert polars.read_parquet(tmp_path / "x.parquet").height == ovf.find_first_overflow(FAULTY).total_ops


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-o", "ops.xlsx"], "no table form"),
        (["--format", "parquet"], "parquet is no text"),
        (["--step", "9", "-o", "x.csv"], "no step 9"),
        (["--ranks", "77", "-o", "x.csv"], "no rank 77"),
        (["-o", str(FAULTY / "x.csv")], "lies in the dump directory"),
        (["-o", "there.csv"], "exists; nothing is overwritten"),
        (["-o", "there.parquet"], "exists; nothing is overwritten"),
        (["-o", "no/such/folder.csv"], "No such file or directory"),
    ],
)
def test_export_refuses(args, says, tmp_path):
    for name in ("there.csv", "there.parquet"):
        (tmp_path / name).write_text("kept")
    done = run("export", FAULTY, *args, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["there.csv", "there.parquet"]
    assert (tmp_path / "there.csv").read_text() == "kept"


def test_export_of_a_cut_dump_is_written_and_exits_2(tmp_path):
    step = write_step(tmp_path / "dump" / "step0", {0: loss_chain(), 1: loss_chain()})
    file = step / "rank1" / "dump.json"
    file.write_text(file.read_text()[:-40])
    done = run("export", step, "-o", tmp_path / "x.csv")
    assert done.returncode == 2
    assert "the file ends early" in done.stderr
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 2 * len(loss_chain())
    assert run("export", step, "-o", tmp_path / "y.csv", "--allow-incomplete-ranks").returncode == 0


# --- any bytes --------------------------------------------------------------------------------------------------------


@given(step=strategies.steps(damaged=True))
def test_any_generated_step_has_a_row_an_op(step, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    write_simulated(folder, step)
    try:
        ovf.steps(folder)
    except ovf.DumpFormatError:
        return  # every rank was left out
    report = ovf.find_first_overflow(folder, also=["near", "levels", "strip"])
    rows = rows_of(ovf.op_table(folder), "jsonl")
    assert len(rows) == report.total_ops
    assert [r["op_name"] for r in rows] == [r["op_name"] for r in rows_of(ovf.op_table(folder))]
    for rank in report.ranks:
        states = [r["state"] for r in rows if r["rank"] == rank.rank]
        assert len(rank.strip) == min(len(states), 256)
        if len(states) <= 256:
            letters = {"ignored": "g", "unknown": "u", "clean": "."}
            assert rank.strip == "".join(letters.get(s, s[0]) for s in states)


@given(data=st.data())
def test_any_bytes_are_read_as_far_as_they_go(data, tmp_path_factory):
    whole = (DATA / "receive_buffer_read_too_early" / "step0" / "rank0" / "dump.json").read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    changed = whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 8)) :]
    rank = tmp_path_factory.mktemp("dump") / "step0" / "rank0"
    rank.mkdir(parents=True)
    (rank / "dump.json").write_bytes(changed)
    rows = rows_of(ovf.op_table(rank), "jsonl")
    report = ovf.find_first_overflow(rank, also=["near", "levels", "strip"])
    assert len(rows) == report.total_ops
    assert len(ovf.steps(rank)) == 1
