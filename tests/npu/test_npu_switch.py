"""enable() on the wheel without the feature, and the late variable on the one with it (simulated CANN)."""

from __future__ import annotations

import pytest

#: One stream that torch_npu knows nothing of, made the way another library would.
OUTSIDE = """
import ctypes
cann = ctypes.CDLL('libascendcl.so')
handle = ctypes.c_void_p()
cann.aclrtCreateStream(ctypes.byref(handle))
outside = handle.value
def switched(pointer):
    flag = ctypes.c_uint32(9)
    cann.aclrtGetStreamOverflowSwitch(ctypes.c_void_p(pointer), ctypes.byref(flag))
    return flag.value
"""


def on_in_log(result) -> dict[int, set[str]]:
    """Read off the simulator's log which streams of which device have the switch."""
    on: dict[int, set[str]] = {}
    for line in result.calls("aclrtSetStreamOverflowSwitch"):
        fields = dict(field.split("=") for field in line[3].split())
        if fields["flag"] == "1":
            on.setdefault(int(fields["device"]), set()).add(fields["stream"])
    return on


def test_enable_reaches_seventy_of_seventy_one_and_names_the_last(simulator):
    code = (
        "torch.zeros(1).npu()\n"
        + OUTSIDE
        + """
import ovf.npu
coverage = ovf.npu.enable()
kinds = [stream.kind for stream in coverage.streams]
out['kinds'] = {kind: kinds.count(kind) for kind in kinds}
out['on'] = coverage.on
out['unreachable'] = coverage.unreachable
out['outside'] = switched(outside)
later = [torch.npu.Stream() for _ in range(40)] + [torch.npu.Stream(priority=-1) for _ in range(40)]
out['later'] = [switched(stream.npu_stream) for stream in later].count(1)
again = ovf.npu.enable(pointers=[outside])
out['given'] = [switched(outside), len(again.streams)]
"""
    )
    result = simulator.one("without", code, FORCE_OVERFLOW_CHECK="1")
    assert len(result.calls("aclrtCreateStreamWithConfig", "aclrtCreateStream")) == 71
    assert result.out["kinds"] == {
        "default": 1,
        "normal": 32,
        "high": 32,
        "sync-launch": 4,
        "secondary": 1,
    }
    assert result.out["on"] is True
    assert result.out["outside"] == 0
    assert [reason for reason in result.out["unreachable"] if "aclrtCreateStream" in reason]
    assert result.out["later"] == 80
    assert result.out["given"] == [1, 71]


@pytest.mark.parametrize("pools", ["8", None])
def test_the_walk_leaves_every_pool_at_its_turn(simulator, pools):
    """What torch_npu hands out next is what it would have handed out without the walk."""
    code = "torch.zeros(1).npu()\nfirst = torch.npu.Stream().stream_id\n{walk}\nout['ids'] = [first, torch.npu.Stream().stream_id]"
    knobs = {"STREAMS_PER_DEVICE": pools} if pools else {}
    walk = "import ovf.npu.streams\nout['count'] = len(ovf.npu.streams.walk(0)[0])\nout['left'] = ovf.npu.streams.walk(0)[1]"
    plain = simulator.one("without", code.format(walk=""), **knobs).out
    walked = simulator.one("without", code.format(walk=walk), **knobs).out
    assert walked["ids"] == plain["ids"]
    assert walked["left"] == []
    assert walked["count"] == (22 if pools else 70)


def test_two_devices(simulator):
    code = """
import ovf.npu
torch.zeros(1, device='npu:0'); torch.zeros(1, device='npu:1')
coverage = ovf.npu.enable()
out['devices'] = coverage.devices
out['unreachable'] = coverage.unreachable
"""
    result = simulator.one("without", code, FORCE_OVERFLOW_CHECK="1", OVF_SIM_DEVICES="3")
    assert result.out["devices"] == [0, 1]
    assert {device: len(streams) for device, streams in on_in_log(result).items()} == {0: 70, 1: 70}
    assert [reason for reason in result.out["unreachable"] if "not used yet (2)" in reason]


