// Stand-in: errors are thrown. Our own text, for the tests only.
#pragma once
#include <stdexcept>
#define TORCH_CHECK(condition, ...)                        \
  do {                                                     \
    if (!(condition)) throw std::runtime_error(#condition); \
  } while (0)
#define PTA_ERROR(...) 0
#define PROF_ERROR(...) 0
#define C10_UNLIKELY(condition) (condition)
#define ACL_CALL_LOG(...) ((void)0)
