"""Two hosts without a shared disk: the commands of docs/summaries.md, run with stand-ins for ssh, srun and torchrun.

A host is a folder; a stand-in runs the command with the host's /local/dump and /tmp/summaries in that folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ovf

HERE = Path(__file__).parent
DUMP = HERE.parent / "examples" / "tp2_pp4"
BLOCKS = re.findall(r"```sh\n(.*?)```", (HERE.parent / "docs" / "summaries.md").read_text(), re.DOTALL)

ON_HOST = """#!/bin/bash
# on HOST COMMAND...: what a shell on that host does
host=$1; shift
command="$*"
command=${command//\\/local\\/dump/$HOSTS/$host/dump}
command=${command//\\/tmp\\/summaries/$HOSTS/$host/summaries}
exec bash -c "$command"
"""
STAND_INS = {
    "on": ON_HOST,
    "ssh": '#!/bin/bash\nexec on "$@"\n',
    "srun": '#!/bin/bash\nshift 3\nhost=$1; [ "$host" = -w ] && { host=$2; shift; }; shift\nexec on "$host" "$@"\n',
    "scontrol": "#!/bin/bash\ncat hosts\n",
    "torchrun": '#!/bin/bash\nwhile [ "$1" != --no-python ]; do shift; done; shift\nexec on "$(sed -n "$((RANK + 1))p" hosts)" "$@"\n',
    "ovf": f'#!/bin/bash\nexec {sys.executable} -m ovf "$@"\n',
}


@pytest.fixture
def hosts(tmp_path):
    """Eight ranks on two hosts; the folder where the commands are typed, and the environment."""
    for number, rank in enumerate(sorted(DUMP.glob("step0/rank*"))):
        shutil.copytree(rank, tmp_path / f"node{number // 4}" / "dump" / "step0" / rank.name)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in STAND_INS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "hosts").write_text("node0\nnode1\n")
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOSTS": str(tmp_path)}
    return desk, {**env, "SLURM_JOB_NODELIST": "node[0-1]", "N": "2", "FIRST": "node0"}


def block(word):
    """The first block with that command in it."""
    return next(b for b in BLOCKS if word in b)


def check(desk, done):
    assert done.returncode == 1, done.stderr
    assert "FIRST OVERFLOW  rank 2   Tensor.__truediv__.1.forward" in done.stdout
    assert ovf.find_first_overflow(desk / "all").json() == ovf.find_first_overflow(DUMP).json()


@pytest.mark.parametrize("word", ["ssh", "srun"])
def test_through_a_pipe(hosts, word):
    desk, env = hosts
    done = subprocess.run(["bash", "-c", block(word)], cwd=desk, env=env, capture_output=True, text=True, timeout=120)
    check(desk, done)
    assert not list(desk.parent.glob("node*/summaries"))


def test_with_torchrun(hosts):
    desk, env = hosts
    everywhere, once = block("torchrun").split("# on one\n")
    for rank in ("0", "1", "1"):  # twice on a host does no harm
        subprocess.run(["bash", "-c", everywhere], cwd=desk, env={**env, "RANK": rank}, check=True, timeout=120)
    done = subprocess.run(["bash", "-c", once], cwd=desk, env=env, capture_output=True, text=True, timeout=120)
    check(desk, done)


def test_a_host_that_does_not_answer(hosts):
    desk, env = hosts
    shutil.rmtree(desk.parent / "node1")
    done = subprocess.run(["bash", "-c", block("ssh")], cwd=desk, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode in {1, 2}
    report = ovf.find_first_overflow(desk / "all")
    assert report.incomplete
    (missing,) = [n.ranks for n in report.notes if n.kind == "missing_ranks"]
    assert missing[0] >= 4  # as far as records name them
