// Which instruction sets this machine has, and which of the compiled kernels it can run.

#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace quire {

// By their names in /proc/cpuinfo.
std::vector<std::string> features();

// Whether the processor is one of Intel's.
bool is_intel();

// All that were compiled, the slowest first.
std::vector<const Kernels *> compiled_kernels();

// Those that run here, the fastest first.
std::vector<const Kernels *> usable_kernels();

}  // namespace quire
