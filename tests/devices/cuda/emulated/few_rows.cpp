// `few_rows.cu` on a CPU.
#include "few_rows.cu"

namespace {
const Step* given;

void begin() {
  few_rows(*given);
  host::now->is_over = true;
  host::yield();
}
}  // namespace

// How many turns it took; 0: nobody could go on.
extern "C" u64 run(const Step* step, int num_blocks, int num_threads, int shared_bytes) {
  constexpr int STACK = 1 << 16;
  given = step;
  host::num_blocks = num_blocks;
  host::blocks = std::vector<host::Block>(num_blocks);
  for (host::Block& block : host::blocks) {
    block.shared.assign(shared_bytes, 0xff);  // no number
    block.warps.resize(num_threads / 32);
  }
  std::vector<host::Fiber> fibers(num_blocks * num_threads);
  for (size_t i = 0; i < fibers.size(); ++i) {
    host::Fiber& fiber = fibers[i];
    fiber.block = (int)i / num_threads, fiber.thread = (int)i % num_threads;
    fiber.stack.reset(new char[STACK]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    makecontext(&fiber.context, begin, 0);
  }
  constexpr u64 TOO_MANY = 1000000;
  for (u64 turn = 1; turn < TOO_MANY; ++turn) {
    bool is_over = true;
    for (host::Fiber& fiber : fibers) {
      if (fiber.is_over) continue;
      is_over = false;
      host::now = &fiber;
      swapcontext(&host::scheduler, &fiber.context);
    }
    if (is_over) return turn;
  }
  return 0;
}
