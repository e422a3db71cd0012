// The loops of roof.h, for the instruction set that this file is compiled for: as kernels.cpp, once for each variant.
//
// Multiply-adds of bytes, in the widest instruction that the variant has for them. AVX2 adds pairs
// to 16 bits and needs another instruction to sum them; only that one is included here, though a kernel must also widen
// its sums from time to time. So kernels stay below this rate, by an amount that depends on the format.

#include <cstring>

#include "roof.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace quire::QUIRE_VARIANT {

namespace {

// Makes x opaque to the compiler, so that results computed from it are computed again.
template <class Vector>
inline void forget([[maybe_unused]] Vector &x) {
#if defined(__AVX2__)
    __asm__ volatile("" : "+v"(x));
#elif defined(__ARM_FEATURE_DOTPROD)
    __asm__ volatile("" : "+w"(x));
#endif
}

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#define QUIRE_TILE_ROOF 1
#include "tiles.h"
#elif defined(__AVX512F__) && defined(__AVX512VNNI__)

constexpr int BYTES = 64;
using Vector = __m512i;
inline Vector ones() { return _mm512_set1_epi8(1); }
inline Vector multiply_add(Vector sum, Vector a, Vector b) { return _mm512_dpbusd_epi32(sum, a, b); }

#elif defined(__AVXVNNI__)

constexpr int BYTES = 32;
using Vector = __m256i;
inline Vector ones() { return _mm256_set1_epi8(1); }
inline Vector multiply_add(Vector sum, Vector a, Vector b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }

#elif defined(__AVX512BW__)

constexpr int BYTES = 64;
using Vector = __m512i;
inline Vector ones() { return _mm512_set1_epi8(1); }
inline Vector multiply_add(Vector sum, Vector a, Vector b) {
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(a, b));
}

#elif defined(__AVX2__)

constexpr int BYTES = 32;
using Vector = __m256i;
inline Vector ones() { return _mm256_set1_epi8(1); }
inline Vector multiply_add(Vector sum, Vector a, Vector b) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
}

#elif defined(__ARM_FEATURE_DOTPROD)

constexpr int BYTES = 16;
using Vector = int32x4_t;
inline Vector ones() { return vreinterpretq_s32_s8(vdupq_n_s8(1)); }
inline Vector multiply_add(Vector sum, Vector a, Vector b) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
}

#else
#define QUIRE_PORTABLE_ROOF 1
#endif

#if QUIRE_PORTABLE_ROOF

constexpr int MULTIPLY_ADDS = 64;

// Plain C++, vectorized by the compiler.
int64_t multiply(int64_t rounds) {
    int16_t a[MULTIPLY_ADDS], b[MULTIPLY_ADDS];
    int32_t sums[MULTIPLY_ADDS] = {};
    for (int i = 0; i < MULTIPLY_ADDS; ++i) a[i] = static_cast<int16_t>(i & 7), b[i] = static_cast<int16_t>(i & 3);
    for (int64_t round = 0; round < rounds; ++round)
        for (int i = 0; i < MULTIPLY_ADDS; ++i) {
            sums[i] = (sums[i] + a[i] * b[i]) & 0xffff;
            b[i] = static_cast<int16_t>(b[i] ^ 1);
        }
    int64_t all = 0;
    for (int32_t sum : sums) all += sum;
    return all;
}

#elif QUIRE_TILE_ROOF

constexpr int SUMS = 4, MULTIPLY_ADDS = SUMS * TILE_ROWS * TILE_ROWS * TILE_WIDTH;

int64_t multiply(int64_t rounds) {
    TileShapes shapes;
    for (int t = 0; t < SUMS + 2; ++t) shapes.set(t, TILE_ROWS, TILE_WIDTH);
    configure_tiles(shapes);
    for (int64_t round = 0; round < rounds; ++round) {
        add_tile_dots<0, 4, 5>(), add_tile_dots<1, 4, 5>();
        add_tile_dots<2, 4, 5>(), add_tile_dots<3, 4, 5>();
    }
    release_tiles();
    return 0;
}

#else

constexpr int SUMS = 12;  // independent, to hide the instruction's latency; with the operands they fit 16 registers
constexpr int MULTIPLY_ADDS = SUMS * BYTES;

// Separate variables: an array of sums would be kept in memory.
template <int N>
struct Registers {
    Vector sum = ones();
    Registers<N - 1> others;

    void add(Vector a, Vector &b) {
        forget(b);
        sum = multiply_add(sum, a, b);
        forget(sum);
        others.add(a, b);
    }
    Vector folded(Vector a) const { return multiply_add(others.folded(a), a, sum); }
};

template <>
struct Registers<0> {
    void add(Vector, Vector &) {}
    Vector folded(Vector a) const { return a; }
};

int64_t multiply(int64_t rounds) {
    Registers<SUMS> sums;
    Vector a = ones(), b = ones();
    for (int64_t round = 0; round < rounds; ++round) sums.add(a, b);
    const Vector all = sums.folded(a);
    int64_t seen;
    std::memcpy(&seen, &all, sizeof seen);
    return seen;
}

#endif

// Loops over a fixed number of words are compiled to the variant's loads.
uint64_t read(const uint8_t *from, size_t num_bytes) {
    constexpr size_t WORDS = 32;
    const uint64_t *words = reinterpret_cast<const uint64_t *>(from);
    uint64_t seen[WORDS] = {};
    for (size_t at = 0; at + WORDS <= num_bytes / sizeof(uint64_t); at += WORDS)
        for (size_t i = 0; i < WORDS; ++i) seen[i] ^= words[at + i];
    uint64_t all = 0;
    for (uint64_t each : seen) all ^= each;
    return all;
}

#define QUIRE_TEXT(x) #x
#define QUIRE_NAME(x) QUIRE_TEXT(x)

}  // namespace

extern const Roof ROOF;
const Roof ROOF = {QUIRE_NAME(QUIRE_VARIANT), MULTIPLY_ADDS, multiply, read};

}  // namespace quire::QUIRE_VARIANT
