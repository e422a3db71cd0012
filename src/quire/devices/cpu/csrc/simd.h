// Vectors of eight floats: the operations that kernels are written with. Included only by kernels.cpp, inside the
// namespace of one variant, so that two variants never share a symbol. Each instruction set has a file with:
//
//   F8                           eight floats, a lane each
//   load store set1 + - * /      lane by lane, with the bits of scalar floats
//   fma max min magnitude nearest
//   load(halves, is_bf16), load(int8), store_f16
//   store_bytes(p, a, b)         sixteen integers as bytes, and their sum
//   power_of_two(a)              2 ** a for integers from -126 to 127
//   between(a, begin, end, b)    lanes begin..end - 1 of a, and b elsewhere
//   sum, largest                 of all lanes; a sum is always the tree ((0+4)+(2+6)) + ((1+5)+(3+7))
//
// F8x2 is sixteen floats, with the operations that are needed: one register in AVX-512, else a pair. Code for any width
// W uses set1<W> and load<W>; Widest fills a register.
//
// `fma` may round once or twice (portable): a variant is equal to itself at any batch size, not to another one. The
// compiler must not fuse by itself (-ffp-contract=off), or the same sum would be rounded differently in two places.

#if QUIRE_AVX2
#include "simd_avx2.h"
#elif QUIRE_NEON
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

#if !QUIRE_AVX2
inline int32_t store_bytes(int8_t *p, F8 a, F8 b) {
    float x[2 * LANES];
    store(x, a), store(x + LANES, b);
    int32_t total = 0;
    for (int i = 0; i < 2 * LANES; ++i) {
        const int32_t value = static_cast<int32_t>(x[i]);
        p[i] = static_cast<int8_t>(value);
        total += value;
    }
    return total;
}
#endif

struct F8x2;
template <class W>
inline W set1(float x);
template <class W>
inline W load(const float *p);
template <class W>
inline W load(const uint16_t *p, bool is_bf16);

template <>
inline F8 set1<F8>(float x) {
    return set1(x);
}

template <>
inline F8 load<F8>(const float *p) {
    return load(p);
}

template <>
inline F8 load<F8>(const uint16_t *p, bool is_bf16) {
    return load(p, is_bf16);
}

#if QUIRE_AVX512
#include "simd_avx512.h"
using Widest = F8x2;
#else
#include "simd_pair.h"
using Widest = F8;
#endif

constexpr int WIDEST = sizeof(Widest) / sizeof(float);

// A number for each row of a panel, or of two panels if W holds both: those of the second are `apart` bytes further on.
template <class W, class Number, class... Kind>
inline W load_rows(const Number *p, size_t apart, Kind... kind) {
    if constexpr (sizeof(W) == sizeof(F8)) {
        return load(p, kind...);
    } else {
        const uint8_t *next = reinterpret_cast<const uint8_t *>(p) + apart;
        return join(load(p, kind...), load(reinterpret_cast<const Number *>(next), kind...));
    }
}

inline float sum(F8x2 a) { return sum(low_of(a) + high_of(a)); }
inline float largest(F8x2 a) { return largest(max(low_of(a), high_of(a))); }

#if defined(__GNUC__)
inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
#else
inline void prefetch(const void *) {}
#endif

// Unrolls the next loop completely: its array is kept in registers, and every shift and mask is a constant.
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define QUIRE_UNROLL _Pragma("GCC unroll 8")
#else
#define QUIRE_UNROLL
#endif

// e ** x to about one unit in the last place, clamped to the range of float32.
template <class W>
inline W exponential(W x) {
    x = min(max(x, set1<W>(-87.0f)), set1<W>(88.0f));
    const W n = nearest(x * set1<W>(1.44269504f));
    W r = fma(n, set1<W>(-0.693359375f), x);
    r = fma(n, set1<W>(2.12194440e-4f), r);
    W p = set1<W>(1.9875691500e-4f);
    p = fma(p, r, set1<W>(1.3981999507e-3f));
    p = fma(p, r, set1<W>(8.3334519073e-3f));
    p = fma(p, r, set1<W>(4.1665795894e-2f));
    p = fma(p, r, set1<W>(1.6666665459e-1f));
    p = fma(p, r, set1<W>(5.0000001201e-1f));
    p = fma(p * r, r, r + set1<W>(1.0f));
    return p * power_of_two(n);
}

// 2 ** x to about two units in the last place, for x up to 127; below -125 it is that of -125.
template <class W>
inline W power(W x) {
    x = max(x, set1<W>(-125.0f));
    const W n = nearest(x), r = x - n;
    W p = set1<W>(1.326472033e-3f);
    p = fma(p, r, set1<W>(9.671513923e-3f));
    p = fma(p, r, set1<W>(5.550733954e-2f));
    p = fma(p, r, set1<W>(2.402224243e-1f));
    p = fma(p, r, set1<W>(6.931470037e-1f));
    p = fma(p, r, set1<W>(1.0f));
    return p * power_of_two(n);
}
