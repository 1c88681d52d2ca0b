# ruff: noqa: T201 - it talks to whoever started it

"""Build the simulator environment: real torch_npu wheels beside a simulated CANN.

    python tests/npu/build_env.py DIR
    OVF_NPU_ENV=DIR python -m pytest tests/npu

DIR receives one virtual environment a wheel (torch comes once and is hard-linked into the
second), the simulated CANN compiled from ``sim/cann.c``, and empty shared libraries under the
names that the CUDA build of torch wants at load time. Everything comes from PyPI by ``pip``;
nothing is run against hardware, and the script refuses a machine that has a CANN of its own.
Running it again on a finished DIR only recompiles the simulator.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TORCH = "2.7.1"
#: The wheel that has FORCE_OVERFLOW_CHECK and one that does not, of the same torch line.
WHEELS = {"with": "2.7.1.post11", "without": "2.7.1.post8"}
#: What torch and torch_npu import on the way; installed by name because --no-deps leaves out
#: nvidia's 2.7 GB.
REQUIREMENTS = [
    "numpy", "typing_extensions", "pyyaml", "sympy", "networkx", "jinja2", "filelock", "fsspec",
    "decorator", "attrs", "psutil", "scipy", "setuptools", "packaging", "click", "rich", "rich-click",
]  # fmt: skip
#: The names under which torch_npu looks for CANN; the loader sees one inode and maps it once.
CANN_NAMES = [
    "libascendcl.so", "libhccl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so",
    "libacl_tdt_channel.so", "libopapi.so", "libnnopbase.so",
]  # fmt: skip
HERE = Path(__file__).resolve().parent


def run(*command: str | Path) -> str:
    """Run a command and return its standard output; its failure is ours."""
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def real_cann() -> str | None:
    """Say where a real CANN is on this machine, if there is one."""
    home = os.environ.get("ASCEND_HOME_PATH")
    if home:
        return f"ASCEND_HOME_PATH={home}"
    for place in (
        "/usr/local/Ascend",
        str(Path.home() / "Ascend"),
        "/dev/davinci0",
        "/dev/davinci_manager",
    ):
        if Path(place).exists():
            return place
    return None


def site_packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python3*/site-packages"))


def install(root: Path) -> None:
    """Make the two virtual environments, downloading torch once."""
    first = root / "with"
    for kind, version in WHEELS.items():
        venv = root / kind
        done = venv / f".{version}"
        if done.exists():
            continue
        shutil.rmtree(venv, ignore_errors=True)
        run(sys.executable, "-m", "venv", venv)
        pip = [
            venv / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        if kind == "with":
            run(*pip, *REQUIREMENTS)
            run(*pip, "--no-deps", f"torch=={TORCH}")
        else:
            source = site_packages(first)
            for entry in source.iterdir():
                target = site_packages(venv) / entry.name
                # What a new environment brings along (pip, setuptools) stays its own.
                if entry.name.startswith("torch_npu") or target.exists():
                    continue
                if entry.is_dir():
                    shutil.copytree(entry, target, copy_function=os.link)
                else:
                    os.link(entry, target)
        run(*pip, "--no-deps", f"torch_npu=={version}")
        done.touch()


def dynamic(option: str, library: Path, *, versions: bool = False) -> list[str]:
    """List the dynamic symbols of a library as nm sees them, weak ones left out."""
    lines = run("nm", "-D", option, *([] if versions else ["--without-symbol-versions"]), library).splitlines()
    return [line.split()[-1] for line in lines if line.split()[-2] not in {"w", "v"}]


def needed(library: Path) -> list[str]:
    return re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", library))


def build_cann(root: Path) -> dict[str, int]:
    """Compile sim/cann.c together with one empty function for every other CANN symbol that the wheels need."""
    wanted: set[str] = set()
    for kind in WHEELS:
        package = site_packages(root / kind) / "torch_npu"
        libraries = [package / "lib" / f"lib{name}.so" for name in ("torch_npu", "npu_profiler", "tensorpipe")]
        for library in [*libraries, *package.glob("_C*.so")]:
            wanted |= set(dynamic("--undefined-only", library))
    torch = site_packages(root / "with") / "torch"
    provided: set[str] = set()
    for name in ("c10", "torch", "torch_cpu", "torch_python", "shm"):
        provided |= set(dynamic("--defined-only", torch / "lib" / f"lib{name}.so"))
    # CANN's own symbols carry no version, are plain C, and are nobody else's.
    cann = {name for name in wanted if re.fullmatch(r"acl\w+|(Hccl|Hcom|Msprof|prof|ge|rt)[A-Z]\w*", name)}
    cann -= provided
    work = root / "cann"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    ours = work / "libsimcann.so"
    compile_ours = [
        "gcc",
        "-O2",
        "-fPIC",
        "-shared",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-o",
        ours,
        HERE / "sim" / "cann.c",
    ]
    run(*compile_ours, "-lm")
    implemented = set(dynamic("--defined-only", ours))
    stubs = work / "stubs.c"
    empty = sorted(cann - implemented)
    stubs.write_text(
        "/* Generated from the undefined symbols of the wheels: answer success and do nothing. */\n"
        + "".join(f"long {name}(void) {{ return 0; }}\n" for name in empty)
    )
    run(*compile_ours, stubs, "-lm")
    for name in CANN_NAMES:
        (work / name).symlink_to(ours.name)
    return {"wanted": len(cann), "implemented": len(cann & implemented), "empty": len(empty)}


def build_cuda_stand_ins(root: Path) -> list[str]:
    """Make one library of functions that do nothing, under every name that torch needs and the system lacks.

    torch on PyPI for x86-64 is the CUDA build; its libraries load only where the CUDA ones
    resolve. No CUDA function is ever called here. Symbols keep the version that torch's libraries
    ask for.
    """
    work = root / "loader"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    torch = site_packages(root / "with") / "torch"
    libraries = [*torch.glob("lib/*.so*"), *torch.glob("_C*.so")]
    present = {library.name for library in libraries}
    wanted = {name for library in libraries for name in needed(library)} - present
    probe = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    missing = [
        name
        for name in sorted(wanted)
        if subprocess.run([sys.executable, "-c", probe, name], check=False, capture_output=True).returncode
    ]
    if not missing:
        return missing
    versions: dict[str, set[str]] = {}
    for library in libraries:
        for symbol in dynamic("--undefined-only", library, versions=True):
            name, _, version = symbol.partition("@")
            if version in missing or (not version and re.match(r"(cu|nv|nccl)[A-Za-z]", name)):
                versions.setdefault(version, set()).add(name)
    names = sorted(set().union(*versions.values()))
    source, script = work / "stand_ins.c", work / "stand_ins.map"
    source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in names))
    script.write_text(
        "".join(
            f"{version} {{ global: {'; '.join(sorted(versions[version]))}; }};\n" for version in versions if version
        )
    )
    library = work / "libstandins.so"
    run("gcc", "-shared", "-fPIC", f"-Wl,--version-script,{script}", "-w", "-o", library, source)
    for name in missing:
        (work / name).symlink_to(library.name)
    return missing


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = real_cann()
    if found is not None:
        print(f"refused: this machine has a CANN of its own ({found}); the simulator must not shadow it")
        return 1
    if not (3, 9) <= sys.version_info[:2] <= (3, 11):
        print(
            f"refused: torch_npu {WHEELS['with']} has no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
        return 1
    for tool in ("gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            print(f"refused: {tool} is not installed")
            return 1
    root = Path(sys.argv[1]).resolve()
    root.mkdir(parents=True, exist_ok=True)
    install(root)
    symbols = build_cann(root)
    stand_ins = build_cuda_stand_ins(root)
    facts = {"torch": TORCH, "wheels": WHEELS, "symbols": symbols, "loader_stand_ins": stand_ins}
    (root / "env.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
