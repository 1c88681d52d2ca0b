"""The float_status register of the current device, with the semantics of the feature's request.

Each function defers to the wheel's own where that is right. Where the shipped design drifts (the
variable set after the first stream: Python says the check is on, no stream has the switch, and
the register never moves) it says so, instead of reporting "no overflow" for ever.
"""

from __future__ import annotations

import warnings
from typing import Any

from ovf.npu import switch, wheel
from ovf.npu.gate import VARIABLE


class SwitchOffError(RuntimeError):
    """The register is asked for, but the streams of this device do not have the overflow switch."""


DRIFT = (
    f"{VARIABLE}=1, but the streams of this device do not have the overflow switch (was the "
    "variable set after the first stream, or is this torch_npu without the feature?): overflow "
    "cannot be seen in the register. "
    "Call ovf.npu.enable()"
)


def _asked() -> bool:
    """Tell whether the rule says on, whatever the streams have."""
    return wheel.variable_requests() and wheel.cann_is_new_enough()


def _drifts() -> bool:
    """Tell whether the rule says on while a stream in use has no switch."""
    if not _asked() or not wheel.is_inf_nan_mode():
        return False
    told = switch.is_on()
    # A CANN that cannot tell: the wheel with the feature is taken at its word, one without it is
    # not.
    return not told if told is not None else not wheel.has_feature()


def is_force_overflow_check() -> bool:
    """Tell whether FORCE_OVERFLOW_CHECK is in effect.

    Returns:
        True where the variable is exactly ``1``, CANN is 9.1.0 or newer, and the streams in use
        have the switch. Where the first two hold and the third does not, False with a warning.
        False where torch_npu cannot be used.
    """
    try:
        asked = _asked()
    except wheel.UnavailableError:
        return False
    if not asked:
        return False
    if wheel.has_feature() and not wheel.has_streams():
        return True  # decided when the first stream is made, and nothing speaks against it
    if _drifts():
        warnings.warn(DRIFT, RuntimeWarning, stacklevel=2)
        return False
    return True


def _require_register_operators() -> None:
    if not wheel.has_register_operators():
        # Trying would poison torch_npu's queue: the operator's failure surfaces at some later call.
        raise RuntimeError(f"{wheel.soc_name()} has no operators that read or clear float_status")


def _read() -> bool:
    _require_register_operators()
    status = wheel.load().npu_get_float_status(wheel.torch().zeros(8).npu())
    return bool(status.cpu()[0] != 0)


def _clear() -> None:
    _require_register_operators()
    wheel.load().npu_clear_float_status(wheel.torch().zeros(8).npu())


def get_npu_overflow_flag() -> bool:
    """Read the register of the current device.

    Returns:
        Whether an operator overflowed since the last clear, on a stream with the switch.

    Raises:
        UnavailableError: torch_npu cannot be used.
        SwitchOffError: The rule says on, but the streams in use do not have the switch.
        RuntimeError: INF_NAN mode with the check off, as torch_npu itself raises.
    """
    wheel.load().npu.init()
    if not wheel.is_inf_nan_mode():
        return bool(wheel.utils().get_npu_overflow_flag())
    if not _asked():
        raise RuntimeError(
            f"the register is not available in INF_NAN mode unless {VARIABLE}=1 and CANN is "
            "9.1.0 or newer; "
            "use npu_check_overflow"
        )
    if _drifts():
        raise SwitchOffError(DRIFT)
    return _read()


def npu_check_overflow(grad: Any) -> bool:  # noqa: ANN401 - a tensor or a float
    """Tell whether an overflow happened.

    With the check in effect, or in saturation mode, reads the register and clears it when it was
    set; ``grad`` is not read then, so an Inf that arrived in it is not reported. Otherwise sums
    ``grad`` on the device and looks at the sum on the host.

    Args:
        grad: A tensor, or a Python float.

    Returns:
        Whether there was an overflow.

    Raises:
        UnavailableError: torch_npu cannot be used.
        RuntimeError: ``grad`` is neither a tensor nor a float where its value is needed.
    """
    wheel.load().npu.init()
    if not wheel.is_inf_nan_mode():
        return bool(wheel.utils().npu_check_overflow(grad))
    if _asked():
        if not _drifts():
            found = _read()
            if found:
                _clear()
            return found
        warnings.warn(f"{DRIFT}; the value of the argument is checked instead", RuntimeWarning, stacklevel=2)
    return _value_overflows(grad)


def _value_overflows(grad: Any) -> bool:  # noqa: ANN401
    if isinstance(grad, wheel.torch().Tensor):
        total = float(grad.float().sum())
    elif isinstance(grad, float):
        total = grad
    else:
        raise RuntimeError(  # noqa: TRY004 - torch_npu's own function raises this one
            f"cannot check the value of a {type(grad).__name__}; pass a tensor or a float"
        )
    return total - total != 0.0  # Inf and NaN only


def clear_npu_overflow_flag() -> None:
    """Clear the register of the current device.

    In INF_NAN mode with the check off it warns and does nothing, as torch_npu itself.

    Raises:
        UnavailableError: torch_npu cannot be used.
        SwitchOffError: The rule says on, but the streams in use do not have the switch.
    """
    wheel.load().npu.init()
    if not wheel.is_inf_nan_mode():
        wheel.utils().clear_npu_overflow_flag()
        return
    if not _asked():
        warnings.warn(
            f"in INF_NAN mode there is no register to clear unless {VARIABLE}=1 and CANN is 9.1.0 or newer",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    if _drifts():
        raise SwitchOffError(DRIFT)
    _clear()
