#include "file_blocks.h"

#include <cstring>

namespace quire {

namespace {

uint16_t half_at(const uint8_t *p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// --- ggml's ways to pack bits; compare quant/bits.py

// The low halves of `count` bytes, then the high halves.
void nibbles(const uint8_t *from, int num_bytes, uint8_t *to) {
    for (int i = 0; i < num_bytes; ++i) to[i] = from[i] & 15, to[num_bytes + i] = from[i] >> 4;
}

// Every 32 bytes hold 8 / width runs of 32 values, the lowest bits are the first run. They become bits `at` and up.
void add_planes(const uint8_t *from, int width, int at, uint8_t *to) {
    const int per_byte = 8 / width, mask = (1 << width) - 1;
    for (int run = 0; run < SUPER; ++run)
        for (int i = 0; i < BLOCK; ++i) {
            const int bits = from[run / per_byte * BLOCK + i] >> (run % per_byte * width) & mask;
            to[run * BLOCK + i] = static_cast<uint8_t>(to[run * BLOCK + i] | bits << at);
        }
}

// 8 scales and 8 minima of 6 bits in 12 bytes (Q4_K, Q5_K).
void scales_and_minima(const uint8_t *from, FileBlock &to) {
    for (int i = 0; i < 4; ++i) {
        to.scales[i] = static_cast<int8_t>(from[i] & 63);
        to.minima[i] = static_cast<int8_t>(-(from[4 + i] & 63));
        to.scales[4 + i] = static_cast<int8_t>((from[8 + i] & 15) | from[i] >> 6 << 4);
        to.minima[4 + i] = static_cast<int8_t>(-(from[8 + i] >> 4 | from[4 + i] >> 6 << 4));
    }
}

// --- blocks of 32

void read_q8_0(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from);
    std::memcpy(to.quants, from + 2, BLOCK);
}

void read_q4_0(const uint8_t *from, FileBlock &to) {  // and IQ4_NL
    to.scale = half_at(from);
    nibbles(from + 2, 16, to.quants);
}

void read_q4_1(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from), to.minimum = half_at(from + 2);
    nibbles(from + 4, 16, to.quants);
}

void fifth_bits(const uint8_t *from, uint8_t *to) {
    for (int i = 0; i < BLOCK; ++i) to[i] = static_cast<uint8_t>(to[i] | (from[i / 8] >> i % 8 & 1) << 4);
}

void read_q5_0(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from);
    nibbles(from + 6, 16, to.quants);
    fifth_bits(from + 2, to.quants);
}

void read_q5_1(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from), to.minimum = half_at(from + 2);
    nibbles(from + 8, 16, to.quants);
    fifth_bits(from + 4, to.quants);
}

// 2 ** (exponent - 128), halved because the levels are doubled. The two smallest are subnormal.
void read_mxfp4(const uint8_t *from, FileBlock &to) {
    const int exponent = from[0];
    to.scale = static_cast<uint16_t>(exponent > 1 ? (exponent - 1) << 7 : 32 << exponent);
    nibbles(from + 1, 16, to.quants);
}

// --- superblocks of 256

void read_q2_k(const uint8_t *from, FileBlock &to) {
    for (int i = 0; i < 16; ++i) {
        to.scales[i] = static_cast<int8_t>(from[i] & 15);
        to.minima[i] = static_cast<int8_t>(-(from[i] >> 4));
    }
    std::memset(to.quants, 0, sizeof to.quants);
    add_planes(from + 16, 2, 0, to.quants);
    to.scale = half_at(from + 80), to.minimum = half_at(from + 82);
}

void read_q3_k(const uint8_t *from, FileBlock &to) {
    std::memset(to.quants, 0, sizeof to.quants);
    add_planes(from + 32, 2, 0, to.quants);
    add_planes(from, 1, 2, to.quants);
    for (int i = 0; i < 16; ++i) {
        const int low = i < 8 ? from[96 + i] & 15 : from[88 + i] >> 4, high = from[104 + i % 4] >> 2 * (i / 4) & 3;
        to.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
    }
    to.scale = half_at(from + 108);
}

void read_q4_k(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from), to.minimum = half_at(from + 2);
    scales_and_minima(from + 4, to);
    for (int i = 0; i < 4; ++i) nibbles(from + 16 + 32 * i, 32, to.quants + 64 * i);
}

void read_q5_k(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from), to.minimum = half_at(from + 2);
    scales_and_minima(from + 4, to);
    for (int i = 0; i < 4; ++i) nibbles(from + 48 + 32 * i, 32, to.quants + 64 * i);
    add_planes(from + 16, 1, 4, to.quants);
}

void read_q6_k(const uint8_t *from, FileBlock &to) {
    for (int i = 0; i < 2; ++i) nibbles(from + 64 * i, 64, to.quants + 128 * i);
    add_planes(from + 128, 2, 4, to.quants);
    std::memcpy(to.scales, from + 192, 16);
    to.scale = half_at(from + 208);
}

void read_iq4_xs(const uint8_t *from, FileBlock &to) {
    to.scale = half_at(from);
    for (int i = 0; i < 8; ++i) {
        const int low = from[4 + i / 2] >> 4 * (i % 2) & 15, high = from[2 + i / 4] >> 2 * (i % 4) & 3;
        to.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
        nibbles(from + 8 + 16 * i, 16, to.quants + BLOCK * i);
    }
}

struct Source {
    size_t bytes;
    ReadBlock read;
};

Source source_of(Format f) {
    switch (f) {
        case Format::Q8_0: return {34, read_q8_0};
        case Format::Q4_0: return {18, read_q4_0};
        case Format::Q4_1: return {20, read_q4_1};
        case Format::Q5_0: return {22, read_q5_0};
        case Format::Q5_1: return {24, read_q5_1};
        case Format::Q2_K: return {84, read_q2_k};
        case Format::Q3_K: return {110, read_q3_k};
        case Format::Q4_K: return {144, read_q4_k};
        case Format::Q5_K: return {176, read_q5_k};
        case Format::Q6_K: return {210, read_q6_k};
        case Format::IQ4_NL: return {18, read_q4_0};
        case Format::IQ4_XS: return {136, read_iq4_xs};
        case Format::MXFP4: return {17, read_mxfp4};
        case Format::F32: case Format::F16: case Format::BF16: break;
    }
    return {0, nullptr};  // not in blocks
}

}  // namespace

ReadBlock reader_of(Format f) { return source_of(f).read; }
size_t file_block_bytes(Format f) { return source_of(f).bytes; }

}  // namespace quire
