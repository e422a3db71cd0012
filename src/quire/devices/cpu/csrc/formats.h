// A description of each number format, and of the layout of its blocks in a panel (layout.h).
//
// A block is 32 neighbours of a row; weight = scale * (level - zero) (+ minimum), where the level is the quant itself
// or looked up. In a superblock of 8 blocks (K formats, IQ4_XS) scale and minimum are products: a float16 for the
// superblock, times a small integer for each part of a block. A part is the whole block, or a half of 16.
//
// A panel has the heads of all superblocks, padded to 64 bytes, then the quants of all blocks.
//
//   head     f16 scale [lane]; f16 minimum [lane], where there are minima; and in a superblock, for each block of it,
//            int8 scale [part][lane]; int8 minimum [part][lane], negative, since files subtract it
//   quants   The binary digits of a quant's width are its planes, the widest has its lowest bits: 4 = 4, 5 = 4 + 1,
//            6 = 4 + 2, 3 = 2 + 1. A block is 8 vectors of 4 columns, [lane][4]; a plane of w bits has w vectors of
//            bytes: vector v lies in bytes v * w / 8, at their bits v * w % 8 and up.
//
// Functions are `static`: each translation unit has its own copy, compiled for its own instruction set.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

constexpr int LANES = 8;              // rows of a panel
constexpr int BLOCK = 32;             // numbers of a block
constexpr int VECTOR = 4 * LANES;     // bytes of 4 columns of all lanes
constexpr int VECTORS = BLOCK / 4;    // of a block
constexpr int SUPER = 8;              // blocks of a superblock

enum class Format : int {
    F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4
};
constexpr int NUM_FORMATS = static_cast<int>(Format::MXFP4) + 1;

// The table of a quant's level. Levels of MXFP4 are 4-bit floats, doubled to be integers, plus 12 to be unsigned.
enum class Table : int { NONE, IQ4, MXFP4 };
inline constexpr int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t MXFP4_LEVELS[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct BlockFormat {
    int bits = 8;              // of a quant; signed if 8, else unsigned
    int zero = 0;              // the level of 0
    Table table = Table::NONE;
    bool has_minimum = false;
    int blocks = 1;            // that share a head: 1 or SUPER
    int parts = 1;             // of a block in a superblock: 1 or 2
    bool is_bf16 = false;      // of the scale, instead of f16, which cannot hold its powers of two

    constexpr bool is_super() const { return blocks > 1; }
};

static constexpr int level_of(const BlockFormat &f, int quant) {
    if (f.table == Table::IQ4) return IQ4_LEVELS[quant];
    if (f.table == Table::MXFP4) return MXFP4_LEVELS[quant];
    return f.bits == 8 ? static_cast<int8_t>(quant) : quant;
}

static constexpr int smallest_level(const BlockFormat &f) {
    int least = 0;
    for (int quant = 0; quant < 1 << f.bits; ++quant) least = level_of(f, quant) < least ? level_of(f, quant) : least;
    return least;
}

static constexpr bool has_sign(const BlockFormat &f) { return smallest_level(f) < 0; }

inline const int8_t *levels_in(Table table) { return table == Table::IQ4 ? IQ4_LEVELS : MXFP4_LEVELS; }

// By magnitude.
static constexpr int largest_level(const BlockFormat &f) {
    int most = -smallest_level(f);
    for (int quant = 0; quant < 1 << f.bits; ++quant) most = level_of(f, quant) > most ? level_of(f, quant) : most;
    return most;
}

static constexpr bool is_quantized(Format f) { return f >= Format::Q8_0; }

static constexpr BlockFormat block_format(Format f) {
    switch (f) {
        // bits, zero, table, has_minimum, blocks, parts, is_bf16
        case Format::Q4_0: return {4, 8};
        case Format::Q4_1: return {4, 0, Table::NONE, true};
        case Format::Q5_0: return {5, 16};
        case Format::Q5_1: return {5, 0, Table::NONE, true};
        case Format::Q2_K: return {2, 0, Table::NONE, true, SUPER, 2};
        case Format::Q3_K: return {3, 4, Table::NONE, false, SUPER, 2};
        case Format::Q4_K: return {4, 0, Table::NONE, true, SUPER};
        case Format::Q5_K: return {5, 0, Table::NONE, true, SUPER};
        case Format::Q6_K: return {6, 32, Table::NONE, false, SUPER, 2};
        case Format::IQ4_NL: return {4, 0, Table::IQ4};
        case Format::IQ4_XS: return {4, 0, Table::IQ4, false, SUPER};
        case Format::MXFP4: return {4, 12, Table::MXFP4, false, 1, 1, true};
        default: return {};  // Q8_0
    }
}

// Columns that share a head: rows are whole multiples of these.
static constexpr int block_columns(Format f) { return BLOCK * block_format(f).blocks; }

// A quant of a block: byte `at` (4 * lane + column) of vector v.
static constexpr int quant_at(const BlockFormat &f, const uint8_t *quants, int v, int at) {
    int quant = 0;
    for (int width = 8, done = 0; width > 0; width /= 2) {
        if (!(f.bits & width)) continue;
        quant |= (quants[VECTOR * (v * width / 8) + at] >> (v * width % 8) & ((1 << width) - 1)) << done;
        quants += VECTOR * width, done += width;
    }
    return quant;
}

// --- sizes, in bytes

// The float16 at the beginning of a head.
static constexpr int floats_step(const BlockFormat &f) { return (f.has_minimum ? 2 : 1) * 2 * LANES; }

// The bytes that one block of a superblock adds to a head.
static constexpr int parts_step(const BlockFormat &f) {
    return f.is_super() ? (f.has_minimum ? 2 : 1) * f.parts * LANES : 0;
}

static constexpr int head_step(const BlockFormat &f) { return floats_step(f) + parts_step(f) * f.blocks; }

static constexpr size_t heads_size(const BlockFormat &f, int num_blocks) {
    return (static_cast<size_t>(head_step(f)) * (num_blocks / f.blocks) + 63) / 64 * 64;
}

static constexpr size_t quants_step(const BlockFormat &f) { return static_cast<size_t>(VECTOR) * f.bits; }

static constexpr size_t panel_size(Format format, int cols) {
    if (format == Format::F32) return sizeof(float) * LANES * cols;
    if (!is_quantized(format)) return sizeof(uint16_t) * LANES * cols;
    const BlockFormat f = block_format(format);
    return (heads_size(f, cols / BLOCK) + quants_step(f) * (cols / BLOCK) + 63) / 64 * 64;
}

}  // namespace quire
