// The peak rates of this machine, which no kernel exceeds: a reference for benchmarks.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

class Pool;

// The innermost loops, compiled for one instruction set. Their results only keep the compiler from removing work.
struct Roof {
    const char *name;
    int multiply_adds;                    // of 8-bit numbers, in one round of `multiply`
    int64_t (*multiply)(int64_t rounds);  // in registers alone
    uint64_t (*read)(const uint8_t *from, size_t num_bytes);
};

// By all threads of the pool: the best of several measurements within about `seconds`. `variant` names kernels.
double multiply_adds_per_second(const char *variant, Pool &pool, double seconds);
double read_bytes_per_second(const char *variant, Pool &pool, double seconds);

}  // namespace quire
