// A variant of the kernels: one table of functions, compiled from kernels.cpp for one instruction set.
//
// A kernel computes a part of one op: [begin, end) of its tokens, or one item of work. The program distributes the
// parts over threads. That never changes a bit: the arithmetic of a token does not depend on the split.

#pragma once

#include "layout.h"
#include "states.h"

namespace quire {

// Where a result is written: float32 rows, blocks for a quantized product, or both.
struct Output {
    Rows rows;
    QuantRows quants;
};

// Norms of each group of a row. Of a whole row, the group is the row.
struct NormArgs {
    Rows x;
    const int32_t *at;          // which row of x; null: the same as of the output
    const float *weight, *bias;  // null: none
    int dim, group;
    bool is_per_group;  // weight and bias have `group` numbers, the same for all groups; else `dim`
    bool is_layer;      // subtract the mean first
    float eps;
    Output out;
};

// Rows as they are, to an output.
struct GatherArgs {
    Rows x;
    const int32_t *at;  // which row of x; null: the same as of the output
    int dim;
    Output out;
};

// What is done to each number by itself, or to two at the same place.
// Activations up to TANH.
enum class MapKind : int {
    SILU, GELU, GELU_TANH, RELU, RELU2, SIGMOID, TANH, XIELU, SCALE, SOFTCAP, CLAMP, ADD, MULTIPLY, SCALE_BY,
    SCALE_ROWS
};

struct MapArgs {
    MapKind kind;
    Rows x, y;            // y: of ADD and MULTIPLY; SCALE_ROWS: one number a token
    const float *weight;  // SCALE_BY: one for each column
    float a, b, c, d;     // SCALE: factor; SOFTCAP: cap; CLAMP: limit; XIELU: positive, negative, beta, eps
    int dim;
    Output out;
};

struct RopeArgs {
    Rows x;
    const float *cos, *sin;  // [tokens][pairs]
    int pairs, num_heads, head_dim;
    bool interleaved;
};

// Which rows a product reads and writes for each of its tokens; null: the row of the same number.
struct RowOrder {
    const int32_t *from = nullptr, *to = nullptr;

