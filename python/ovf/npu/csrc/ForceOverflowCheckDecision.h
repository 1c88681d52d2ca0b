// The decision behind FORCE_OVERFLOW_CHECK, apart from torch_npu and CANN: plain C++11, no state, no input or
// output. Part of ovf; `ovf npu patch` copies it into a torch_npu tree unchanged.
#pragma once

#include <cstring>

namespace c10_npu {
namespace force_overflow_check {

constexpr const char* kVariable = "FORCE_OVERFLOW_CHECK";

enum class Decision {
  kNotRequested, // unset, "0", or anything but exactly "1": there is no value-range error
  kVersionTooLow, // requested, but CANN is older than 9.1.0, the first whose float_status register works in
                  // INF_NAN mode, or its version is not known
  kOn,
};

// Exactly "1": " 1", "01" and "true" count as unset, as in the Python gate.
inline bool IsRequested(const char* value) {
  return value != nullptr && std::strcmp(value, "1") == 0;
}

// `version_allows` is asked only when the variable requests the check, so that a process without it never queries
// the CANN version on account of this feature. A query that throws counts as a version that is not known.
template <typename VersionAllows>
Decision Decide(const char* value, VersionAllows version_allows) {
  if (!IsRequested(value)) {
    return Decision::kNotRequested;
  }
  try {
    return version_allows() ? Decision::kOn : Decision::kVersionTooLow;
  } catch (...) {
    return Decision::kVersionTooLow;
  }
}

// Which new streams get the overflow switch: all in saturation mode, and with the check on those in INF_NAN mode too.
inline bool NeedsOverflowSwitch(bool support_inf_nan, Decision decision) {
  return !support_inf_nan || decision == Decision::kOn;
}

} // namespace force_overflow_check
} // namespace c10_npu
