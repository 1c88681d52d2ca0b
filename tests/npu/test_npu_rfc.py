"""The request's six unit tests, on a real wheel with the feature and through ovf.npu on one without (simulated CANN)."""

from __future__ import annotations

import pytest

#: Names that both ways define: `api` has the three functions and the query.
WAYS = {
    "with": "from torch_npu.npu import utils as api\n",
    "without": "import ovf.npu as api\napi.enable()\n",
}
OVERFLOW = """
half = torch.full((4,), 65504.0, dtype=torch.float16).npu()
total = half + half
"""
INF_NAN, SATURATION = {"OVF_SIM_SOC": "Ascend910B2"}, {"OVF_SIM_SOC": "Ascend910A"}

pytestmark = pytest.mark.parametrize("kind", WAYS)


def start(kind: str) -> str:
    return "torch.zeros(1).npu()\n" + WAYS[kind]


def test_float_status_is_set_by_an_overflow_and_reset_by_clear(simulator, kind):
    code = (
        start(kind)
        + "out['before'] = api.get_npu_overflow_flag()\n"
        + OVERFLOW
        + """
out['set'] = api.get_npu_overflow_flag()
out['value'] = str(total.cpu().tolist())
api.clear_npu_overflow_flag()
out['cleared'] = api.get_npu_overflow_flag()
normal = torch.ones(4, dtype=torch.float16).npu()
normal = normal + normal
out['normal'] = api.get_npu_overflow_flag()
"""
    )
    out = simulator.one(kind, code, FORCE_OVERFLOW_CHECK="1", **INF_NAN).out
    assert (out["before"], out["set"], out["cleared"], out["normal"]) == (False, True, False, False)
    assert out["value"] == "[inf, inf, inf, inf]"  # the computing mode is unchanged


def test_npu_check_overflow_reads_the_register_and_clears_it(simulator, kind):
    code = (
        start(kind)
        + OVERFLOW
        + """
clean = torch.ones(4, dtype=torch.float16).npu()
out['first'] = api.npu_check_overflow(clean)
out['second'] = api.npu_check_overflow(clean)
out['arrived'] = api.npu_check_overflow(torch.full((4,), float('inf')).npu())
"""
    )
    result = simulator.one(kind, code, FORCE_OVERFLOW_CHECK="1", **INF_NAN)
    assert (result.out["first"], result.out["second"], result.out["arrived"]) == (
        True,
        False,
        False,
    )
    assert not result.calls("aclnnReduceSum")  # no gradient is summed or copied to the host


def test_default_behaviour_is_unchanged(simulator, kind):
    code = (
        start(kind)
        + OVERFLOW
        + """
out['force'] = api.is_force_overflow_check()
out['inf_nan'] = torch_npu.npu.utils.is_support_inf_nan()
try:
    api.get_npu_overflow_flag()
except RuntimeError as error:
    out['raised'] = True
out['value'] = [api.npu_check_overflow(total), api.npu_check_overflow(torch.ones(2).npu()), api.npu_check_overflow(float('nan'))]
api.clear_npu_overflow_flag()
"""
    )
    result = simulator.one(kind, code, **INF_NAN)
    assert result.out["force"] is False
    assert result.out["inf_nan"] is True
    assert result.out["raised"] is True
    assert result.out["value"] == [True, False, True]
    assert not result.calls("aclrtSetStreamOverflowSwitch", "aclopCompileAndExecute")
    assert any("clear" in warning for warning in result.out["warnings"])


@pytest.mark.parametrize(("cann", "warns"), [("9.0.0", 1), ("9.1.0", 0)])
def test_version_mismatch_warns_once_and_falls_back(simulator, kind, cann, warns):
    code = (
        start(kind)
        + (WAYS[kind] if kind == "without" else "")
        + OVERFLOW
        + """
torch.npu.Stream()
out['force'] = api.is_force_overflow_check()
out['value'] = api.npu_check_overflow(total)
"""
    )
    knobs = {
        "FORCE_OVERFLOW_CHECK": "1",
        "ASCEND_GLOBAL_LOG_LEVEL": "2",
        "ASCEND_SLOG_PRINT_TO_STDOUT": "1",
    }
    result = simulator.one(kind, code, OVF_SIM_CANN=cann, **knobs, **INF_NAN)
    if kind == "with":
        said = [line for line in result.calls("aclAppLog") if "FORCE_OVERFLOW_CHECK" in line[3]]
    else:
        said = [warning for warning in result.out["warnings"] if "stays off" in warning]
    assert len(said) == warns
    assert result.out["force"] is (warns == 0)
    assert bool(result.calls("aclrtSetStreamOverflowSwitch")) is (warns == 0)
    assert result.out["value"] is True


def test_invalid_value_counts_as_unset(simulator, kind):
    code = (
        start(kind)
        + """
out['force'] = api.is_force_overflow_check()
try:
    api.get_npu_overflow_flag()
except RuntimeError:
    out['raised'] = True
"""
    )
    result = simulator.one(kind, code, FORCE_OVERFLOW_CHECK="2", **INF_NAN)
    assert (result.out["force"], result.out["raised"]) == (False, True)
    assert not result.calls("aclrtSetStreamOverflowSwitch")


@pytest.mark.parametrize("value", [None, "1"])
def test_saturation_devices_are_unchanged(simulator, kind, value):
    code = (
        start(kind)
        + OVERFLOW
        + """
out['inf_nan'] = torch_npu.npu.utils.is_support_inf_nan()
out['check'] = [api.npu_check_overflow(total), api.npu_check_overflow(total)]
"""
    )
    result = simulator.one(kind, code, **({"FORCE_OVERFLOW_CHECK": value} if value else {}), **SATURATION)
    created, switched = (
        result.calls("aclrtCreateStreamWithConfig"),
        result.calls("aclrtSetStreamOverflowSwitch"),
    )
    assert result.out["inf_nan"] is False
    assert result.out["check"] == [True, False]
    assert len(created) == len(switched) > 0
