// What this machine could do at most: the rates that no kernel exceeds, for benchmarks to measure themselves against.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

class Pool;

// The innermost loops, compiled for one instruction set. Their answers only keep the compiler from leaving work out.
struct Roof {
    const char *name;
    int multiply_adds;                    // of 8-bit numbers, in one round of `multiply`
    int64_t (*multiply)(int64_t rounds);  // in registers alone
    uint64_t (*read)(const uint8_t *from, size_t num_bytes);
};

// By all threads of the pool; the best of several looks within about so many seconds. `variant` names kernels.
double multiply_adds_per_second(const char *variant, Pool &pool, double seconds);
double read_bytes_per_second(const char *variant, Pool &pool, double seconds);

}  // namespace quire
