// Eight floats at once, in the words that kernels are written with. Included by kernels.cpp alone, inside the namespace
// of one variant, so that two variants never share a symbol. Each instruction set has a file of:
//
//   F8                           eight floats, a lane each
//   load store set1 + - * /      bit by bit what a float does in every lane
//   fma max min magnitude nearest
//   load(halves, is_bf16), load(int8), store_f16
//   power_of_two(a)              2 ** a for whole numbers from -126 to 127
//   between(a, begin, end, b)    lanes begin..end - 1 of a, and b elsewhere
//   sum, largest                 of all lanes; a sum is always the tree ((0+4)+(2+6)) + ((1+5)+(3+7))
//
// `fma` may round once or twice (portable): a variant is equal to itself at any batch size, not to another one. The
// compiler must not fuse on its own (-ffp-contract=off), or two places would round the same sum differently.

#if QUIRE_AVX2
#include "simd_avx2.h"
#elif QUIRE_NEON
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

#if defined(__GNUC__)
inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
#else
inline void prefetch(const void *) {}
#endif

// Loops over the vectors of a block are written out, so that every shift and mask in them is a constant.
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define QUIRE_UNROLL _Pragma("GCC unroll 8")
#else
#define QUIRE_UNROLL
#endif

// e ** x to about one unit in the last place; what would leave the range of float32 is held at its ends.
inline F8 exponential(F8 x) {
    x = min(max(x, set1(-87.0f)), set1(88.0f));
    const F8 n = nearest(x * set1(1.44269504f));
    F8 r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    F8 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p * r, r, r + set1(1.0f));
    return p * power_of_two(n);
}
