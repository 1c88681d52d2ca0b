"""The rule of FORCE_OVERFLOW_CHECK: which value asks for the check, and which CANN allows it.

Rule (the feature's request for comments, section 3.5.2): the variable is exactly ``1`` and CANN
is 9.1.0 or newer; a version that cannot be queried counts as too old; no value is an error. The
C++ side of the same rule is ``csrc/ForceOverflowCheckDecision.h``.
"""

from __future__ import annotations

import re

VARIABLE = "FORCE_OVERFLOW_CHECK"
MIN_CANN = "9.1.0"

#: Releases only, as torch_npu compares them: 9.1.0.RC1, 9.1.0-beta.1 and 9.1.0.1 are not at least
#: 9.1.0.
_RELEASE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})")


def is_requested(value: str | None) -> bool:
    """Tell whether the variable's value asks for the check.

    Args:
        value: The value, or None where the variable is not set.

    Returns:
        True for exactly ``"1"``; ``" 1"``, ``"true"`` and ``"2"`` count as not set.
    """
    return value == "1"


def cann_allows(version: str | None) -> bool:
    """Tell whether a CANN version has the register in INF_NAN mode.

    Args:
        version: The version string as CANN gives it; None or empty where the query failed.

    Returns:
        True for releases from 9.1.0 on.
    """
    match = _RELEASE.fullmatch(version or "")
    return match is not None and tuple(map(int, match.groups())) >= (9, 1, 0)
