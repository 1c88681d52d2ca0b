"""URLs: the same report from a web server, an S3 store and memory; what goes wrong is one clear line, the rest is used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ovf
import places
import servers

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.fixture
def served(tmp_path):
    """A folder with the step and archives of it."""
    places.copied(tmp_path)
    files = places.files_of(places.step())
    (tmp_path / "step0.tar").write_bytes(places.tar_of(files))
    (tmp_path / "step0.tar.gz").write_bytes(places.tar_of(files, "gz"))
    (tmp_path / "step0.zip").write_bytes(places.zip_of(files))
    places.packed(tmp_path / "packed", "gz")
    return tmp_path


WAYS = ["step0", "step0/", "step0.tar", "step0.tar.gz", "step0.zip", "packed/step0", ""]


# --- the same report --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_web_server_gives_the_same_report(served, way):
    if way == "":  # a dump root must hold nothing else
        for name in ("packed", "step0.tar", "step0.tar.gz", "step0.zip"):
            path = served / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with servers.http(served) as server:
        assert ovf.find_first_overflow(f"{server.url}/{way}").json() == places.answer()


@pytest.mark.parametrize("way", ["step0", "step0.tar", "step0.tar.gz", "packed/step0"])
def test_a_web_server_without_ranges_gives_the_same_report(served, way, monkeypatch):
    from ovf.remote import storage

    monkeypatch.setattr(storage, "BLOCK", 4096)
    with servers.http(served, ranges=False) as server:
        assert ovf.find_first_overflow(f"{server.url}/{way}").json() == places.answer()


@pytest.mark.parametrize("way", ["step0", "step0.tar", "step0.tar.gz", "step0.zip"])
def test_large_files_are_read_in_ranges(served, way, monkeypatch):
    from ovf.remote import storage

    monkeypatch.setattr(storage, "BLOCK", 4096)
    with servers.http(served) as server:
        assert ovf.find_first_overflow(f"{server.url}/{way}").json() == places.answer()
        ranges = [asked for _, asked in server.log if asked and asked != "bytes=1-1"]
    assert len(ranges) > 10


def test_context_is_asked_for_only_where_a_finding_is(served):
    with servers.http(served) as server:
        report = ovf.find_first_overflow(f"{server.url}/step0")
        asked = {path for path, _ in server.log}
    ranks = {finding.rank for finding in report.findings}
    assert 0 < len(ranks) < len(report.ranks)
    wanted = {f"/step0/rank{rank}/{name}.json" for rank in ranks for name in ("construct", "stack")}
    assert {path for path in asked if path.endswith(("construct.json", "stack.json"))} == wanted


def test_what_lies_beside_the_dumps_is_not_listed(served):
    for rank in (served / "step0").iterdir():
        (rank / "dump_tensor_data" / "deep").mkdir(parents=True)
        (rank / "dump_tensor_data" / "x.pt").write_bytes(b"0")
    with servers.http(served) as server:
        assert ovf.find_first_overflow(f"{server.url}/step0").json() == places.answer()
        assert not [path for path, _ in server.log if "dump_tensor_data" in path]


def test_memory_and_chained_urls(served):
    memory = fsspec.filesystem("memory")
    memory.put(str(places.step()), "/dump/step0", recursive=True)
    try:
        assert ovf.find_first_overflow("memory://dump/step0").json() == places.answer()
        assert ovf.find_first_overflow("memory://dump").json() == places.answer()
    finally:
        memory.rm("/dump", recursive=True)
    assert ovf.find_first_overflow(f"zip://step0::file://{served}/step0.zip").json() == places.answer()


@pytest.mark.parametrize("name", ["dump.json", "mine.json"])
def test_one_file(served, name):
    rank = served / "step0/rank5"
    (rank / "dump.json").rename(rank / name)
    with servers.http(served, trouble=lambda path, _: 403 if path.endswith("/") else None) as server:  # lists nothing
        report = ovf.find_first_overflow(f"{server.url}/step0/rank5/{name}")
        assert report.json() == ovf.find_first_overflow(rank / name).json()
        with pytest.raises(FileNotFoundError):
            ovf.find_first_overflow(f"{server.url}/step0/rank5/other.json")


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["s3s-fs", "moto"])
def store(request, tmp_path_factory):
    """Options of an S3 server that holds the step and archives of it in the bucket `dumps`."""
    pytest.importorskip("s3fs")
    root, port = tmp_path_factory.mktemp("s3"), servers.free_port()
    command = servers.s3_commands(root, port).get(request.param)
    if command is None:
        pytest.skip(f"{request.param} is not installed")
    with servers.running(command, port):
        keys = {"key": "key-of-a-test", "secret": "secret-of-a-test"}
        options = {**keys, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
        system = fsspec.filesystem("s3", **options)
        system.mkdir("dumps")
        system.put(str(places.step()), "dumps/run/step0", recursive=True)
        files = places.files_of(places.step())
        system.pipe("dumps/step0.tar.gz", places.tar_of(files, "gz"))
        system.pipe("dumps/step0.zip", places.zip_of(files))
        yield options


@pytest.mark.parametrize("way", ["run/step0", "run", "step0.tar.gz", "step0.zip"])
def test_an_s3_store_gives_the_same_report(store, way):
    assert ovf.find_first_overflow(f"s3://dumps/{way}", storage_options=store).json() == places.answer()


def test_an_s3_store_is_read_in_ranges(store, monkeypatch):
    from ovf.remote import storage

    monkeypatch.setattr(storage, "BLOCK", 4096)
    assert ovf.find_first_overflow("s3://dumps/run/step0", storage_options=store).json() == places.answer()
    assert ovf.find_first_overflow("s3://dumps/step0.tar.gz", storage_options=store).json() == places.answer()


def test_the_command_reads_s3_with_the_stores_own_variables(store):
    own = {
        "AWS_ACCESS_KEY_ID": store["key"],
        "AWS_SECRET_ACCESS_KEY": store["secret"],
        "AWS_ENDPOINT_URL": store["client_kwargs"]["endpoint_url"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    done = run("check", "--json", "s3://dumps/run/step0", env=own)
    assert (done.returncode, done.stdout) == (1, places.answer())


def test_what_is_wrong_with_s3_is_said(store):
    def told(url, **changes):
        with pytest.raises(OSError) as raised:
            ovf.find_first_overflow(url, storage_options={**store, **changes})
        assert raised.value.filename == url
        return type(raised.value), raised.value.strerror

    assert told("s3://dumps/run/step7") == (FileNotFoundError, "no such file or directory")
    assert told("s3://dumps/none.tar.gz") == (FileNotFoundError, "no such file or directory")
    assert told("s3://nobucket/step0")[0] is FileNotFoundError
    refused = {
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"},
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    kind, text = told("s3://dumps/run/step0", **refused)
    assert kind is ConnectionError
    assert text.startswith("cannot connect: ")


def test_missing_and_wrong_credentials_are_said(store, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(PermissionError, match="no usable credentials") as raised:
        ovf.find_first_overflow("s3://dumps/run/step0", storage_options={"client_kwargs": store["client_kwargs"]})
    assert "AWS_" in raised.value.help


# --- what goes wrong --------------------------------------------------------------------------------------------------


def run(*args, env=None):
    command = [sys.executable, "-m", "ovf", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=120)


@pytest.mark.parametrize("status", [401, 403, 404, 500, "drop"])
def test_a_rank_that_cannot_be_read_is_named_and_the_others_are_used(served, status):
    local = places.copied(served / "without")
    (local / "rank6/dump.json").unlink()
    trouble = lambda path, _: status if path.endswith("rank6/dump.json") else None  # noqa: E731
    with servers.http(served, trouble=trouble) as server:
        report = ovf.find_first_overflow(f"{server.url}/step0")
        (unreadable,) = report.unreadable
        assert (unreadable.rank, unreadable.path) == (6, f"{server.url}/step0/rank6/dump.json")
        words = {401: "(401)", 403: "access denied (403)", 404: "no such file", 500: "the server failed (500)"}
        assert words.get(status, "isconnect") in unreadable.message
        assert "\n" not in unreadable.message
    assert report.exit_code == 2
    assert report.to_dict()["findings"] == ovf.find_first_overflow(local).to_dict()["findings"]


def test_a_dropped_connection_and_a_busy_server_are_asked_again(served):
    seen: set[str] = set()

    def trouble(path, _):
        if path.endswith(("dump.json", "stack.json")) and path not in seen:
            seen.add(path)
            return "drop" if "rank3" in path else 503
        return None

    with servers.http(served, trouble=trouble) as server:
        assert ovf.find_first_overflow(f"{server.url}/step0").json() == places.answer()


def test_a_stack_that_cannot_be_read_is_a_remark(served):
    with servers.http(served, trouble=lambda path, _: 403 if path.endswith("stack.json") else None) as server:
        report = ovf.find_first_overflow(f"{server.url}/step0")
    assert report.first.rank == json.loads(places.answer())["first"]["rank"]
    assert report.first.stack == ()
    assert report.first.construct_chain
    assert any("stack.json: access denied (403)" in note.text for note in report.notes)


def test_a_file_that_changes_between_two_ranges_is_not_mixed(served, monkeypatch):
    from ovf.remote import storage

    monkeypatch.setattr(storage, "BLOCK", 4096)
    file = served / "step0/rank6/dump.json"

    def trouble(path, asked):
        if path.endswith("rank6/dump.json") and asked and asked.startswith("bytes=8192-"):
            os.utime(file, (1e9, 1e9))

    with servers.http(served, trouble=trouble) as server:
        report = ovf.find_first_overflow(f"{server.url}/step0")
    assert [(u.rank, u.message.partition(":")[0]) for u in report.unreadable] == [(6, "changed while it was read")]


def test_errors_are_one_line_with_the_place_and_advice(served):
    with servers.http(served) as server:
        lines = {
            f"{server.url}/step9": "no such file or directory",
            f"{server.url}/none.tar.gz": "no such file or directory",
            f"{server.url}/none.zip": "no such file or directory",
            "http://127.0.0.1:1/step0": "cannot connect: ",
            "nosuch://a/step0": "unsupported scheme 'nosuch'",
        }
        for url, words in lines.items():
            done = run("check", url)
            assert done.returncode == 2
            first, *advice = done.stderr.strip().splitlines()
            assert first.startswith(f"ovf: error: {url}: {words}"), done.stderr
            assert len(advice) <= 1
            assert done.stdout == ""
    with servers.http(served, ranges=False) as server:
        done = run("check", f"{server.url}/step0.zip")
        assert "the server gives no ranges of it, which a zip needs; serve a tar" in done.stderr


def test_a_folder_without_a_dump_is_said(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.txt").write_text("x")
    with servers.http(tmp_path) as server, pytest.raises(ovf.DumpFormatError, match="no msProbe dump here"):
        ovf.find_first_overflow(f"{server.url}/other")


def test_a_missing_extra_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r"s3://a/b: a package for this scheme is not installed \(fsspec\)") as raised:
        ovf.find_first_overflow("s3://a/b")
    assert "pip install 'ovf-npu[remote]'" in raised.value.help


def test_output_may_stand_beside_an_archive_but_not_in_a_dump(served, monkeypatch):
    monkeypatch.chdir(served)
    done = run("check", "step0.tar.gz", "--json", "-o", "report.json")
    assert done.returncode == 1
    assert Path("report.json").read_text() == places.answer()
    assert "lies in the dump directory" in run("check", "step0", "--json", "-o", "step0/report.json").stderr
