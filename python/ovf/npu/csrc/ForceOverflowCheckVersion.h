// The CANN version test of FORCE_OVERFLOW_CHECK. Part of ovf; `ovf npu patch` puts it into a torch_npu tree.
//
// Not the tree's own IsGteCANNVersion: old branches have none, some take 9.1.0.RC1 for 9.1.0 or newer, and some read
// an uninitialised structure when the query fails. One rule for all trees, the same as the Python side's.
#pragma once

#include <dlfcn.h>
#include <string>

namespace c10_npu {
namespace force_overflow_check {

// Reads one run of digits at `at` and moves past it; -1 where there is none or it is absurdly long.
inline long ReadNumber(const std::string& text, size_t& at) {
  const size_t begin = at;
  long number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9' && at - begin < 9) {
    number = number * 10 + (text[at++] - '0');
  }
  return at == begin ? -1 : number;
}

// Whether `version` is a release "a.b.c" of digits only, at least 9.1.0. Pre-releases and builds ("9.1.0.RC1",
// "9.1.0-beta.1", "9.1.0.1") are refused, as the released wheels with the feature refuse them.
inline bool IsReleaseAtLeast910(const std::string& version) {
  long parts[3];
  size_t at = 0;
  for (int part = 0; part < 3; part++) {
    if (part > 0 && (at >= version.size() || version[at++] != '.')) {
      return false;
    }
    parts[part] = ReadNumber(version, at);
    if (parts[part] < 0) {
      return false;
    }
  }
  return at == version.size() && (parts[0] > 9 || (parts[0] == 9 && parts[1] >= 1));
}

// Asks CANN for its version through aclsysGetCANNVersion, looked up at run time because the CANN that such a tree
// was written for may lack it. "" where the function is missing or fails.
inline std::string QueryCannVersion() {
  // CANN: aclCANNPackageVersion begins with char version[128]; the rest are parts of it. 1024 bytes hold it all.
  struct PackageVersion {
    char version[1024];
  };
  constexpr int kPackageCann = 0; // ACL_PKG_NAME_CANN
  using Query = int (*)(int, PackageVersion*);
  void* library = dlopen("libascendcl.so", RTLD_LAZY);
  if (library == nullptr) {
    return "";
  }
  const auto query = reinterpret_cast<Query>(dlsym(library, "aclsysGetCANNVersion"));
  PackageVersion answer = {};
  if (query == nullptr || query(kPackageCann, &answer) != 0) {
    return "";
  }
  answer.version[127] = '\0';
  return answer.version;
}

} // namespace force_overflow_check
} // namespace c10_npu
