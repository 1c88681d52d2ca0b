// Asks the pure decision for each line "value<TAB>allowed<TAB>inf_nan" of standard input ("-" for an unset value)
// and prints "decision switch" with decision 0 not requested, 1 version too low, 2 on; a query that throws is "throw".
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>

#include "ForceOverflowCheckDecision.h"
#include "ForceOverflowCheckVersion.h"

using namespace c10_npu::force_overflow_check;

int main() {
  std::string value, version, inf_nan;
  while (std::getline(std::cin, value, '\t') && std::getline(std::cin, version, '\t') && std::getline(std::cin, inf_nan)) {
    int asked = 0;
    const Decision decision = Decide(value == "-" ? nullptr : value.c_str(), [&]() -> bool {
      asked++;
      if (version == "!") {
        throw std::runtime_error("query failed");
      }
      return IsReleaseAtLeast910(version);
    });
    std::printf("%d %d %d\n", static_cast<int>(decision), NeedsOverflowSwitch(inf_nan == "1", decision), asked);
  }
  return 0;
}