def test_watch_catches_a_device_that_is_used_later(simulator):
    code = """
import ovf.npu
torch.zeros(1, device='npu:0')
coverage = ovf.npu.enable(watch=True)
out['watching'] = coverage.watching
torch.npu.set_device(1)
torch.zeros(1, device='npu:1')
torch.npu.Stream(device=1)
out['force'] = ovf.npu.is_force_overflow_check()
"""
    result = simulator.one("without", code, FORCE_OVERFLOW_CHECK="1", OVF_SIM_DEVICES="2")
    assert (result.out["watching"], result.out["force"]) == (True, True)
    assert {device: len(streams) for device, streams in on_in_log(result).items()} == {0: 70, 1: 34}


def test_without_watch_a_later_device_is_reported(simulator):
    code = """
import ovf.npu
torch.zeros(1, device='npu:0')
ovf.npu.enable()
torch.npu.set_device(1)
torch.zeros(1, device='npu:1')
out['force'] = ovf.npu.is_force_overflow_check()
try:
    ovf.npu.get_npu_overflow_flag()
except ovf.npu.SwitchOffError as error:
    out['raised'] = str(error)
ovf.npu.enable()
out['after'] = [ovf.npu.is_force_overflow_check(), ovf.npu.get_npu_overflow_flag()]
"""
    result = simulator.one("without", code, FORCE_OVERFLOW_CHECK="1", OVF_SIM_DEVICES="2")
    assert result.out["force"] is False
    assert "ovf.npu.enable()" in result.out["raised"]
    assert result.out["after"] == [True, False]


LATE = """
import os
import ovf.npu
from torch_npu.npu import utils
torch.zeros(1).npu()                     # the first stream: the C++ side has decided
os.environ['FORCE_OVERFLOW_CHECK'] = '1'
half = torch.full((4,), 65504.0, dtype=torch.float16).npu()
total = half + half
"""


def test_late_variable_is_silent_in_the_shipped_wheel_and_loud_in_ovf(simulator):
    code = (
        LATE
        + """
out['shipped'] = [utils.is_force_overflow_check(), utils.npu_check_overflow(total)]
out['force'] = ovf.npu.is_force_overflow_check()
out['check'] = ovf.npu.npu_check_overflow(total)
for name in ('get_npu_overflow_flag', 'clear_npu_overflow_flag'):
    try:
        getattr(ovf.npu, name)()
    except ovf.npu.SwitchOffError as error:
        out[name] = str(error)
status = ovf.npu.status()
out['status'] = [status.on, status.reason, list(status.warnings)]
coverage = ovf.npu.enable()
total = half + half
out['repaired'] = [ovf.npu.is_force_overflow_check(), ovf.npu.get_npu_overflow_flag(), utils.npu_check_overflow(total), len(coverage.streams)]
"""
    )
    out = simulator.one("with", code).out
    assert out["shipped"] == [True, False]  # the drift: "on", and an overflow that is never seen
    assert out["force"] is False
    assert out["check"] is True  # the value says so, as without the feature
    assert "do not have the overflow switch" in out["get_npu_overflow_flag"]
    assert "do not have the overflow switch" in out["clear_npu_overflow_flag"]
    on, reason, warnings = out["status"]
    assert (on, reason) == (False, "the streams in use do not have the overflow switch")
    assert warnings
    assert [warning for warning in out["warnings"] if "do not have the overflow switch" in warning]
    assert out["repaired"] == [True, True, True, 70]


def test_variable_set_after_import_and_before_the_first_stream_works(simulator):
    code = (
        "import os\nos.environ['FORCE_OVERFLOW_CHECK'] = '1'\nimport ovf.npu\n"
        """
out['before'] = ovf.npu.is_force_overflow_check()
half = torch.full((4,), 65504.0, dtype=torch.float16).npu()
total = half + half
out['after'] = [ovf.npu.is_force_overflow_check(), ovf.npu.get_npu_overflow_flag()]
"""
    )
    out = simulator.one("with", code).out
    assert (out["before"], out["after"]) == (True, [True, True])


def test_late_variable_without_the_feature_is_reported(simulator):
    out = simulator.one(
        "without",
        LATE + "out['force'] = ovf.npu.is_force_overflow_check()\nout['check'] = ovf.npu.npu_check_overflow(total)",
    ).out
    assert (out["force"], out["check"]) == (False, True)
    assert [warning for warning in out["warnings"] if "ovf.npu.enable()" in warning]