    int source(int token) const { return from ? from[token] : token; }
    int target(int token) const { return to ? to[token] : token; }
};

// One product of several that read the same x and run at the same time.
struct ProductArgs {
    Matrix matrix;
    const float *bias;  // padded to whole panels, or null
    Rows x;
    QuantRows xq;
    Rows out;       // first column of this product
    Rows residual;  // added to the product; data null: nothing
    RowOrder order = {};
};

// activation(alpha * gate) / alpha * (up + shift), or activation(gate) alone. With a limit that is not 0, gate is clipped
// above to it and up on both sides before.
struct GateArgs {
    Matrix gate, up;  // up.data null: none
    MapKind kind;  // the activation of the gate
    const float *gate_bias, *up_bias;
    Rows x;
    QuantRows xq;
    Output out;
    RowOrder order = {};
    float limit = 0.0f, alpha = 1.0f, shift = 0.0f;
};

// How scores are made of the logits of a router; see ops/route.py.
enum class Scoring : int { SOFTMAX, SIGMOID, SQRT_SOFTPLUS, NONE };

// A row of `work` has the logits, then room: see route_width.
struct RouteArgs {
    Rows work;
    int num_experts, top;
    Scoring scoring;
    bool is_scored_after, is_renormalized;  // only the chosen logits are scored; weights are divided by their sum
    int num_groups, top_groups, group_top;
    float factor, softcap;                  // softcap 0: none
    const float *correction, *expert_scale;  // [experts], or null
    Rows weights, chosen;                   // [top] each
};

// Columns of a router's working memory.
inline int route_width(int num_experts, int num_groups, int group_top) {
    return 2 * num_experts + 3 * num_groups + 2 * group_top;
}

// Adds up the answers of a token's experts, in the order of its choice.
struct CombineArgs {
    Rows answers;  // the row of a token and rank, counted from the first token: token * top + rank
    Rows weights;  // [top] of each token; data null: answers are weighted already
    int top, width;
    Rows out;
};

struct AttendArgs {
    KvCache cache;
    Rows q;
    int group;  // query heads for each key head
    float scale, softcap;  // softcap 0: none
    const float *sinks, *slopes;  // [heads], or null
    const float *distances;       // [heads][2 * reach + 1], or null
    int reach;
    const int32_t *positions;     // [tokens]
    const int32_t *lengths;       // [rows] a token sees its whole row, or the window on both sides; null: causal
    const int32_t *block_tables;  // [rows][table_stride]
    int table_stride;
    Output out;
};

// Neighbouring tokens of one row.
struct QueryTile {
    int row, begin, end;
};

// Tokens of one row or of several, and some query heads of one key head.
struct AttendItem {
    const QueryTile *tiles;
    int num_tiles;
    int num_shared;                      // blocks that all these rows begin with, whole stretches; 0 for a single row
    int leader;                          // the tile whose row has all of those that a query reads in its table
    int kv_head, first_head, num_heads;  // heads counted inside the group
};

constexpr int TILES_AT_ONCE = 4;  // of keys, at most
constexpr int MAX_ITEM_TOKENS = 16, MAX_ITEM_HEADS = 4, MAX_QUERIES = MAX_ITEM_TOKENS * MAX_ITEM_HEADS;

// How many tokens a product takes from its input at once: multiples of `step`, at most `most`, whose numbers are at most
// `bytes` where more than one step is.
struct TokenChunks {
    struct Bound {
        int most, bytes;
    };
    int step;
    Bound quantized, floats;  // by the format of the matrix
};

struct Kernels {
    const char *name;
    const char *const *needs;  // features, ended by a null
    TokenChunks chunks;
    // How products of a format are rounded. Two variants with the same result give the same bits, so that either may
    // compute any product (law 8).
    const char *(*rounding)(Format);
    float (*largest_of)(const float *x, int count);
    void (*embed)(const Matrix &table, const int32_t *ids, Rows out, int begin, int end);
    void (*norm)(const NormArgs &, int begin, int end);
    void (*gather)(const GatherArgs &, int begin, int end);
    void (*map)(const MapArgs &, int begin, int end);
    void (*rope)(const RopeArgs &, int begin, int end);
    void (*write_kv)(const KvCache &, const int32_t *slots, Rows k, Rows v, int begin, int end);
    void (*attend)(const AttendArgs &, const AttendItem &, float *scratch);
    void (*product)(const ProductArgs &, int first_panel, int last_panel, int begin, int end);
    void (*gate)(const GateArgs &, int group, int begin, int end);  // group: 32 columns
    void (*route)(const RouteArgs &, int begin, int end);
    void (*combine)(const CombineArgs &, int begin, int end);
    void (*short_conv)(const ConvArgs &, const RowSpan &, int first, int width);  // some columns
    void (*delta_prepare)(const DeltaPrepareArgs &, int begin, int end);
    void (*delta_rule)(const DeltaArgs &, const RowSpan &, int head, int tile);
    void (*log_decay)(const DecayArgs &, int begin, int end);
    void (*scan_prepare)(const ScanPrepareArgs &, int begin, int end);
    void (*state_scan)(const ScanArgs &, const RowSpan &, int group, int tile);
};

// How far ahead products of few tokens prefetch weights to L2, in bytes; 0: only to L1, and less far. Intel's cores wait
// for at most 16 lines that are missing in L1, which is 10 to 12 GB/s, and for 48 in L2: on an Emerald Rapids one token
// reads 1.2 × as fast with 4,096 to 32,768. Other processors have not been measured with it.
extern const size_t FAR_AHEAD;

// Floats of scratch memory that `attend` needs.
inline size_t attend_scratch(const KvCache &c) {
    const size_t key = static_cast<size_t>(c.keys.padded_dim()), row = static_cast<size_t>(c.values.padded_dim());
    return TILES_AT_ONCE * TILE * key + STRETCH * row + MAX_QUERIES * (key + c.padded_value_dim() + STRETCH + 2);
}

}  // namespace quire
