// Runs the stream creation of a patched torch_npu tree alone: the function is cut out of its file at test time
// (created_stream.inc), the gate headers are those put into the tree, CANN is simulated.
// Prints: streams with the switch, streams made, warnings about FORCE_OVERFLOW_CHECK.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define BUILD_LIBTORCH
#include "torch_npu/csrc/core/npu/NPUException.h"
#include "torch_npu/csrc/core/npu/ForceOverflowCheck.h"
#include "torch_npu/csrc/core/npu/interface/AclInterface.h"
#include "torch_npu/csrc/core/npu/register/FunctionLoader.h"

int force_overflow_warnings = 0;

namespace c10_npu {
bool IsSupportInfNan() {
  return std::getenv("OVF_SIM_SATURATION") == nullptr;
}
namespace acl {
#include "created_stream.inc"
} // namespace acl
} // namespace c10_npu

int main() {
  aclInit(nullptr);
  aclrtSetDevice(0);
  int on = 0;
  constexpr int kStreams = 3;
  for (int i = 0; i < kStreams; i++) {
    aclrtStream stream = nullptr;
    uint32_t flag = 0;
    if (c10_npu::acl::AclrtCreateStreamWithConfig(&stream, 0, 0) != ACL_SUCCESS ||
        aclrtGetStreamOverflowSwitch(stream, &flag) != ACL_SUCCESS) {
      return 1;
    }
    on += flag != 0;
    // Set after the first stream: the decision is made, so this must change nothing.
    setenv("FORCE_OVERFLOW_CHECK", "1", 1);
  }
  std::printf("%d %d %d\n", on, kStreams, force_overflow_warnings);
  return 0;
}
