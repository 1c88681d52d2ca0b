"""Packed files, tars and zips: the same report, byte for byte; nothing on disk; hostile ones are harmless."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ovf
import places
from small import NAN, loss_chain, op, t, write_step

KINDS = ["", "gz", "zst"]


def needs(kind):
    if kind == "zst":
        pytest.importorskip("zstandard")


def as_tar(folder: Path, files, kind="", name="step0", **options) -> Path:
    needs(kind)
    path = folder / f"{name}.tar{'.' if kind else ''}{kind}"
    path.write_bytes(places.tar_of(files, kind, **options))
    return path


def by_kind(names):
    """All construct.json first, then stack.json, then the dumps: the worst order for a reader that passes once."""
    return sorted(names, key=lambda p: (["construct.json", "stack.json", "dump.json"].index(p.name), str(p)))


def shuffled(names):
    names = sorted(names)
    random.Random(7).shuffle(names)
    return names


ORDERS = [sorted, lambda names: sorted(names, reverse=True), by_kind, shuffled]


# --- the same report --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_packed_files_give_the_same_report(tmp_path, kind):
    needs(kind)
    assert ovf.find_first_overflow(places.packed(tmp_path, kind)).json() == places.answer()


@pytest.mark.parametrize("order", ORDERS, ids=["sorted", "reversed", "by kind", "shuffled"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tar_gives_the_same_report_whatever_its_order(tmp_path, kind, order):
    path = as_tar(tmp_path, places.files_of(places.step(), order), kind)
    assert ovf.find_first_overflow(path).json() == places.answer()
    assert ovf.find_first_overflow(path, threads=1).json() == places.answer()
    assert places.tree(tmp_path) == [(str(path), path.stat().st_size)]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_form_of_tar(tmp_path, form):
    files = [
        (f"{'long/' * 19}{name}" if form != tarfile.USTAR_FORMAT else name, c)
        for name, c in places.files_of(places.step())
    ]
    for kind in ("", "gz"):
        assert ovf.find_first_overflow(as_tar(tmp_path, files, kind, form=form)).json() == places.answer()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_gives_the_same_report(tmp_path, method):
    path = tmp_path / "step0.zip"
    path.write_bytes(places.zip_of(places.files_of(places.step(), shuffled), method))
    assert ovf.find_first_overflow(path).json() == places.answer()
    assert places.tree(tmp_path) == [(str(path), path.stat().st_size)]


def test_packed_files_inside_an_archive(tmp_path):
    step = places.packed(tmp_path / "packed", "gz")
    for kind in ("", "gz"):
        assert ovf.find_first_overflow(as_tar(tmp_path, places.files_of(step), kind)).json() == places.answer()
    path = tmp_path / "step0.zip"
    path.write_bytes(places.zip_of(places.files_of(step)))
    assert ovf.find_first_overflow(path).json() == places.answer()


@pytest.mark.parametrize("kind", ["", "gz"])
def test_context_that_was_not_held_costs_a_second_pass(tmp_path, kind, monkeypatch):
    from ovf.remote import stream

    monkeypatch.setattr(stream, "_HELD", 0)
    path = as_tar(tmp_path, places.files_of(places.step(), by_kind), kind)
    assert ovf.find_first_overflow(path).json() == places.answer()


def test_the_layout_of_an_archive_is_that_of_the_folder_it_was_made_of(tmp_path):
    local = places.copied(tmp_path / "a")
    shutil.copytree(local, tmp_path / "a" / "step1")
    files = places.files_of(tmp_path / "a")
    bare = [(name.partition("/")[2], content) for name, content in files]
    wanted = ovf.find_first_overflow(tmp_path / "a").to_dict()
    assert [(s["step"], s["step_label"], s["verdict"]) for s in wanted["steps"]] == [(0, "step0", "overflow")]
    for kind in ("", "gz"):
        for given in (files, bare, [(f"./mnt/data/{name}", content) for name, content in files]):
            assert ovf.find_first_overflow(as_tar(tmp_path, given, kind, name="x")).to_dict() == wanted
        path = as_tar(tmp_path, files, kind, name="x")
        assert (
            ovf.find_first_overflow(path, step=1).to_dict() == ovf.find_first_overflow(tmp_path / "a", step=1).to_dict()
        )
        with pytest.raises(ValueError, match="no step 7; it has step0, step1"):
            ovf.find_first_overflow(path, step=7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_a_top_folder_is_called_by_the_archive(tmp_path, kind):
    files = [(name.partition("/")[2], content) for name, content in places.files_of(places.step())]
    assert ovf.find_first_overflow(as_tar(tmp_path, files, kind)).json() == places.answer()
    one = [(name.partition("/")[2], content) for name, content in files if name.startswith("rank5/")]
    path = as_tar(tmp_path, one, kind, name="rank5")
    assert ovf.find_first_overflow(path).ranks == ovf.find_first_overflow(places.step() / "rank5").ranks


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_asked_for_besides_is_the_same(tmp_path, kind):
    path = as_tar(tmp_path, places.files_of(places.step()), kind)
    also = ["near", "levels", "strip"]
    wanted, found = (ovf.find_first_overflow(place, also=also, chart=True) for place in (places.step(), path))
    assert found.json() == wanted.json()
    assert found.atlas() == wanted.atlas()
    assert ovf.find_first_overflow(path).atlas() == wanted.atlas()  # read again for it
    for call in (ovf.steps, ovf.op_table, lambda archive: ovf.summarize(archive, tmp_path / "out")):
        with pytest.raises(ValueError, match="only local files and folders"):
            call(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_only_some_ranks(tmp_path, kind):
    path = as_tar(tmp_path, places.files_of(places.step()), kind)
    assert (
        ovf.find_first_overflow(path, ranks=[5, 1]).json()
        == ovf.find_first_overflow(places.step(), ranks=[1, 5]).json()
    )
    with pytest.raises(ValueError, match="no rank 99 in this step; it has 0, 1, 2"):
        ovf.find_first_overflow(path, ranks=[99])


@pytest.mark.parametrize("kind", ["", "gz"])
def test_process_folders_get_their_ranks_when_all_have_passed(tmp_path, kind):
    bad = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}
    fine = {"Torch.add.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}
    step = write_step(tmp_path / "step4", {0: fine, 1: bad})
    (step / "rank0").rename(step / "proc100")
    (step / "rank1").rename(step / "proc200")
    path = as_tar(tmp_path, places.files_of(step, lambda names: sorted(names, reverse=True)), kind, name="step4")
    assert ovf.find_first_overflow(path).json() == ovf.find_first_overflow(step).json()


def test_other_calls_read_archives_too(tmp_path):
    path = as_tar(tmp_path, places.files_of(places.step()), "gz")
    assert ovf.cross_rank(path) == ovf.cross_rank(places.step())


# --- what is wrong is said --------------------------------------------------------------------------------------------


def damaged(tmp_path) -> Path:
    step = places.copied(tmp_path / "damaged")
    whole = (step / "rank6/dump.json").read_bytes()
    (step / "rank6/dump.json").write_bytes(whole[: len(whole) // 2])
    (step / "rank7/dump.json").unlink()
    (step / "rank3/stack.json").unlink()
    return step


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_and_missing_ranks_are_named_by_their_place(tmp_path, kind):
    step = damaged(tmp_path)
    local = ovf.find_first_overflow(step).to_dict()
    path = as_tar(tmp_path, places.files_of(step), kind)
    report = ovf.find_first_overflow(path)
    told = report.to_dict()
    assert [u["path"] for u in told["unreadable"]] == [f"{path}/step0/rank{r}/dump.json" for r in (6, 7)]
    # In all else the report is that of the folder.
    for data in (told, local):
        for unreadable in data["unreadable"]:
            unreadable["path"] = ""
    assert told == local
    assert report.exit_code == 2


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_cut_packed_dump_is_used_as_far_as_it_goes(tmp_path, kind):
    needs(kind)
    step = places.packed(tmp_path, kind)
    file = step / f"rank6/dump.json.{kind}"
    file.write_bytes(file.read_bytes()[:-20])
    report = ovf.find_first_overflow(step)
    (unreadable,) = report.unreadable
    assert (unreadable.rank, unreadable.path) == (6, str(file))
    assert "data ends early" in unreadable.message
    assert unreadable.ops_used > 0 or kind == "zst"  # zstd gives whole blocks
    assert report.first.rank == json.loads(places.answer())["first"]["rank"]


def test_a_changed_byte_in_a_packed_dump_is_seen(tmp_path):
    step = places.packed(tmp_path, "gz")
    file = step / "rank6/dump.json.gz"
    content = bytearray(file.read_bytes())
    content[-6] ^= 1  # in the checksum
    file.write_bytes(content)
    report = ovf.find_first_overflow(step)
    assert "damaged" in report.unreadable[0].message
    assert report.incomplete


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_cut_anywhere_is_incomplete_and_its_whole_ranks_are_used(tmp_path, kind):
    whole = as_tar(tmp_path, places.files_of(places.step()), kind).read_bytes()
    for share in (0.02, 0.3, 0.5, 0.77, 0.95):
        path = tmp_path / f"cut.tar{'.' if kind else ''}{kind}"
        path.write_bytes(whole[: int(len(whole) * share)])
        try:
            report = ovf.find_first_overflow(path)
        except (ovf.DumpFormatError, OSError) as error:
            assert share < 0.3 or kind == "zst", error  # noqa: PT017 - nothing came out of it
            continue
        assert report.incomplete
        assert report.exit_code == 2
        assert any("the archive ends early" in note.text for note in report.notes), report.notes


def test_a_tar_cut_between_two_members_does_not_look_whole(tmp_path):
    files = places.files_of(places.step())
    whole = places.tar_of(files)
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        between = tar.getmembers()[len(files) // 2].offset
    for kind in ("", "gz"):
        path = tmp_path / f"cut.tar{'.' if kind else ''}{kind}"
        path.write_bytes(places.squeezed(whole[:between], "gz") if kind else whole[:between])
        report = ovf.find_first_overflow(path)
        assert report.incomplete
        assert any("ends early" in note.text for note in report.notes)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz", "x.tar.zst", "x.zip"])
@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"\x00" * 2000, b"{}" * 600]
)
def test_what_is_no_archive_is_one_clear_line(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((OSError, ovf.DumpFormatError)) as raised:
        ovf.find_first_overflow(path)
    assert str(path) in str(raised.value) or str(tmp_path / "x") in str(raised.value)
    done = subprocess.run([sys.executable, "-m", "ovf", "check", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("ovf: error: ")
    assert "Traceback" not in done.stderr


def test_an_encrypted_member_is_named(tmp_path):
    content = bytearray(places.zip_of(places.files_of(places.step())))
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        member = archive.getinfo("step0/rank2/dump.json")
        header = member.header_offset
    content[header + 6] |= 1  # the flag, in the member's own header and in the directory
    directory = bytes(content).rindex(b"step0/rank2/dump.json") - 46
    content[directory + 8] |= 1
    path = tmp_path / "step0.zip"
    path.write_bytes(content)
    report = ovf.find_first_overflow(path)
    assert [(u.rank, u.message) for u in report.unreadable] == [(2, "is encrypted in the archive")]
    assert len(report.ranks) == 7


# --- hostile ones -----------------------------------------------------------------------------------------------------


def member(name, content=b"", **fields):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, io.BytesIO(content)


def hostile_tar(tmp_path, members, kind="") -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry, content in members:
            tar.addfile(entry, content if entry.isreg() else None)
    path = tmp_path / f"step0.tar{'.' if kind else ''}{kind}"
    path.write_bytes(places.squeezed(buffer.getvalue(), "gz") if kind else buffer.getvalue())
    return path


@pytest.mark.parametrize("kind", ["", "gz"])
def test_hostile_members_are_harmless_and_said(tmp_path, kind):
    files = places.files_of(places.step())
    evil = b'{"data": {"evil": {}}}'
    members = [member(name, content) for name, content in files]
    members[3:3] = [
        member("../../step0/rank0/dump.json", evil),
        member(f"{tmp_path}/step0/rank0/dump.json", evil),
        member("step0/rank20/../rank0/dump.json", evil),
        member("step0/rank8/dump.json", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("step0/rank9/dump.json", type=tarfile.LNKTYPE, linkname="step0/rank0/dump.json"),
        member("step0/rank10/dump.json", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        member("step0/rank11/dump.json", type=tarfile.FIFOTYPE),
        member("step0/rank0/dump.json", evil),  # a second one: the first counts
        member("deep/" * 300 + "rank0/dump.json", evil),
    ]
    path = hostile_tar(tmp_path, members, kind)
    before = places.tree(tmp_path)
    report = ovf.find_first_overflow(path)
    assert places.tree(tmp_path) == before
    first = json.loads(places.answer())["first"]
    assert (report.first.rank, report.first.op_name) == (first["rank"], first["op_name"])
    assert [u.rank for u in report.unreadable] == [8, 9, 10, 11]
    messages = [u.message for u in report.unreadable]
    assert all("link" in m for m in messages[:2])
    assert all("no regular file" in m for m in messages[2:])
    texts = " ".join(note.text for note in report.notes)
    assert "4 names that lead out of it or too deep" in texts
    assert "more than once; the first one counts" in texts


def test_hostile_names_in_a_zip(tmp_path):
    files = places.files_of(places.step())
    evil = b'{"data": {"evil": {}}}'
    path = tmp_path / "step0.zip"
    path.write_bytes(places.zip_of([("../rank0/dump.json", evil), ("/step0/rank0/dump.json", evil), *files]))
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("step0/rank8/dump.json")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("step0/rank0/dump.json", evil)
    report = ovf.find_first_overflow(path)
    assert [(u.rank, u.message) for u in report.unreadable] == [(8, "is a link in the archive, not a file")]
    assert report.first.rank == json.loads(places.answer())["first"]["rank"]
    assert places.tree(tmp_path) == [(str(path), path.stat().st_size)]


def changed_size(content: bytes, name: str, size: bytes) -> bytes:
    """A tar whose header of `name` tells another size."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        at = tar.getmember(name).offset
    header = bytearray(content[at : at + 512])
    header[124:136] = size.ljust(12, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[:at] + bytes(header) + content[at + 512 :]


@pytest.mark.parametrize("kind", ["", "gz"])
@pytest.mark.parametrize(
    "size",
    [
        b"77777777777",
        b"\x80" + b"\x7f" * 11,
        b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff" * 12,
        b"\xff" * 10 + b"\xf0\0",
    ],
    ids=["8 GiB", "huge", "2^64", "-1", "backwards"],
)
def test_lying_sizes_neither_hang_nor_fill_the_memory(tmp_path, kind, size):
    files = places.files_of(places.step())
    content = changed_size(places.tar_of(files), "step0/rank4/dump.json", size)
    path = tmp_path / f"step0.tar{'.' if kind else ''}{kind}"
    path.write_bytes(places.squeezed(content, "gz") if kind else content)
    try:
        report = ovf.find_first_overflow(path)
    except OSError as error:
        assert "GiB" in str(error)  # noqa: PT017
        return
    assert report.incomplete
    assert report.exit_code == 2


def test_a_bomb_is_refused_by_rank(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    zeros = bytes(1 << 20)
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    bomb = b"".join([*(compressor.compress(zeros) for _ in range(700)), compressor.flush()])
    assert len(bomb) < 200_000
    step = places.copied(tmp_path / "bomb")
    (step / "rank6/dump.json").write_bytes(bomb)
    report = ovf.find_first_overflow(step)
    assert [(u.rank, u.message) for u in report.unreadable] == [
        (6, "unpacks to more than 1000 times its size, which no dump does: refused")
    ]
    assert report.first.rank == json.loads(places.answer())["first"]["rank"]
    # A whole tar that is one.
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    header = tarfile.TarInfo("step0/big.bin")
    header.size = 700 << 20
    path = tmp_path / "bomb.tar.zst"
    chunks = [
        compressor.compress(header.tobuf()),
        *(compressor.compress(zeros) for _ in range(700)),
        compressor.flush(),
    ]
    path.write_bytes(b"".join(chunks))
    with pytest.raises((OSError, ovf.DumpFormatError)):
        ovf.find_first_overflow(path)


def test_a_bomb_in_a_zip_is_refused_by_rank(tmp_path):
    path = tmp_path / "step0.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, content in places.files_of(places.step()):
            archive.writestr(name, bytes(600 << 20) if name == "step0/rank6/dump.json" else content)
    report = ovf.find_first_overflow(path)
    assert [(u.rank, u.message) for u in report.unreadable] == [
        (6, "unpacks to more than 1000 times its size, which no dump does: refused")
    ]


@pytest.mark.parametrize("kind", ["", "gz"])
def test_headers_without_end_are_refused(tmp_path, kind):
    chain = io.BytesIO()
    for _ in range(3000):  # headers about headers
        entry = tarfile.TarInfo("x")
        entry.type = tarfile.XHDTYPE
        chain.write(entry.tobuf())
    content = chain.getvalue() + places.tar_of(places.files_of(places.step()))
    path = tmp_path / f"step0.tar{'.' if kind else ''}{kind}"
    path.write_bytes(places.squeezed(content, "gz") if kind else content)
    with pytest.raises((OSError, ovf.DumpFormatError)):
        ovf.find_first_overflow(path)
    entry = tarfile.TarInfo("x")  # one header of 200 MiB
    entry.type = tarfile.XHDTYPE
    entry.size = 200 << 20
    content = entry.tobuf() + bytes(200 << 20)
    path.write_bytes(places.squeezed(content, "gz") if kind else content)
    with pytest.raises((OSError, ovf.DumpFormatError)):
        ovf.find_first_overflow(path)


@pytest.mark.parametrize("shape", ["tar", "tar.gz", "zip"])
def test_any_bytes_give_a_report_or_one_clear_error(tmp_path, shape):
    files = [f for f in places.files_of(places.step()) if "rank5/" in f[0] or "rank4/dump" in f[0]]
    content = places.zip_of(files) if shape == "zip" else places.tar_of(files, "gz" if shape == "tar.gz" else "")
    rng = random.Random(shape)
    path = tmp_path / f"step0.{shape}"
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(rng.choice([1, 3, 40])):
            # Headers and directories are where the damage is interesting.
            at = rng.choice([rng.randrange(len(changed)), rng.randrange(512), len(changed) - 1 - rng.randrange(400)])
            changed[at] = rng.randrange(256)
        path.write_bytes(changed[: rng.choice([len(changed), rng.randrange(len(changed))])])
        try:
            ovf.find_first_overflow(path).json()
        except (OSError, ovf.OvfError) as error:
            assert "\n" not in str(error)  # noqa: PT017


# --- cost -------------------------------------------------------------------------------------------------------------


def test_a_local_folder_loads_nothing_of_this():
    code = (
        "import sys, ovf.cli; sys.argv = ['ovf', 'check', '-q', sys.argv[1]]\n"
        "try: ovf.cli.main()\n"
        "finally: print([m for m in sys.modules if m.startswith(('ovf.remote', 'fsspec', 'ray', 'tarfile', 'zipfile'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, places.step()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout.strip() == "[]"
