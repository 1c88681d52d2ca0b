// The C++ gate of FORCE_OVERFLOW_CHECK in a torch_npu tree. Part of ovf; `ovf npu patch` puts it there.
#pragma once

#include <cstdlib>

#include "torch_npu/csrc/core/npu/ForceOverflowCheckDecision.h"
#include "torch_npu/csrc/core/npu/ForceOverflowCheckVersion.h"
#include "torch_npu/csrc/core/npu/npu_log.h"

namespace c10_npu {

// Evaluated at the first stream of the process and kept: setting the variable later changes nothing here. The
// warning is printed once, and only where ASCEND_GLOBAL_LOG_LEVEL lets warnings through.
inline bool ForceOverflowCheck() {
  static const bool on = []() -> bool {
    const auto decision = force_overflow_check::Decide(std::getenv(force_overflow_check::kVariable), []() -> bool {
      return force_overflow_check::IsReleaseAtLeast910(force_overflow_check::QueryCannVersion());
    });
    if (decision == force_overflow_check::Decision::kVersionTooLow) {
      ASCEND_LOGW("FORCE_OVERFLOW_CHECK=1 needs CANN >= 9.1.0 and is ignored.");
    }
    return decision == force_overflow_check::Decision::kOn;
  }();
  return on;
}

} // namespace c10_npu
