"""The installed torch_npu: whether it can be used, and what it has of the feature.

Nothing is imported before it is asked for, so that ``import ovf.npu`` costs nothing and works
without torch.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from functools import cache
from typing import Any

from ovf.npu import runtime
from ovf.npu.gate import MIN_CANN, VARIABLE, cann_allows, is_requested


class UnavailableError(RuntimeError):
    """torch_npu cannot be used in this process; the message is the reason."""


@cache
def load() -> Any:  # noqa: ANN401 - torch_npu ships no types
    """Import torch_npu.

    Returns:
        The module.

    Raises:
        UnavailableError: It is not installed, or importing it fails (no CANN, another torch, ...).
    """
    for name in ("torch", "torch_npu"):
        if importlib.util.find_spec(name) is None:
            raise UnavailableError(f"{name} is not installed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torch_npu")
    except Exception as error:  # a broken CANN shows as ImportError, OSError, RuntimeError, ...
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UnavailableError(f"importing torch_npu failed: {line}") from error


def torch() -> Any:  # noqa: ANN401 - torch's types would make it a requirement of ovf's own checks
    """Return torch, which :func:`load` has imported."""
    load()
    return importlib.import_module("torch")


def utils() -> Any:  # noqa: ANN401
    """Return ``torch_npu.npu.utils``, where the wheel's own three functions live."""
    return load().npu.utils


def has_feature() -> bool:
    """Tell whether this torch_npu ships FORCE_OVERFLOW_CHECK itself."""
    return hasattr(utils(), "is_force_overflow_check")


def has_streams() -> bool:
    """Tell whether torch_npu is initialised in this process."""
    return bool(load().npu.is_initialized())


def cann_version() -> str | None:
    """Ask CANN for its version; None where it cannot tell.

    CANN is asked itself, not through torch_npu: some wheels read an uninitialised structure when
    the query fails.
    """
    load()
    return runtime.cann_version()


def cann_is_new_enough() -> bool:
    """Tell whether CANN allows the check.

    A wheel with the feature is asked by its own comparison, since its C++ side decides by that.
    The comparison of a wheel without it is not used: some take 9.1.0.RC1 for 9.1.0 or newer.
    """
    compare = getattr(utils(), "_is_gte_cann_version", None) if has_feature() else None
    if compare is None:
        return cann_allows(cann_version())
    try:
        return bool(compare(MIN_CANN))
    except RuntimeError:  # the rule: a version that cannot be queried is not known to be new enough
        return False


def variable_requests() -> bool:
    """Tell whether the environment asks for the check now."""
    return is_requested(os.environ.get(VARIABLE))


def is_inf_nan_mode() -> bool:
    """Tell whether the device computes in INF_NAN mode; initialises torch_npu."""
    return bool(utils().is_support_inf_nan())


def soc_name() -> str | None:
    """Ask CANN for the name of the processor."""
    return runtime.soc_name()


def has_register_operators() -> bool:
    """Tell whether float_status can be read: not on Ascend 950, which runs no aclop operator."""
    return not (soc_name() or "").startswith("Ascend950")
