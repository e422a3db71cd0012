// Packs rows of a file into panels; see layout.h. Padding rows of the last panel are zero, scales included.

#include <stdexcept>

#include "file_blocks.h"
#include "program.h"

namespace quire {

namespace {

// Packs a block's quants into its planes, four neighbours at a time.
void pack_quants(const uint8_t *from, int bits, int lane, uint8_t *planes) {
    for (int width = 8, done = 0; width > 0; width /= 2) {
        if (!(bits & width)) continue;
        const uint32_t mask = 0x01010101u * ((1u << width) - 1u);
        for (int v = 0; v < VECTORS; ++v) {
            uint8_t *place = planes + VECTOR * (v * width / 8) + 4 * lane;
            uint32_t four, there;
            std::memcpy(&four, from + 4 * v, 4);
            std::memcpy(&there, place, 4);
            there |= (four >> done & mask) << (v * width % 8);
            std::memcpy(place, &there, 4);
        }
        planes += VECTOR * width, done += width;
    }
}

void pack_head(const FileBlock &from, const BlockFormat &f, int lane, uint8_t *head) {
    std::memcpy(head + 2 * lane, &from.scale, 2);
    if (f.has_minimum) std::memcpy(head + 2 * (LANES + lane), &from.minimum, 2);
    if (!f.is_super()) return;
    for (int part = 0; part < f.blocks * f.parts; ++part) {
        uint8_t *place = head + floats_step(f) + parts_step(f) * (part / f.parts) + LANES * (part % f.parts) + lane;
        place[0] = static_cast<uint8_t>(from.scales[part]);
        if (f.has_minimum) place[LANES * f.parts] = static_cast<uint8_t>(from.minima[part]);
    }
}

void pack_blocks(const Matrix &m, const uint8_t *source, uint8_t *target) {
    const BlockFormat f = block_format(m.format);
    const ReadBlock read = reader_of(m.format);
    FileBlock from;
    for (int row = 0; row < m.rows; ++row) {
        const int lane = row % LANES;
        uint8_t *head = target + m.panel_bytes * (row / LANES), *quants = head + heads_size(f, m.num_blocks());
        for (int first = 0; first < m.num_blocks(); first += f.blocks, head += head_step(f)) {
            read(source, from);
            pack_head(from, f, lane, head);
            for (int b = 0; b < f.blocks; ++b, quants += quants_step(f))
                pack_quants(from.quants + BLOCK * b, f.bits, lane, quants);
            source += file_block_bytes(m.format);
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
    require(cols % block_columns(format) == 0, "the rows of a quantized matrix must be whole blocks");
    return file_block_bytes(format) * (cols / block_columns(format));
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
