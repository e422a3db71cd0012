// `few_rows.cu` on a CPU.
#include "few_rows.cu"

#include "fibers.h"

extern "C" u64 run(const Step* step, int num_blocks, int num_threads, int shared_bytes) {
  return host::run<few_rows>(step, num_blocks, num_threads, shared_bytes);
}
