// Stand-in for the part of CANN's interface that stream creation and version queries use. Our own text.
#pragma once
#include <cstdint>
using aclError = int;
using aclrtStream = void*;
constexpr int ACL_SUCCESS = 0, ACL_ERROR_NONE = 0, ACL_RT_SUCCESS = 0;
constexpr int ACL_ERROR = 500000, ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000, ACL_ERROR_INVALID_PARAM = 100000;
constexpr uint64_t ACL_STOP_ON_FAILURE = 1, ACL_CONTINUE_ON_FAILURE = 0;
#define ACL_PKG_VERSION_MAX_SIZE 128
#define ACL_PKG_VERSION_PARTS_MAX_SIZE 64
enum aclCANNPackageName {
  ACL_PKG_NAME_CANN, ACL_PKG_NAME_RUNTIME, ACL_PKG_NAME_COMPILER, ACL_PKG_NAME_HCCL,
  ACL_PKG_NAME_TOOLKIT, ACL_PKG_NAME_OPP, ACL_PKG_NAME_OPP_KERNEL, ACL_PKG_NAME_DRIVER
};
struct aclCANNPackageVersion {
  char version[1024];
};
extern "C" {
aclError aclInit(const char*);
aclError aclrtSetDevice(int32_t);
aclError aclrtCreateStream(aclrtStream*);
aclError aclrtCreateStreamWithConfig(aclrtStream*, uint32_t, uint32_t);
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t);
aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t*);
aclError aclsysGetCANNVersion(int, char*);
}
