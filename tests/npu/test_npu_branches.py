"""`ovf npu patch` on every 2.x branch of a real torch_npu clone.

OVF_TORCH_NPU_REPO names the git folder of a clone (github.com/Ascend/pytorch); nothing of it is
kept here. With the simulator environment as well (OVF_NPU_ENV), the gate header is compiled
against each branch's headers.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest
from native import compiler, stream_creation
from table import ROWS, rule

from ovf.npu import call_site, conditions, pages
from ovf.npu.patch import PatchRefusedError, carry_out, plan, plan_revert

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ["torch_npu/npu", "torch_npu/csrc", "test/torch_npu_schema.json", "docs"]
#: The one 2.x branch whose stream creation asks something else; it is refused.
WITHOUT_CALL_SITE = "v2.1.0-5.0.rc3"
REPOSITORY = os.environ.get("OVF_TORCH_NPU_REPO")


def git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, check=check)


def branches() -> list[str]:
    if not REPOSITORY:
        return []
    names = (
        git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes/origin").stdout.decode().split()
    )
    return sorted(
        {name.removeprefix("origin/") for name in names if re.fullmatch(r"(origin/)?(v2\.[1-9].*|master)", name)}
    )


pytestmark = pytest.mark.skipif(
    not REPOSITORY, reason="OVF_TORCH_NPU_REPO is not set: the git folder of a torch_npu clone"
)


@pytest.fixture
def checkout(tmp_path):
    def take(branch: str) -> Path:
        tree = tmp_path / "tree"
        tree.mkdir()
        name = (
            branch
            if git("rev-parse", "--verify", "-q", f"refs/heads/{branch}", check=False).returncode == 0
            else f"origin/{branch}"
        )
        for folder in FOLDERS:
            if git("cat-file", "-e", f"{name}:{folder}", check=False).returncode == 0:
                archive = tmp_path / "part.tar"
                archive.write_bytes(git("archive", name, folder).stdout)
                with tarfile.open(archive) as tar:
                    tar.extractall(tree, filter="data")
        return tree

    return take


def bytes_of(tree: Path) -> dict[str, str]:
    return {
        path.relative_to(tree).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() + oct(path.stat().st_mode)
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }


def apply(tree: Path):
    carry_out(tree, plan(tree))


@pytest.mark.parametrize("branch", branches())
def test_patch_again_and_revert(checkout, branch):
    tree = checkout(branch)
    before = bytes_of(tree)
    if branch == WITHOUT_CALL_SITE:
        with pytest.raises(PatchRefusedError, match="another condition"):
            plan(tree)
        assert bytes_of(tree) == before
        return
    apply(tree)
    patched = bytes_of(tree)
    changed = {path for path in patched if before.get(path) != patched[path]}
    assert {call_site.PATH, call_site.HEADER, conditions.PATH} <= changed
    assert set(before) <= set(patched)

    functions = ast.parse((tree / conditions.PATH).read_text())
    gated = [
        ast.unparse(node.test)
        for node in ast.walk(functions)
        if isinstance(node, ast.If) and "is_support_inf_nan" in ast.unparse(node.test)
    ]
    assert gated == ["is_support_inf_nan() and (not is_force_overflow_check())"] * 3
    assert (tree / pages.SCHEMA).exists() is (pages.SCHEMA in changed)

    assert plan(tree).changes == []  # a second run changes nothing
    assert bytes_of(tree) == patched
    carry_out(tree, plan_revert(tree))
    assert bytes_of(tree) == before


@pytest.mark.parametrize("branch", [branch for branch in branches() if branch != WITHOUT_CALL_SITE])
def test_patched_stream_creation_follows_the_rule(checkout, branch, tmp_path):
    """The branch's own function with our gate, on a simulated CANN: the whole table."""
    tree = checkout(branch)
    apply(tree)
    build = tmp_path / "build"
    build.mkdir()
    program = stream_creation(tree, build)
    for value, version, mode in ROWS:
        environment = {"PATH": os.environ["PATH"], "OVF_SIM_CANN": version}
        environment |= {"FORCE_OVERFLOW_CHECK": value} if value is not None else {}
        environment |= {"OVF_SIM_SATURATION": "1"} if mode == "saturation" else {}
        done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (value, version, mode, done.stderr[:500])
        on, made, warnings = map(int, done.stdout.split())
        expected = rule(value, version, mode)
        assert on == (made if expected["switch"] else 0), (value, version, mode)
        asked = mode == "INF_NAN" and value == "1"  # in saturation mode the first operand decides
        assert warnings == int(asked and not expected["force"]), (value, version, mode)


@pytest.mark.parametrize("branch", [branch for branch in branches() if branch != WITHOUT_CALL_SITE])
def test_gate_compiles_against_the_branch_headers(checkout, branch, tmp_path, simulator):
    """Real headers: the branch's, and below them those of torch and CANN that the wheel ships.

    A branch may name CANN types that are newer or older than the wheel's CANN headers; each is
    stood in for by an empty declaration, and nothing else is.
    """
    tree = checkout(branch)
    apply(tree)
    site = next((simulator.root / "with" / "lib").glob("python3*/site-packages"))
    source = tmp_path / "gate.cpp"
    include = f'#include "{call_site.HEADER}"\nbool gate() {{ return c10_npu::ForceOverflowCheck(); }}\n'
    missing: list[str] = []
    for _ in range(4):
        source.write_text("".join(f"struct {name};\n" for name in missing) + include)
        command = [
            compiler(),
            "-std=c++17",
            "-fsyntax-only",
            "-D__FILENAME__=__FILE__",
            f"-I{tree}",
        ]
        for folder in (
            "torch_npu/include",
            "torch_npu/include/third_party/acl/inc",
            "torch/include",
            "torch/include/torch/csrc/api/include",
        ):
            command += ["-isystem", str(site / folder)]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        unknown = set(
            re.findall(
                r"\u2018((?:acl|Hccl)\w+)\u2019 (?:has not been declared|was not declared|does not name a type)",
                done.stderr,
            )
        )
        assert unknown - set(missing), done.stderr[:3000]
        missing += sorted(unknown - set(missing))
    assert done.returncode == 0, done.stderr[:3000]
    shutil.rmtree(tree)
