// The features of this machine's CPU.
//
// A feature is listed only if it is usable: the CPU has the instructions, and the operating system saves the registers
// that they touch and lets this process use them. Names are those of /proc/cpuinfo, so that a user can compare.

#include "features.h"

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#define QUIRE_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace quire {

#if QUIRE_X86

namespace {

enum Register { EAX, EBX, ECX, EDX };

// One bit of one cpuid leaf, and the bits of XCR0 that the operating system must have set for it.
struct Feature {
    const char *name;
    uint32_t leaf, subleaf;
    Register reg;
    int bit;
    uint64_t state;
};

constexpr uint64_t NONE = 0;
constexpr uint64_t YMM = 0x06;  // xmm and ymm registers
constexpr uint64_t ZMM = 0xe6;  // those, the mask registers and zmm
constexpr uint64_t TILES = 0x60000;  // tiles and their shapes

constexpr Feature FEATURES[] = {
    {"sse4_1", 1, 0, ECX, 19, NONE},      {"sse4_2", 1, 0, ECX, 20, NONE},
    {"avx", 1, 0, ECX, 28, YMM},          {"f16c", 1, 0, ECX, 29, YMM},
    {"fma", 1, 0, ECX, 12, YMM},          {"bmi1", 7, 0, EBX, 3, NONE},
    {"bmi2", 7, 0, EBX, 8, NONE},         {"avx2", 7, 0, EBX, 5, YMM},
    {"avx_vnni", 7, 1, EAX, 4, YMM},      {"avx512f", 7, 0, EBX, 16, ZMM},
    {"avx512dq", 7, 0, EBX, 17, ZMM},     {"avx512bw", 7, 0, EBX, 30, ZMM},
    {"avx512vl", 7, 0, EBX, 31, ZMM},     {"avx512_vnni", 7, 0, ECX, 11, ZMM},
    {"avx512_bf16", 7, 1, EAX, 5, ZMM},   {"avx512_fp16", 7, 0, EDX, 23, ZMM},
    {"amx_tile", 7, 0, EDX, 24, TILES},   {"amx_int8", 7, 0, EDX, 25, TILES},
    {"amx_bf16", 7, 0, EDX, 22, TILES},
};

// The four registers of a cpuid leaf; zeros if the CPU does not have the leaf.
struct Leaf {
    uint32_t regs[4] = {0, 0, 0, 0};

    Leaf(uint32_t leaf, uint32_t subleaf) {
#if defined(_MSC_VER)
        int out[4];
        __cpuid(out, 0);
        if (static_cast<uint32_t>(out[0]) < leaf) return;
        __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
        for (int i = 0; i < 4; ++i) regs[i] = static_cast<uint32_t>(out[i]);
#else
        __get_cpuid_count(leaf, subleaf, &regs[EAX], &regs[EBX], &regs[ECX], &regs[EDX]);
#endif
    }
};

// XCR0: which registers the operating system saves at a task switch. Zero if it never enabled xsave.
uint64_t saved_state() {
    constexpr uint32_t OSXSAVE = 1u << 27;
    if (!(Leaf(1, 0).regs[ECX] & OSXSAVE)) return 0;
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
#endif
}

// Linux saves tiles only of processes that have asked for them. The permission is the process's, for all its threads,
// and its children inherit it.
bool is_allowed(uint64_t state) {
    if (state != TILES) return true;
#if defined(__linux__) && defined(SYS_arch_prctl)
    constexpr long REQUEST_STATE = 0x1023, TILE_DATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
    return granted;
#else
    return false;
#endif
}

}  // namespace

std::vector<std::string> features() {
    const uint64_t saved = saved_state();
    std::vector<std::string> found;
    for (const Feature &f : FEATURES) {
        // Eax of leaf 7 is its highest subleaf; results beyond it are undefined.
        if (f.leaf == 7 && f.subleaf > Leaf(7, 0).regs[EAX]) continue;
        const bool present = (Leaf(f.leaf, f.subleaf).regs[f.reg] >> f.bit) & 1u;
        if (present && (saved & f.state) == f.state && is_allowed(f.state)) found.emplace_back(f.name);
    }
    return found;
}

bool is_intel() {
    const Leaf vendor(0, 0);
    return vendor.regs[EBX] == 0x756e6547;  // "Genu", of GenuineIntel
}

#elif defined(__aarch64__)

#if defined(__APPLE__)

namespace {

bool has(const char *name) {
    int32_t answer = 0;
    size_t size = sizeof answer;
    return sysctlbyname(name, &answer, &size, nullptr, 0) == 0 && answer != 0;
}

}  // namespace

#endif

std::vector<std::string> features() {
    std::vector<std::string> found = {"asimd"};  // part of the base architecture
#if defined(__linux__)
    const unsigned long caps = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
    if (caps & HWCAP_ASIMDHP) found.emplace_back("asimdhp");
    if (caps & HWCAP_ASIMDDP) found.emplace_back("asimddp");
    if (caps & HWCAP_SVE) found.emplace_back("sve");
    if (more & HWCAP2_I8MM) found.emplace_back("i8mm");
    if (more & HWCAP2_BF16) found.emplace_back("bf16");
#elif defined(__APPLE__)
    if (has("hw.optional.arm.FEAT_FP16")) found.emplace_back("asimdhp");
    if (has("hw.optional.arm.FEAT_DotProd")) found.emplace_back("asimddp");
    if (has("hw.optional.arm.FEAT_I8MM")) found.emplace_back("i8mm");
    if (has("hw.optional.arm.FEAT_BF16")) found.emplace_back("bf16");
#else  // elsewhere only the compiler's target is known
#if defined(__ARM_FEATURE_DOTPROD)
    found.emplace_back("asimddp");
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
    found.emplace_back("i8mm");
#endif
#endif
    return found;
}

#else

std::vector<std::string> features() { return {}; }

#endif

#if !QUIRE_X86
bool is_intel() { return false; }
#endif

}  // namespace quire
