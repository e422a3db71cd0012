// How products are divided into items of work.

#pragma once

#include <algorithm>

#include "program.h"

namespace quire {

constexpr int PANELS = BLOCK / LANES;  // of one item: 32 columns

inline int parts(int count, int size) { return (count + size - 1) / size; }

constexpr int TILE_TOKENS = 10;

// Tokens that are multiplied panel by panel, at most: as many as stay in L2.
inline int tokens_at_once(const Matrix &m) {
    constexpr int BYTES = 96 * 1024;
    const int each = m.cols * (is_quantized(m.format) ? 1 : 4);
    return std::max(TILE_TOKENS, BYTES / each / TILE_TOKENS * TILE_TOKENS);
}

// Of a step's tokens, at most about `most`: chunks are about equal, so that the last one has not few tokens.
inline int chunk_of(int num_tokens, int most) {
    if (num_tokens <= most) return most;
    return parts(parts(num_tokens, parts(num_tokens, most)), TILE_TOKENS) * TILE_TOKENS;
}

inline void check_operand(const Matrix &m, const Rows &x, const QuantRows &xq, int dim) {
    require(m.cols == dim, "a matrix has another number of columns than its input");
    if (is_quantized(m.format))
        require(xq.values && xq.blocks == m.num_blocks(), "a quantized matrix needs a quantized input of its width");
    else
        require(x.data, "a float matrix needs a float input");
}

}  // namespace quire
