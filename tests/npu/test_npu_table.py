"""Streams with the switch and is_force_overflow_check() over the whole table, on real wheels (simulated CANN)."""

from __future__ import annotations

import pytest
from table import MODE_KNOBS, ROWS, VERSIONS, rule

#: Make every stream that torch_npu has, and read each one's switch from the simulated CANN.
COUNT = """
from ovf.npu import runtime, streams
positions = [runtime.get_switch(stream.pointer) for stream in streams.walk(0)[0]]
out['streams'] = [positions.count(True), len(positions)]
"""
#: The wheel's own functions, edited in memory exactly as `ovf npu patch` edits a tree.
EDIT = """
import pathlib
from ovf.npu import call_site, conditions
functions = torch_npu.npu.utils
text = pathlib.Path(functions.__file__).read_text()
edited = call_site.insert(text, conditions.plan(text))
exec(compile(edited, functions.__file__, 'exec'), functions.__dict__)
out['force'] = functions.is_force_overflow_check()
"""
WAYS = {
    "shipped wheel": (
        "with",
        "torch.zeros(1).npu()\nout['force'] = torch_npu.npu.utils.is_force_overflow_check()\n" + COUNT,
    ),
    "ovf.npu": (
        "without",
        "torch.zeros(1).npu()\nimport ovf.npu\novf.npu.enable()\nout['force'] = ovf.npu.is_force_overflow_check()\n"
        + COUNT,
    ),
    "ovf.npu on the wheel with the feature": (
        "with",
        "torch.zeros(1).npu()\nimport ovf.npu\novf.npu.enable()\nout['force'] = ovf.npu.is_force_overflow_check()\n"
        + COUNT,
    ),
    "patched functions": ("without", EDIT),
}


def table(simulator, way: str) -> dict:
    kind, code = WAYS[way]
    seen = {}
    for version in VERSIONS:  # some wheels ask for the version at import, so each version is one import
        rows = [row for row in ROWS if row[1] == version]
        configs = [{"FORCE_OVERFLOW_CHECK": value, **MODE_KNOBS[mode]} for value, _, mode in rows]
        for row, result in zip(rows, simulator.run(kind, code, *configs, OVF_SIM_CANN=version), strict=True):
            assert "error" not in result.out, result.out["error"]
            seen[row] = result.out
    return seen


@pytest.fixture(scope="session")
def shipped(simulator) -> dict:
    return table(simulator, "shipped wheel")


def test_the_shipped_wheel_follows_the_rule(shipped):
    for row, out in shipped.items():
        expected = rule(*row)
        assert out["force"] is expected["force"], row
        assert out["streams"] == [70 if expected["switch"] else 0, 70], row


@pytest.mark.parametrize("way", [way for way in WAYS if way != "shipped wheel"])
def test_equal_to_the_shipped_wheel_everywhere(simulator, shipped, way):
    seen = table(simulator, way)
    assert len(seen) == len(ROWS) == 72
    for row, out in seen.items():
        assert out["force"] is shipped[row]["force"], row
        if "streams" in out:
            assert out["streams"] == shipped[row]["streams"], row
