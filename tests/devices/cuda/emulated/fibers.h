// A kernel's threads, in turns until all are done.
#pragma once

#include "emulated.h"

namespace host {

// What each thread does, from its beginning to its end.
template <auto KERNEL, class Given>
struct Thread {
  static inline const Given* given;

  static void begin() {
    KERNEL(*given);
    now->is_over = true;
    yield();
  }
};

// How many turns it took; 0: nobody could go on.
template <auto KERNEL, class Given>
u64 run(const Given* given, int count, int num_threads, int shared_bytes) {
  constexpr int STACK = 1 << 16;
  Thread<KERNEL, Given>::given = given;
  num_blocks = count;
  blocks = std::vector<Block>(num_blocks);
  for (Block& block : blocks) {
    block.shared.assign(shared_bytes, 0xff);  // no number
    block.warps.resize(num_threads / 32);
    block.products.resize((num_threads + 127) / 128);
  }
  std::vector<Fiber> fibers(num_blocks * num_threads);
  for (size_t i = 0; i < fibers.size(); ++i) {
    Fiber& fiber = fibers[i];
    fiber.block = (int)i / num_threads, fiber.thread = (int)i % num_threads;
    fiber.stack.reset(new char[STACK]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    makecontext(&fiber.context, Thread<KERNEL, Given>::begin, 0);
  }
  constexpr u64 TOO_MANY = 1000000;
  for (u64 turn = 1; turn < TOO_MANY; ++turn) {
    bool is_over = true;
    for (Fiber& fiber : fibers) {
      if (fiber.is_over) continue;
      is_over = false;
      now = &fiber;
      swapcontext(&scheduler, &fiber.context);
    }
    if (is_over) return turn;
  }
  return 0;
}

}  // namespace host
