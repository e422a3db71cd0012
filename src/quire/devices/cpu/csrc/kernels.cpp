// All kernels, for the instruction set that this file is compiled for. CMake compiles it once for each variant and
// names it by QUIRE_VARIANT.
//
// No standard library templates may be emitted here: the linker keeps one copy of each, and must not keep one that an
// older CPU cannot run.

#include <cmath>
#include <type_traits>

#include "half.h"
#include "isa.h"
#include "kernels.h"

namespace quire::QUIRE_VARIANT {

namespace {

#include "simd.h"
#include "tokenwise.h"
#include "maps.h"
#include "dots_portable.h"
#include "stream.h"
#if QUIRE_AVX2
#include "bytes.h"
#if QUIRE_AVX512_VNNI || QUIRE_AVX_VNNI
#include "dots_vnni.h"
#else
#include "dots_madd.h"
#endif
#elif QUIRE_NEON
#include "dots_neon.h"
#else
using portable::block_sums;
#endif
#include "products.h"
#include "attention.h"
#include "route.h"
#include "recurrence.h"

const char *rounding([[maybe_unused]] Format format) {
#if QUIRE_AVX512_BF16
    if (format == Format::BF16) return "pairs of bf16";
#endif
#if QUIRE_AVX2 || QUIRE_NEON
    return "fused";
#else
    return "portable";
#endif
}

#define QUIRE_TEXT(x) #x
#define QUIRE_NAME(x) QUIRE_TEXT(x)

}  // namespace

extern const Kernels KERNELS;
const Kernels KERNELS = {
    QUIRE_NAME(QUIRE_VARIANT), NEEDED_FEATURES, CHUNKS,        rounding,   largest_of, embed,        norm,       gather,
    map,                       rope,            write_kv,      attend,     product,    gate,         route,
    combine,                   short_conv,      delta_prepare, delta_rule, log_decay,  scan_prepare, state_scan,
};

}  // namespace quire::QUIRE_VARIANT
