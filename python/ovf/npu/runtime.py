"""CANN's runtime library, reached by its C interface: a stream's overflow switch, the version.

torch_npu has loaded ``libascendcl`` by the time anything here is called; it is found again by its
name. A CANN function that is missing is answered with None or an error, never with a guess.
"""

from __future__ import annotations

import ctypes
from functools import cache

LIBRARY = "libascendcl.so"
SUCCESS = 0
#: ACL_PKG_NAME_CANN, and room for aclCANNPackageVersion, whose first member is char version[128].
_PACKAGE_CANN, _VERSION_ROOM, _VERSION_LENGTH = 0, 1024, 128


class SwitchError(RuntimeError):
    """CANN refused to set a stream's overflow switch."""


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def _function(name: str, *arguments: type) -> ctypes._NamedFuncPointer | None:
    function = getattr(_library(), name, None)
    if function is not None:
        function.argtypes = list(arguments)
        function.restype = ctypes.c_int
    return function


def set_switch(pointer: int, *, on: bool = True) -> None:
    """Set the overflow switch of a stream.

    Args:
        pointer: The stream, as ``npu_stream`` gives it.
        on: The new position.

    Raises:
        SwitchError: CANN lacks the call or answered with an error.
    """
    call = _function("aclrtSetStreamOverflowSwitch", ctypes.c_void_p, ctypes.c_uint32)
    if call is None:
        raise SwitchError("CANN has no aclrtSetStreamOverflowSwitch")
    code = call(pointer, int(on))
    if code != SUCCESS:
        raise SwitchError(f"aclrtSetStreamOverflowSwitch answered {code} for stream {pointer:#x}")


def get_switch(pointer: int) -> bool | None:
    """Read the overflow switch of a stream.

    Returns:
        Its position; None where CANN cannot tell.
    """
    call = _function("aclrtGetStreamOverflowSwitch", ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32))
    flag = ctypes.c_uint32(0)
    if call is None or call(pointer, ctypes.byref(flag)) != SUCCESS:
        return None
    return flag.value != 0


def cann_version() -> str | None:
    """Ask CANN for its version.

    Returns:
        The version string; None where the call is missing or fails.
    """
    call = _function("aclsysGetCANNVersion", ctypes.c_int, ctypes.c_void_p)
    answer = ctypes.create_string_buffer(_VERSION_ROOM)
    if call is None or call(_PACKAGE_CANN, answer) != SUCCESS:
        return None
    return answer.raw[:_VERSION_LENGTH].split(b"\0")[0].decode(errors="replace") or None


def soc_name() -> str | None:
    """Ask CANN for the name of the processor; None where it cannot tell."""
    call = getattr(_library(), "aclrtGetSocName", None)
    if call is None:
        return None
    call.argtypes, call.restype = [], ctypes.c_char_p
    name = call()
    return name.decode(errors="replace") if name else None
