// The instruction sets of this translation unit, from the compiler's flags. Kernels include their files by these
// macros; NEEDED_FEATURES lists the features that a CPU must have, by the names of features.h.
//
// QUIRE_PORTABLE restricts a variant to plain C++ where the compiler's baseline has more: 64-bit ARM always has NEON.

#pragma once

#if !defined(QUIRE_PORTABLE)

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns about its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#define QUIRE_AVX2 1
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define QUIRE_AVX512 1
#if defined(__AVX512VNNI__)
#define QUIRE_AVX512_VNNI 1
#endif
#if defined(__AVX512BF16__)
#define QUIRE_AVX512_BF16 1
#endif
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#define QUIRE_AMX 1
#endif
#elif defined(__AVXVNNI__)
#define QUIRE_AVX_VNNI 1
#endif

#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define QUIRE_NEON 1
#if defined(__ARM_FEATURE_DOTPROD)
#define QUIRE_DOTPROD 1
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define QUIRE_I8MM 1
#endif
#endif

#endif

#if QUIRE_AMX || QUIRE_EMULATED_TILES
#define QUIRE_TILES 1
#endif

#endif

namespace quire {

[[maybe_unused]] static constexpr const char *NEEDED_FEATURES[] = {
#if QUIRE_AVX2
    "avx2", "fma", "f16c",
#endif
#if QUIRE_AVX512
    "avx512f", "avx512bw", "avx512vl", "avx512dq",
#endif
#if QUIRE_AVX512_VNNI
    "avx512_vnni",
#endif
#if QUIRE_AVX512_BF16
    "avx512_bf16",
#endif
#if QUIRE_AMX
    "amx_tile", "amx_int8",
#endif
#if QUIRE_AVX_VNNI
    "avx_vnni",
#endif
#if QUIRE_NEON
    "asimd",
#endif
#if QUIRE_DOTPROD
    "asimddp",
#endif
#if QUIRE_I8MM
    "i8mm",
#endif
    nullptr,
};

}  // namespace quire
