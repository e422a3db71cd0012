// The tables of kernels that were compiled. CMake names them in QUIRE_VARIANTS, the slowest first: X(baseline) X(avx2).

#include <algorithm>

#include "features.h"

namespace quire {

extern const size_t FAR_AHEAD;
const size_t FAR_AHEAD = is_intel() ? 8192 : 0;

#define X(name)                      \
    namespace name {                 \
    extern const Kernels KERNELS;    \
    }
QUIRE_VARIANTS
#undef X

namespace {

bool runs_here(const Kernels &kernels, const std::vector<std::string> &found) {
    for (const char *const *need = kernels.needs; *need; ++need)
        if (std::find(found.begin(), found.end(), *need) == found.end()) return false;
    return true;
}

}  // namespace

std::vector<const Kernels *> compiled_kernels() {
#define X(name) &name::KERNELS,
    return {QUIRE_VARIANTS};
#undef X
}

std::vector<const Kernels *> usable_kernels() {
    const std::vector<std::string> found = features();
    std::vector<const Kernels *> usable;
    for (const Kernels *kernels : compiled_kernels())
        if (runs_here(*kernels, found)) usable.insert(usable.begin(), kernels);
    return usable;
}

}  // namespace quire