def test_enable_follows_the_variable_unless_forced(simulator):
    code = """
import os
import ovf.npu
torch.zeros(1).npu()
coverage = ovf.npu.enable()
out['asked'] = [coverage.on, coverage.reason]
coverage = ovf.npu.enable(force=True)
out['forced'] = [coverage.on, len(coverage.streams), os.environ['FORCE_OVERFLOW_CHECK'], ovf.npu.is_force_overflow_check()]
"""
    out = simulator.one("without", code).out
    assert out["asked"][0] is False
    assert "is not 1" in out["asked"][1]
    assert out["forced"] == [True, 70, "1", True]


def test_force_does_not_override_an_old_cann(simulator):
    code = "import ovf.npu\ntorch.zeros(1).npu()\ncoverage = ovf.npu.enable(force=True)\nout['x'] = [coverage.on, coverage.reason]"
    result = simulator.one("without", code, OVF_SIM_CANN="9.0.0")
    assert result.out["x"] == [False, "CANN 9.0.0 is not 9.1.0 or newer"]
    assert not result.calls("aclrtSetStreamOverflowSwitch")


def test_a_switch_that_fails_is_an_error(simulator):
    code = """
import ovf.npu
torch.zeros(1).npu()
try:
    ovf.npu.enable()
except ovf.npu.SwitchError as error:
    out['raised'] = str(error)
"""
    out = simulator.one("without", code, FORCE_OVERFLOW_CHECK="1", OVF_SIM_SWITCH="fails").out
    assert "500000" in out["raised"]


def test_a_cann_that_cannot_tell_the_switch(simulator):
    code = """
import ovf.npu
torch.zeros(1).npu()
out['before'] = ovf.npu.is_force_overflow_check()
coverage = ovf.npu.enable()
out['after'] = [coverage.on, len(coverage.streams), ovf.npu.is_force_overflow_check()]
"""
    knobs = {"FORCE_OVERFLOW_CHECK": "1", "OVF_SIM_NO_GET_SWITCH": "1"}
    without = simulator.one("without", code, **knobs).out
    assert (without["before"], without["after"]) == (False, [True, 70, True])
    assert simulator.one("with", code, **knobs).out["before"] is True  # taken at its word


def test_ascend950_is_refused_before_it_poisons_the_queue(simulator):
    code = """
import ovf.npu
torch.zeros(1).npu()
ovf.npu.enable()
for name, arguments in (('get_npu_overflow_flag', ()), ('npu_check_overflow', (1.0,)), ('clear_npu_overflow_flag', ())):
    try:
        getattr(ovf.npu, name)(*arguments)
    except RuntimeError as error:
        out[name] = str(error)
out['status'] = [ovf.npu.status().on, ovf.npu.status().reason]
"""
    for kind in ("with", "without"):
        result = simulator.one(kind, code, FORCE_OVERFLOW_CHECK="1", OVF_SIM_SOC="Ascend950PR_9599")
        assert len(on_in_log(result)[0]) == 70
        assert not result.calls("aclopCompileAndExecute")
        for name in ("get_npu_overflow_flag", "npu_check_overflow", "clear_npu_overflow_flag"):
            assert "no operators that read or clear" in result.out[name]
        assert result.out["status"][0] is False


def test_register_scope_of_a_stream(simulator):
    """With a register a stream, the current stream's register is read: nothing of other streams is seen."""
    code = """
import ovf.npu
torch.zeros(1).npu()
ovf.npu.enable()
half = torch.full((4,), 65504.0, dtype=torch.float16).npu()
side = torch.npu.Stream()
with torch.npu.stream(side):
    half + half
side.synchronize()
out['default'] = ovf.npu.get_npu_overflow_flag()
with torch.npu.stream(side):
    out['side'] = ovf.npu.get_npu_overflow_flag()
"""
    for register, expected in (("device", (True, True)), ("stream", (False, True))):
        out = simulator.one("without", code, FORCE_OVERFLOW_CHECK="1", OVF_SIM_REGISTER=register).out
        assert (out["default"], out["side"]) == expected
