// Stand-in for torch_npu's wrappers. Our own text, for the tests only.
#pragma once
#include "third_party/acl/inc/acl/acl.h"
namespace c10_npu {
bool IsSupportInfNan();
namespace acl {
inline aclError AclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  return aclsysGetCANNVersion(name, version->version);
}
inline aclError AclsysGetVersionStr(char*, char*) {
  return ACL_ERROR;
}
inline aclError AclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag) {
  return aclrtSetStreamOverflowSwitch(stream, flag);
}
inline aclError AclrtSetStreamFailureMode(aclrtStream, uint64_t) {
  return ACL_SUCCESS;
}
} // namespace acl
} // namespace c10_npu
