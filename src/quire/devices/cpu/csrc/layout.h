// The memory layout of weights, activations and the KV cache, shared by packing, the program and the kernels.
//
// A weight [rows, cols] is divided into panels of 8 rows; one row is one lane of the product. The last panel is padded
// with zeros. For products of bytes, which add four neighbours in a lane, four neighbours of a row are adjacent.
//
//   F32 F16 BF16    number [col][lane]
//   block formats   heads, then quants, see formats.h

#pragma once

#include <cstring>

#include "formats.h"

// A function of a header that is not inlined is a weak symbol of every variant of the kernels: the linker keeps one, which
// may have instructions that this processor lacks. tests/devices/cpu/test_variants.py finds such functions.
#define QUIRE_INLINE __attribute__((always_inline)) inline

namespace quire {

constexpr int TILE = 16;      // keys that are stored together
constexpr int STRETCH = 128;  // keys that attention processes together

struct Matrix {
    Format format;
    int rows, cols;
    const uint8_t *data;
    size_t panel_bytes;

    int num_panels() const { return (rows + LANES - 1) / LANES; }
    int num_blocks() const { return cols / BLOCK; }
    size_t num_bytes() const { return panel_bytes * num_panels(); }
    const uint8_t *panel(int i) const { return data + panel_bytes * i; }
};

// float32 rows: row i begins at data + i * stride.
struct Rows {
    float *data = nullptr;
    size_t stride = 0;

    float *row(int i) const { return data + stride * i; }
};

// Activations in blocks of 32: x = scale * value. The constant parts of weights (a minimum, the quant of 0)
// are multiplied with sums: of the numbers of a block, and of the values of its halves.
struct QuantRows {
    int8_t *values = nullptr;   // [row][32 * blocks]
    float *scales = nullptr;    // [row][blocks]
    float *sums = nullptr;      // [row][blocks]: scale times the sum of the values
    int16_t *halves = nullptr;  // [row][blocks][2]
    int blocks = 0;

    int8_t *row(int i) const { return values + static_cast<size_t>(i) * blocks * BLOCK; }
    float *scale(int i) const { return scales + static_cast<size_t>(i) * blocks; }
    float *sum(int i) const { return sums + static_cast<size_t>(i) * blocks; }
    int16_t *half(int i) const { return halves + static_cast<size_t>(i) * blocks * 2; }
};

enum class KvFormat : int { F32, F16, BF16, BF16_PAIRS, Q8 };

// The keys or the values of one layer. A block's tokens are divided into tiles of 16; keys are transposed, so that one
// load has the same dimension of 8 keys. Dimensions are padded to 8, and tiles to 16 tokens; the padding stays zero.
//   keys   [block][head][tile] { number [dim][16]; Q8: f16 scale [dim / 32][16] }
//   values [block][head][tile] { number [16][dim]; Q8: f16 scale [16][dim / 32] }
// BF16_PAIRS has neighbouring dimensions of a key, and neighbouring values of a dimension, next to each other. There are
// processors that multiply such pairs.
//   keys   [block][head][tile] { number [dim / 2][16][2] }
//   values [block][head][tile] { number [8][dim][2] }
// Q8 is the q8_0 of files: 32 neighbouring dimensions of one key or value are int8 and share a scale. Each token
// has its own scales, so that writing one never changes another.
struct KvPlane {
    KvFormat format;
    int num_heads, dim, tiles;  // tiles of a block
    uint8_t *data;

    int padded_dim() const { return (dim + LANES - 1) / LANES * LANES; }
    int scales() const { return format == KvFormat::Q8 ? dim / BLOCK : 0; }  // of one token and head
    size_t number_bytes() const { return format == KvFormat::F32 ? 4 : format == KvFormat::Q8 ? 1 : 2; }
    size_t tile_numbers() const { return static_cast<size_t>(TILE) * padded_dim(); }
    size_t tile_bytes() const { return tile_numbers() * number_bytes() + sizeof(uint16_t) * TILE * scales(); }
    size_t block_bytes() const { return tile_bytes() * tiles * num_heads; }
    QUIRE_INLINE uint8_t *tile_at(int block, int head, int tile) const {
        return data + block_bytes() * block + tile_bytes() * (static_cast<size_t>(head) * tiles + tile);
    }
    uint16_t *scales_of(uint8_t *tile) const { return reinterpret_cast<uint16_t *>(tile + tile_numbers()); }
};

// K and V of one layer, and which keys a query reads: the last `window` (0: all), of its own `chunk` (0: one chunk).
// In latent attention all heads share one key; its first `latent_dim` numbers are the value, too. Both planes are the
// same memory then, in the layout of values. `group` says which of a step's tables tell where its tokens are.
struct KvCache {
    KvPlane keys, values;
    int window, chunk;
    int num_blocks, block_tokens;
    int latent_dim;  // 0: keys and values are separate
    int group;       // see Step

    bool is_latent() const { return latent_dim > 0; }
    int value_dim() const { return is_latent() ? latent_dim : values.dim; }
    int padded_value_dim() const { return (value_dim() + LANES - 1) / LANES * LANES; }
    int num_heads() const { return keys.num_heads; }
    // Of what is written of a token: keys and values of all heads, or a latent and its rotated part.
    int key_width() const { return is_latent() ? latent_dim : keys.num_heads * keys.dim; }
    int value_width() const { return is_latent() ? values.dim - latent_dim : values.num_heads * values.dim; }
    int tiles() const { return (block_tokens + TILE - 1) / TILE; }
    int first_visible(int position) const {
        const int by_window = window && position >= window ? position + 1 - window : 0;
        const int by_chunk = chunk ? position / chunk * chunk : 0;
        return by_window > by_chunk ? by_window : by_chunk;
    }
    int past_visible(int position, int length) const {  // of bidirectional attention
        return window && position + window < length ? position + window : length;
    }
    int reach() const {  // a query reads no token further back than this, its own included
        return !window || (chunk && chunk < window) ? (chunk ? chunk : INT32_MAX) : window;
    }
    int stretch_blocks() const {  // the smallest number of blocks that is a whole number of stretches
        int count = 1;
        while (count * tiles() % (STRETCH / TILE)) count *= 2;
        return count;
    }
};

}  // namespace quire
