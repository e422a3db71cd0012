// Runs the threads of a kernel as fibers, in turns, until all are done.
#pragma once

#include "emulated.h"

namespace host {

// The main function of each thread.
template <auto KERNEL, class Argument>
struct Thread {
  static inline const Argument* argument;

  static void begin() {
    KERNEL(*argument);
    current->is_over = true;
    yield();
  }
};

// Returns the number of turns; 0: deadlock.
template <auto KERNEL, class Argument>
u64 run(const Argument* argument, int count, int num_threads, int shared_bytes) {
  constexpr int STACK = 1 << 16;
  Thread<KERNEL, Argument>::argument = argument;
  num_blocks = count;
  blocks = std::vector<Block>(num_blocks);
  for (Block& block : blocks) {
    block.shared.assign(shared_bytes, 0xff);  // NaN
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
    makecontext(&fiber.context, Thread<KERNEL, Argument>::begin, 0);
  }
  constexpr u64 TOO_MANY = 1000000;
  for (u64 turn = 1; turn < TOO_MANY; ++turn) {
    bool is_over = true;
    for (Fiber& fiber : fibers) {
      if (fiber.is_over) continue;
      is_over = false;
      current = &fiber;
      swapcontext(&scheduler, &fiber.context);
    }
    if (is_over) return turn;
  }
  return 0;
}

}  // namespace host
