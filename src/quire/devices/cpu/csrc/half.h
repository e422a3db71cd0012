// 16-bit floats without special instructions: for packing, and the portable kernels.
//
// Everything is `static`: each translation unit has its own copy, compiled for its own instruction set.

#pragma once

#include <cstdint>
#include <cstring>

namespace quire::half {

static inline float from_bits(uint32_t bits) {
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

static inline uint32_t to_bits(float x) {
    uint32_t out;
    std::memcpy(&out, &x, sizeof out);
    return out;
}

static inline float from_bf16(uint16_t x) { return from_bits(static_cast<uint32_t>(x) << 16); }

// Ties to even. The increment would turn some NaN into infinities, so those keep a bit.
static inline uint16_t to_bf16(float x) {
    const uint32_t bits = to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float from_f16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));  // infinity, NaN
    if (rest >= 0x0400u) return from_bits(sign | ((rest << 13) + (112u << 23)));          // normal
    const float small = static_cast<float>(rest) * 5.9604644775390625e-8f;                // times 2 ** -24, exact
    return from_bits(sign | to_bits(small));
}

// Ties to even, subnormals kept: the same bits as the F16C instruction.
static inline uint16_t to_f16(float x) {
    const uint32_t bits = to_bits(x), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds beyond 65504
    if (magnitude >= 0x38800000u) {
        const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
    }
    // Subnormal: adding 0.5 puts the last bit that f16 has at the last bit of the sum, which rounds there.
    const float shifted = from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (to_bits(shifted) - 0x3f000000u));
}

}  // namespace quire::half
