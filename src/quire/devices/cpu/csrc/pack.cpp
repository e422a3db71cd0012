// From the file's rows into panels; see layout.h. Rows that fill up the last panel stay zero, scale and all.

#include <stdexcept>

#include "program.h"

namespace quire {

namespace {

// Blocks as GGUF has them: f16 scale, f16 minimum (Q4_1 alone), then quants; low nibbles are cols 0..15 of the block.
constexpr size_t Q8_0_BYTES = 34, Q4_0_BYTES = 18, Q4_1_BYTES = 20;

size_t source_block_bytes(Format f) {
    return f == Format::Q8 ? Q8_0_BYTES : f == Format::Q4 ? Q4_0_BYTES : Q4_1_BYTES;
}

void pack_q8(const uint8_t *from, uint8_t *quants, int lane) {
    for (int k = 0; k < BLOCK; ++k) quants[32 * (k / 4) + 4 * lane + k % 4] = from[k];
}

void pack_q4(const uint8_t *from, uint8_t *quants, int lane) {
    for (int k = 0; k < BLOCK; ++k) {
        const uint8_t nibble = k < 16 ? from[k] & 15 : from[k - 16] >> 4;
        quants[32 * (k / 8) + 4 * lane + k % 4] |= static_cast<uint8_t>(k % 8 < 4 ? nibble : nibble << 4);
    }
}

void pack_blocks(const Matrix &m, const uint8_t *source, uint8_t *target) {
    const size_t block_bytes = source_block_bytes(m.format), heads = head_step(m.format);
    const size_t num_scales = m.format == Format::Q4M ? 2 : 1;
    for (int row = 0; row < m.rows; ++row) {
        uint8_t *panel = target + m.panel_bytes * (row / LANES);
        const int lane = row % LANES;
        for (int b = 0; b < m.num_blocks(); ++b, source += block_bytes) {
            uint8_t *quants = panel + head_bytes(m.format, m.num_blocks()) + quant_bytes(m.format) * b;
            for (size_t i = 0; i < num_scales; ++i)
                std::memcpy(panel + heads * b + 2 * (LANES * i + lane), source + 2 * i, 2);
            if (m.format == Format::Q8)
                pack_q8(source + 2, quants, lane);
            else
                pack_q4(source + 2 * num_scales, quants, lane);
        }
    }
}

template <class Number>
void pack_numbers(const Matrix &m, const uint8_t *source, uint8_t *target) {
    for (int row = 0; row < m.rows; ++row) {
        uint8_t *panel = target + m.panel_bytes * (row / LANES);
        for (int k = 0; k < m.cols; ++k, source += sizeof(Number))
            std::memcpy(panel + sizeof(Number) * (LANES * k + row % LANES), source, sizeof(Number));
    }
}

}  // namespace

size_t source_row_bytes(Format format, int cols) {
    if (format == Format::F32) return sizeof(float) * cols;
    if (!is_quantized(format)) return sizeof(uint16_t) * cols;
    require(cols % BLOCK == 0, "a quantized matrix has whole blocks of 32 in its rows");
    return source_block_bytes(format) * (cols / BLOCK);
}

void pack(const Matrix &matrix, const uint8_t *source, uint8_t *target) {
    if (is_quantized(matrix.format))
        pack_blocks(matrix, source, target);
    else if (matrix.format == Format::F32)
        pack_numbers<float>(matrix, source, target);
    else
        pack_numbers<uint16_t>(matrix, source, target);
}

}  // namespace quire
