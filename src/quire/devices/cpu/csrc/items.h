// How products are divided into items of work.

#pragma once

#include <algorithm>

#include "program.h"

namespace quire {

constexpr int PANELS = BLOCK / LANES;  // of one item: 32 columns

inline int parts(int count, int size) { return (count + size - 1) / size; }

// Panels of an item of a product whose matrices have `num_groups` items of PANELS in all. Half of them, if that many
// items leave more than a tenth of the threads idle: 576 rows are 18 items, of which 16 threads do two each, in 8 panels'
// time; 36 smaller ones take 6.
inline int panels_of_item(int num_groups, int num_threads) {
    const int whole = 2 * parts(num_groups, num_threads), halves = parts(2 * num_groups, num_threads);
    return 10 * halves <= 9 * whole ? PANELS / 2 : PANELS;
}

// Tokens that are multiplied panel by panel, at most: as many as stay in L2.
inline int tokens_at_once(const TokenChunks &c, const Matrix &m) {
    const TokenChunks::Bound &bound = is_quantized(m.format) ? c.quantized : c.floats;
    const int fit = bound.bytes / (m.cols * (is_quantized(m.format) ? 1 : 4)) / c.step * c.step;
    return std::min(bound.most, std::max(c.step, fit));
}

// Of a step's tokens, at most about `most`: chunks are about equal, so that the last one has not few tokens.
inline int chunk_of(const TokenChunks &c, int num_tokens, int most) {
    if (num_tokens <= most) return most;
    return parts(parts(num_tokens, parts(num_tokens, most)), c.step) * c.step;
}

inline void check_operand(const Matrix &m, const Rows &x, const QuantRows &xq, int dim) {
    require(m.cols == dim, "a matrix has another number of columns than its input");
    if (is_quantized(m.format))
        require(xq.values && xq.blocks == m.num_blocks(), "a quantized matrix needs a quantized input of its width");
    else
        require(x.data, "a float matrix needs a float input");
}

}  // namespace quire
