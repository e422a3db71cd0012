// `wide_attention.cu` on a CPU.
#include "wide_attention.cu"

#include "fibers.h"

namespace {
const Wide* given;

void begin() {
  wide_attention(*given);
  host::end();
}
}  // namespace

// How many turns it took; 0: nobody could go on.
extern "C" u64 run(const Wide* wide, int num_blocks, int num_threads, int shared_bytes) {
  given = wide;
  host::num_blocks = num_blocks;
  return host::run(begin, num_threads, shared_bytes);
}
