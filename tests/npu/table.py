"""The gate's whole table, and what the rule says of each row."""

from __future__ import annotations

from itertools import product

VALUES = [None, "0", "1", "2", "true", " 1"]
#: "!" makes the simulated query fail.
VERSIONS = ["9.0.0", "9.1.0", "9.1.0.RC1", "9.2.0", "garbage", "!"]
MODES = ["INF_NAN", "saturation"]
ROWS = list(product(VALUES, VERSIONS, MODES))

#: How a mode is chosen on an Atlas A2 device.
MODE_KNOBS = {
    "INF_NAN": {"INF_NAN_MODE_ENABLE": None, "INF_NAN_MODE_FORCE_DISABLE": None},
    "saturation": {"INF_NAN_MODE_ENABLE": "0", "INF_NAN_MODE_FORCE_DISABLE": "1"},
}


def rule(value: str | None, version: str, mode: str) -> dict[str, bool]:
    """Say what a row gives, in the obvious words of the request."""
    force = value == "1" and version in {"9.1.0", "9.2.0"}
    return {"force": force, "switch": mode == "saturation" or force}
