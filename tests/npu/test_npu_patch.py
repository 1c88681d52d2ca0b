"""The patcher on small trees of our own: what it does, what it refuses, and that it never leaves a tree half done."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from native import stream_creation
from table import ROWS, rule
from trees import CALL_SITE, FUNCTIONS, make_tree

from ovf.npu import call_site, conditions, pages, patch
from ovf.npu.patch import PatchRefusedError, carry_out, plan, plan_revert


def files_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        p.relative_to(root).as_posix(): (p.read_bytes(), p.stat().st_mode)
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


@pytest.mark.parametrize(
    "shape",
    [{}, {"docs": False}, {"schema": False}, {"crlf": True}, {"docs": False, "schema": False}],
)
def test_patch_again_and_revert(tmp_path, shape):
    tree = make_tree(tmp_path / "tree", **shape)
    (tree / call_site.PATH).chmod(0o755)
    before = files_of(tree)
    carry_out(tree, plan(tree))
    patched = files_of(tree)
    assert {path for path in before if patched[path] != before[path]} >= {
        call_site.PATH,
        conditions.PATH,
    }
    assert plan(tree).changes == []
    assert files_of(tree) == patched
    carry_out(tree, plan_revert(tree))
    assert files_of(tree) == before
    assert sorted(p.name for p in tree.iterdir()) == sorted({Path(path).parts[0] for path in before})


def test_every_change_is_an_insertion(tmp_path):
    tree = make_tree(tmp_path / "tree")
    removed = [line for line in plan(tree).diff().splitlines() if line.startswith("-") and not line.startswith("---")]
    assert sorted(removed) == sorted([
        "-        if ( ! c10_npu::IsSupportInfNan( ) ) {",
        '-__all__ = ["synchronize", "is_support_inf_nan", "npu_check_overflow"]',
        *["-    if is_support_inf_nan():"] * 3,
    ])  # fmt: skip


def test_papers_of_the_feature(tmp_path):
    tree = make_tree(tmp_path / "tree")
    carry_out(tree, plan(tree))
    schema = json.loads((tree / pages.SCHEMA).read_text())
    assert list(schema)[1:3] == [
        "torch_npu.npu.utils.is_force_overflow_check",
        "torch_npu.npu.utils.is_support_inf_nan",
    ]
    for language, word in (("en", "Description"), ("zh", "功能描述")):
        folder = tree / "docs" / language / "variables"
        assert word in (folder / "FORCE_OVERFLOW_CHECK.md").read_text()
        assert (
            f"| [FORCE_OVERFLOW_CHECK](FORCE_OVERFLOW_CHECK.md) |{pages.SUMMARY[language]}|\n"
            in (folder / "list.md").read_text()
        )
        assert "\n\n- **[FORCE\\_OVERFLOW\\_CHECK](FORCE_OVERFLOW_CHECK.md)**  \n\n" in (folder / "menu.md").read_text()


def test_patched_stream_creation_follows_the_rule(tmp_path):
    tree = make_tree(tmp_path / "tree")
    carry_out(tree, plan(tree))
    build = tmp_path / "build"
    build.mkdir()
    program = stream_creation(tree, build)
    for value, version, mode in ROWS:
        environment = {"PATH": os.environ["PATH"], "OVF_SIM_CANN": version}
        environment |= {"FORCE_OVERFLOW_CHECK": value} if value is not None else {}
        environment |= {"OVF_SIM_SATURATION": "1"} if mode == "saturation" else {}
        done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
        on, made, warnings = map(int, done.stdout.split())
        expected = rule(value, version, mode)
        assert on == (made if expected["switch"] else 0), (value, version, mode)
        assert warnings == int(mode == "INF_NAN" and value == "1" and not expected["force"])


@pytest.mark.parametrize(("value", "version", "inf_nan"), [(v, c, m == "INF_NAN") for v, c, m in ROWS])
def test_patched_functions_follow_the_rule(monkeypatch, value, version, inf_nan):
    """The edited Python, run with a register of our own in place of the device."""
    calls = []
    register = [1]
    fake = types.ModuleType("torch_npu")
    fake._C = types.SimpleNamespace(_npu_is_support_inf_nan=lambda: inf_nan)
    fake.npu_get_float_status = lambda _: list(register)
    fake.npu_clear_float_status = lambda _: calls.append("clear") or register.__setitem__(0, 0)
    monkeypatch.setitem(sys.modules, "torch_npu", fake)
    library = types.SimpleNamespace(
        aclsysGetCANNVersion=lambda _, room: 1 if version == "!" else setattr(room, "value", version.encode()) or 0
    )
    monkeypatch.setattr("ctypes.CDLL", lambda name: library if name == "libascendcl.so" else pytest.fail(name))
    monkeypatch.delenv("FORCE_OVERFLOW_CHECK", raising=False)
    if value is not None:
        monkeypatch.setenv("FORCE_OVERFLOW_CHECK", value)
    names: dict = {}
    exec(call_site.insert(FUNCTIONS, conditions.plan(FUNCTIONS)), names)
    expected = rule(value, version, "INF_NAN" if inf_nan else "saturation")
    assert names["is_force_overflow_check"]() is expected["force"]
    assert "is_force_overflow_check" in names["__all__"]
    if expected["switch"]:
        assert names["get_npu_overflow_flag"]() is True
        assert names["npu_check_overflow"](1.0) is True
        assert (register, calls) == ([0], ["clear"])
        names["clear_npu_overflow_flag"]()
        assert calls == ["clear", "clear"]
    else:
        with pytest.raises(RuntimeError, match="unsupported"):
            names["get_npu_overflow_flag"]()
        assert names["npu_check_overflow"](float("nan")) is True
        assert names["npu_check_overflow"](1.0) is False
        with pytest.warns(UserWarning, match="useless"):
            names["clear_npu_overflow_flag"]()
        assert calls == []


def replaced(path: str, old: str, new: str):
    def edit(tree: Path) -> None:
        text = (tree / path).read_text()
        assert old in text
        (tree / path).write_text(text.replace(old, new))

    return edit


CPP, PY = call_site.PATH, conditions.PATH
REFUSED = {
    "no call site": (replaced(CPP, "AclrtSetStreamOverflowSwitch( *stream, 1 )", "Other()"), "sets no stream overflow switch"),
    "no function": (lambda tree: (tree / CPP).write_text('#include "a.h"\n'), "no AclrtCreateStreamWithConfig"),
    "another condition": (replaced(CPP, "! c10_npu::IsSupportInfNan( )", "other()"), "another condition: other()"),
    "two call sites": (replaced(CPP, "        return AclrtSetStreamFailureMode", "        if (!IsSupportInfNan()) { AclrtSetStreamOverflowSwitch(*stream, 1); }\n        return AclrtSetStreamFailureMode"), "in 2 places"),
    "cut off": (lambda tree: (tree / CPP).write_text(CALL_SITE[: CALL_SITE.index("    return made;")]), "unbalanced"),
    "the feature itself": (replaced(PY, "def get_npu", "def is_force_overflow_check():\n    pass\n\n\ndef get_npu"), "of its own"),
    "the feature in C++": (replaced(CPP, "namespace c10_npu {", "// FORCE_OVERFLOW_CHECK\nnamespace c10_npu {"), "of its own"),
    "a function less": (replaced(PY, "def clear_npu_overflow_flag", "def other"), "0 definitions of clear_npu_overflow_flag"),
    "another question": (replaced(PY, "    if is_support_inf_nan():\n        warnings", "    if not is_support_inf_nan():\n        warnings"), "clear_npu_overflow_flag does not ask"),
    "asked twice": (replaced(PY, "    torch_npu.npu_clear", "    if is_support_inf_nan():\n        pass\n    torch_npu.npu_clear"), "clear_npu_overflow_flag does not ask"),
    "not exported": (replaced(PY, '"is_support_inf_nan", ', ""), "__all__"),
    "Python that does not parse": (replaced(PY, "import warnings\n", "import warnings(\n"), "does not parse"),
    "a broken schema": (replaced(pages.SCHEMA, "{", ""), "is not JSON"),
    "a schema without the sibling": (replaced(pages.SCHEMA, "is_support_inf_nan", "other"), "has no entry"),
    "mixed line ends": (lambda tree: (tree / CPP).write_bytes(CALL_SITE.encode().replace(b"\n", b"\r\n", 3)), "mixes line ends"),
    "not UTF-8": (lambda tree: (tree / PY).write_bytes(b"# \xff\n"), "not UTF-8"),
    "no source": (lambda tree: (tree / CPP).unlink(), "no such file"),
    "a page there already": (lambda tree: (tree / "docs/en/variables/FORCE_OVERFLOW_CHECK.md").write_text("x"), "exists already"),
    "a link": (lambda tree: ((tree / PY).rename(tree / "moved.py"), (tree / PY).symlink_to(tree / "moved.py")), "not a plain file"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason_and_untouched(tmp_path, name):
    spoil, reason = REFUSED[name]
    tree = make_tree(tmp_path / "tree")
    spoil(tree)
    before = files_of(tree)
    with pytest.raises(PatchRefusedError, match=reason):
        plan(tree)
    assert files_of(tree) == before


@pytest.mark.parametrize(
    "path",
    [
        call_site.PATH,
        conditions.PATH,
        pages.SCHEMA,
        patch.DECISION,
        call_site.HEADER,
        "docs/en/variables/list.md",
    ],
)
def test_revert_refuses_what_was_edited_since(tmp_path, path):
    tree = make_tree(tmp_path / "tree")
    carry_out(tree, plan(tree))
    text = (tree / path).read_text()
    for mine, other in (
        (call_site.CONDITION, " || other()"),
        (conditions.CONDITION, " and other()"),
        (pages.API, pages.API + "x"),
        ("(FORCE_OVERFLOW_CHECK.md)", "(F.md)"),
    ):
        if mine in text:
            (tree / path).write_text(text.replace(mine, other, 1))
            break
    else:
        (tree / path).write_text(text + "// mine\n")
    before = files_of(tree)
    with pytest.raises(PatchRefusedError, match=r"edited or moved|differs"):
        plan_revert(tree)
    with pytest.raises(PatchRefusedError):
        plan(tree)
    assert files_of(tree) == before


def test_revert_keeps_edits_made_elsewhere(tmp_path):
    tree = make_tree(tmp_path / "tree")
    carry_out(tree, plan(tree))
    mine = "\n\ndef mine():\n    return 1\n"
    with (tree / conditions.PATH).open("a") as file:
        file.write(mine)
    carry_out(tree, plan_revert(tree))
    assert (tree / conditions.PATH).read_text() == FUNCTIONS + mine


def test_a_failing_write_leaves_the_tree_as_it_was(tmp_path, monkeypatch):
    """Every rename in turn fails; what was renamed before it is taken back."""
    moves = len(plan(make_tree(tmp_path / "count")).changes)
    for failing in range(moves):
        tree = make_tree(tmp_path / f"tree{failing}")
        before = files_of(tree)
        made = plan(tree)
        count = [0]
        replace = Path.replace

        def fail(self, target, count=count, failing=failing, replace=replace):
            count[0] += 1
            if count[0] == failing + 1:
                raise OSError(28, "No space left on device")
            return replace(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", fail)
            with pytest.raises(OSError, match="No space"):
                carry_out(tree, made)
        assert files_of(tree) == before


def test_a_plan_is_not_carried_out_on_a_tree_that_changed(tmp_path):
    tree = make_tree(tmp_path / "tree")
    made = plan(tree)
    (tree / conditions.PATH).write_text(FUNCTIONS + "x = 1\n")
    before = files_of(tree)
    with pytest.raises(PatchRefusedError, match="changed while"):
        carry_out(tree, made)
    assert files_of(tree) == before


def test_nothing_to_revert_is_said(tmp_path):
    made = plan_revert(make_tree(tmp_path / "tree"))
    assert (made.changes, made.notes) == ([], ["not patched; nothing to revert"])


def test_the_gate_has_the_import_it_needs():
    edited = call_site.insert(FUNCTIONS, conditions.plan(FUNCTIONS))
    assert ast.parse(edited).body[0].names[0].name == "os"
    assert conditions.without(edited) == FUNCTIONS
    with_os = "import os\n" + FUNCTIONS
    assert call_site.insert(with_os, conditions.plan(with_os)).count("import os") == 1


def changed(root: Path, path: str, change) -> Path:
    tree = make_tree(root)
    file = tree / path
    file.write_text(change(file.read_text()))
    return tree


def without_os(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() != "import os")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "from __future__ import annotations\n" + without_os(text),
        lambda text: "import os as _os\n" + without_os(text),
    ],
)
def test_the_import_stands_where_it_may(tmp_path, change):
    tree = changed(tmp_path / "tree", conditions.PATH, change)
    carry_out(tree, plan(tree))
    text = (tree / conditions.PATH).read_text()
    compile(text, "utils.py", "exec")
    assert "import os  # for FORCE_OVERFLOW_CHECK" in text


@pytest.mark.parametrize(
    ("before", "reason"),
    [("#ifdef WIN\n#include <windows.h>\n#endif\n", "inside a condition"), ("/* like\n#include <x>\n*/\n", None)],
)
def test_the_include_stands_among_those_that_count(tmp_path, before, reason):
    tree = changed(tmp_path / "tree", call_site.PATH, lambda text: before + text)
    if reason:
        untouched = files_of(tree)
        with pytest.raises(PatchRefusedError, match=reason):
            plan(tree)
        assert files_of(tree) == untouched
    else:
        carry_out(tree, plan(tree))
        assert (tree / call_site.PATH).read_text().index(call_site.INCLUDE) > len(before)


def test_a_switch_in_dead_code_is_not_taken_for_the_live_one(tmp_path):
    def bury(text):
        opening, _ = call_site.function_body(call_site.mask(text), call_site.FUNCTION)
        site = text.index("if", opening)
        return text[:site] + "\n#if 0\n" + text[site:].replace("\n}", "\n#endif\n}", 1)

    tree = changed(tmp_path / "tree", call_site.PATH, bury)
    with pytest.raises(PatchRefusedError):
        plan(tree)


def test_nothing_outside_the_tree_is_touched(tmp_path):
    tree = make_tree(tmp_path / "tree")
    outside = tmp_path / "outside"
    (tree / "torch_npu" / "npu").rename(outside)
    (tree / "torch_npu" / "npu").symlink_to(outside)
    before = files_of(outside)
    with pytest.raises(PatchRefusedError, match="leads out of this tree"):
        plan(tree)
    assert files_of(outside) == before
