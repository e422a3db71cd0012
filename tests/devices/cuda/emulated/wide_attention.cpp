// `wide_attention.cu` on a CPU.
#include "wide_attention.cu"

#include "fibers.h"

extern "C" u64 run(const Wide* wide, int num_blocks, int num_threads, int shared_bytes) {
  return host::run<wide_attention>(wide, num_blocks, num_threads, shared_bytes);
}
