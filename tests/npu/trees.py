"""Small torch_npu-like source trees of our own, for the patcher's tests. Not a line is torch_npu's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CALL_SITE = """\
#include "AclInterface.h"
#include <dlfcn.h>
#include "torch_npu/csrc/core/npu/NPUException.h"
#ifndef BUILD_LIBTORCH
#include "torch_npu/csrc/sanitizer/NPUTrace.h"
#endif

namespace c10_npu { namespace acl {
// AclrtCreateStreamWithConfig(a comment) { is not code
static const char* kText = "AclrtCreateStreamWithConfig() { if (!c10_npu::IsSupportInfNan()) {";

aclError AclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    aclError made = aclrtCreateStreamWithConfig(stream, priority, flag);
    if (made == ACL_SUCCESS && stream != nullptr) {
        if ( ! c10_npu::IsSupportInfNan( ) ) {
            TORCH_CHECK(AclrtSetStreamOverflowSwitch( *stream, 1 ) == ACL_SUCCESS, "switch");
        }
        return AclrtSetStreamFailureMode(*stream, ACL_STOP_ON_FAILURE);
    }
    return made;
}

aclError AclrtSetOther(aclrtStream stream)
{
    if (!c10_npu::IsSupportInfNan()) { return 1; }
    return AclrtCreateStreamWithConfig(&stream, 0, 0);
}
} }
"""

FUNCTIONS = '''\
import warnings

import torch_npu

__all__ = ["synchronize", "is_support_inf_nan", "npu_check_overflow"]


def is_support_inf_nan():
    return torch_npu._C._npu_is_support_inf_nan()


def get_npu_overflow_flag():
    """Müßte — a column that counts bytes would be off here."""
    if is_support_inf_nan():
        raise RuntimeError("unsupported")
    return bool(torch_npu.npu_get_float_status(None)[0])


def npu_check_overflow(grad):
    if is_support_inf_nan():
        return grad != grad
    else:
        found = get_npu_overflow_flag()
        if found:
            clear_npu_overflow_flag()
        return found


def clear_npu_overflow_flag():
    if is_support_inf_nan():
        warnings.warn("useless")
        return
    torch_npu.npu_clear_float_status(None)
'''

SCHEMA = {
    "torch_npu.npu.utils.is_bf16_supported": {"signature": "()"},
    "torch_npu.npu.utils.is_support_inf_nan": {"signature": "()"},
    "torch_npu.npu.utils.npu_check_overflow": {"signature": "(grad)"},
}

INDEX = """\
# Variables

| name | what |
| -- | -- |
| [INF_NAN_MODE_FORCE_DISABLE](INF_NAN_MODE_FORCE_DISABLE.md) | forces it |
| [COMBINED_ENABLE](COMBINED_ENABLE.md) | another |
"""
SPACED_MENU = (
    "- **[INF\\_NAN\\_MODE\\_FORCE\\_DISABLE](INF_NAN_MODE_FORCE_DISABLE.md)**  \n"
    "\n"
    "- **[COMBINED\\_ENABLE](COMBINED_ENABLE.md)**  \n"
)


def make_tree(root: Path, *, docs: bool = True, schema: bool = True, crlf: bool = False) -> Path:
    files = {
        "torch_npu/csrc/core/npu/interface/AclInterface.cpp": CALL_SITE,
        "torch_npu/npu/utils.py": FUNCTIONS,
    }
    if schema:
        files["test/torch_npu_schema.json"] = json.dumps(SCHEMA, indent=2) + "\n"
    if docs:
        for language in ("en", "zh"):
            files[f"docs/{language}/variables/INF_NAN_MODE_FORCE_DISABLE.md"] = "# page\n"
            files[f"docs/{language}/variables/list.md"] = INDEX
            files[f"docs/{language}/variables/menu.md"] = SPACED_MENU
            files[f"docs/{language}/other.md"] = "mixed\r\nline\nends, and INF_NAN_MODE elsewhere\n"
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        data = text.replace("\n", "\r\n") if crlf and "other.md" not in path else text
        file.write_bytes(data.encode())
    return root
