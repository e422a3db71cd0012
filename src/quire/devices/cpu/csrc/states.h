// States of recurrent layers, and the arguments of the kernels that change them. See ops/recurrence.py.
//
// A state is some matrices of float32 [rows][cols], whose columns never meet: an item of work is a tile of one matrix,
// some columns and all rows, over all tokens of a row. A tile is contiguous, and small enough for the first cache.
//
// Where all rows of a column decay alike, they are not multiplied at every token, but the column's scale is; see
// recurrence.h. The scale is stored with the state, so that a state's bits do not depend on where steps end.
//
//   op           matrices   rows       columns
//   delta_rule   heads      key_dim    value_dim
//   state_scan   groups     size       channels of the group's heads
//   short_conv   1          taps - 1   dim; one tile

#pragma once

#include "layout.h"

namespace quire {

enum class MapKind : int;

constexpr int STATE_COLS = 32;  // of a tile

struct StateLayout {
    int matrices, rows, cols;
    int width;           // columns of a tile; the last one of a matrix is padded with zeros
    bool is_transposed;  // outside a matrix is [cols][rows]
    bool has_scales;     // a tile has one more row: what its columns are to be multiplied with

    int tiles() const { return (cols + width - 1) / width; }  // of a matrix
    size_t tile_size() const { return static_cast<size_t>(rows + has_scales) * width; }
    size_t size() const { return tile_size() * tiles() * matrices; }
    size_t outer_size() const { return static_cast<size_t>(matrices) * rows * cols; }
    size_t tile_at(int matrix, int tile) const { return tile_size() * (static_cast<size_t>(matrix) * tiles() + tile); }
    // Of a number, counted as outside.
    size_t place(size_t outer) const {
        const size_t of_matrix = static_cast<size_t>(rows) * cols, matrix = outer / of_matrix, at = outer % of_matrix;
        const size_t row = is_transposed ? at % rows : at / cols, col = is_transposed ? at / rows : at % cols;
        return tile_at(static_cast<int>(matrix), static_cast<int>(col / width)) + row * width + col % width;
    }
    // The place of a number's scale, from the number's place.
    size_t scale_of(size_t place) const {
        return place / tile_size() * tile_size() + static_cast<size_t>(rows) * width + place % width;
    }
};

// The states of one layer, by slot.
struct States {
    StateLayout layout;
    int num_states;
    float *data;

    float *tile(int slot, int matrix, int tile) const {
        return data + layout.size() * slot + layout.tile_at(matrix, tile);
    }
};

// The tokens of one row, and the slots of its state: read from one (< 0: zeros), written to another or the same.
struct RowSpan {
    int begin, end;
    int source, target;
    const int32_t *saves;  // [num_saves][2] token, slot: the state after that token is stored there, too
    int num_saves;
};

struct ConvArgs {
    Rows x;
    const float *weight;  // [width / 8][rows + 1][8], the oldest token first
    const float *bias;    // [width], or null
    const float *zeros;   // [width]
    States states;
    bool is_activated;
    MapKind kind;  // the activation
    Rows out;
};

// What a token's tiles of delta_rule share. A row of `work` has, for each key head, the query at its scale and the key;
// then, for each head, e ** decay; by channel also that times the key.
struct DeltaPrepareArgs {
    Rows q, k, decay, work;
    int num_heads, heads, key_dim;  // of keys, of values
    bool is_by_channel, is_unit;
    float scale, eps;
};

inline int delta_width(int num_heads, int heads, int key_dim, bool is_by_channel) {
    return 2 * num_heads * key_dim + (is_by_channel ? 2 * heads * key_dim : heads);
}

struct DeltaArgs {
    Rows work, v, beta;
    int num_heads;
    bool is_by_channel;
    States states;
    Rows out;
};

// rate * softplus(x + bias)
struct DecayArgs {
    Rows x;
    const float *rate, *bias;  // [dim]
    int dim;
    Rows out;
};

// What a token's tiles of state_scan share. A row of `work` has the time step of each head, and with a rate e ** (rate *
// step).
struct ScanPrepareArgs {
    Rows dt, work;
    const float *bias, *rate;  // [heads], or null
    int heads;
    float low, high;  // bounds of the step
};

struct ScanArgs {
    Rows work, x, b, c;
    const float *rates;  // [heads][size] in tiles like a state; null: `work` has the decay
    const float *skip;   // [heads], or null
    int heads, dim;
    States states;
    Rows out;
};

}  // namespace quire
