// Matrix products: some tokens times two panels of 8 rows, or one where two would be slower. Included by
// kernels.cpp, inside a variant's namespace.
//
// A tile of N tokens does for each token exactly what a tile of one does, so the bits of a token do not depend on how
// many are multiplied together (law 8). Within a block of 32, sums are integers, exact in any order; across blocks they
// are float32, in the order of blocks.

// Sizes of a tile.
#if QUIRE_AVX512_VNNI
constexpr int PANELS = 4;
#elif QUIRE_AVX2
constexpr int PANELS = 2;
#else
constexpr int PANELS = 1;
#endif
constexpr int MAX_TOKENS = PANELS == 4 ? 128 : 40, MAX_UNPACKED = PANELS == 4 ? 64 : 40, COLUMNS = PANELS * LANES;
constexpr int SPARE_TOKENS = 8;  // rows of a tile behind its last token, which may be written

// Where a block is unpacked once for MAX_UNPACKED, more of them only fill the caches: on an Emerald Rapids 512 tokens of
// width 768 are multiplied 1.28 × as fast in chunks of 64 as in chunks of 170, and those of width 8,192 in chunks of 20 to
// 64 1.09 × as fast as in chunks of 10. Weights of 32 bits are more bytes to read for each token: 128 tokens of width
// 3,072, which are most of an L2 of 2 MB, are multiplied 1.5 × as fast as in chunks of 16.
constexpr TokenChunks CHUNKS = PANELS == 4 ? TokenChunks{16, {MAX_UNPACKED, 256 * 1024}, {MAX_TOKENS, 1536 * 1024}}
                                           : TokenChunks{10, {1 << 30, 96 * 1024}, {1 << 30, 96 * 1024}};

inline int smaller(int a, int b) { return a < b ? a : b; }

struct Operand {
    Rows x;
    QuantRows xq;
    RowOrder order;
};

// The distance of a tile's second panel from the first. A last odd panel is paired with itself; the second result is
// not used.
inline size_t apart_from(const Matrix &m, int panel) { return panel + 1 < m.num_panels() ? m.panel_bytes : 0; }

#if QUIRE_AVX512_BF16
#include "dots_bf16.h"
#endif

// --- float weights: column by column, a lane for each row

template <Format F, int N, class W>
inline void float_tile(const Matrix &m, int panel, const Operand &a, int token, float *out) {
    const uint8_t *w = m.panel(panel);
    const size_t apart = apart_from(m, panel);
    const float *x[N];
    for (int i = 0; i < N; ++i) x[i] = a.x.row(a.order.source(token + i));
#if QUIRE_AVX512_BF16
    if constexpr (F == Format::BF16) return bf16_tile<N>(m, apart, w, x, out);
#endif
    constexpr size_t each = LANES * (F == Format::F32 ? sizeof(float) : sizeof(uint16_t));
    const TwoStreams streams{w, m.panel_bytes, sizeof(W) > sizeof(F8) ? apart : 0};
    W acc[N];
    for (int i = 0; i < N; ++i) acc[i] = set1<W>(0.0f);
    for (int k = 0; k < m.cols; ++k) {
        if (N <= IN_TWO_STREAMS && k * each % LINE == 0) streams.fetch(k * each);
        W column;
        if constexpr (F == Format::F32)
            column = load_rows<W>(reinterpret_cast<const float *>(w) + LANES * k, apart);
        else
            column = load_rows<W>(reinterpret_cast<const uint16_t *>(w) + LANES * k, apart, F == Format::BF16);
        for (int i = 0; i < N; ++i) acc[i] = fma(column, set1<W>(x[i][k]), acc[i]);
    }
    for (int i = 0; i < N; ++i) store(out + COLUMNS * i, acc[i]);
}

// --- quantized weights

// The scale of a block, a lane for each row; with two parts, the rest of the scale is in their sums.
template <Format F, class W>
inline W block_scale(W scale, const int8_t *parts, size_t apart) {
    constexpr BlockFormat f = block_format(F);
    if constexpr (f.is_super() && f.parts == 1) return scale * load_rows<W>(parts, apart);
    return scale;
}

// The constant part of a block besides its scale, for blocks of one part: its minimum, or minus the zero.
constexpr bool has_constant(const BlockFormat &f) { return f.has_minimum || (f.zero && f.parts == 1); }

template <Format F, class W>
inline W block_minimum(W scale, W minimum, const int8_t *parts, size_t apart) {
    constexpr BlockFormat f = block_format(F);
    if constexpr (f.has_minimum && f.is_super() && f.parts == 1) return minimum * load_rows<W>(parts + LANES, apart);
    return f.has_minimum ? minimum : scale * set1<W>(static_cast<float>(-f.zero));
}

template <Format F, int N, class W>
inline void add_minimum(W scale, W minimum, const int8_t *parts, size_t apart, const Tokens<N> &x, int b, W *acc) {
    constexpr BlockFormat f = block_format(F);
    if constexpr (f.has_minimum && f.parts == 2) {
        const W first = load_rows<W>(parts + LANES * 2, apart), second = load_rows<W>(parts + LANES * 3, apart);
        for (int i = 0; i < N; ++i) {
            const int16_t *halves = x.halves[i] + 2 * b;
            const W sum = fma(first, set1<W>(halves[0]), second * set1<W>(halves[1]));  // exact
            acc[i] = fma(sum * minimum, set1<W>(x.scales[i][b]), acc[i]);
        }
    } else if constexpr (has_constant(f)) {
        const W all = block_minimum<F>(scale, minimum, parts, apart);
        for (int i = 0; i < N; ++i) acc[i] = fma(all, set1<W>(x.sums[i][b]), acc[i]);
    }
}

// Scales times small integers are exact in float32: only the product with the activations is rounded.
template <Format F, int N, class W>
inline void quant_tile(const Matrix &m, int panel, const Operand &a, int token, float *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr size_t each = quants_step(f) + head_step(f) / f.blocks;
    const uint8_t *head = m.panel(panel), *quants = head + heads_size(f, m.num_blocks()), *read = head;
    const size_t apart = apart_from(m, panel);
    Tokens<N> x;
    W acc[N];
    for (int i = 0; i < N; ++i) {
        const int row = a.order.source(token + i);
        x.values[i] = a.xq.row(row), x.halves[i] = a.xq.half(row);
        x.scales[i] = a.xq.scale(row), x.sums[i] = a.xq.sum(row);
        acc[i] = set1<W>(0.0f);
    }
    for (int first = 0; first < m.num_blocks(); first += f.blocks, head += head_step(f)) {
        const uint16_t *floats = reinterpret_cast<const uint16_t *>(head);
        const W common = load_rows<W>(floats, apart, f.is_bf16);
        const W minimum = load_rows<W>(f.has_minimum ? floats + LANES : floats, apart, false);
        const int8_t *parts = reinterpret_cast<const int8_t *>(head + floats_step(f));
        for (int b = first; b < first + f.blocks; ++b, quants += quants_step(f), parts += parts_step(f)) {
            W dots[N];
            if (N <= IN_STREAM) fetch_ahead(read, each);
            else if (N <= IN_TWO_STREAMS) fetch_near(read, each), fetch_near(read + apart, each);
            read += each;
            block_sums<F, N, W>(quants, parts, apart, x, b, dots);
            const W scale = block_scale<F>(common, parts, apart);
            for (int i = 0; i < N; ++i) acc[i] = fma(dots[i] * scale, set1<W>(x.scales[i][b]), acc[i]);
            add_minimum<F, N>(scale, minimum, parts, apart, x, b, acc);
        }
    }
    for (int i = 0; i < N; ++i) store(out + COLUMNS * i, acc[i]);
}

// A tile is a separate function: inlined together, they compile to up to a third more instructions.
template <Format F, int N, class W>
[[gnu::noinline]] void tile_of(const Matrix &m, int panel, const Operand &a, int token, float *out) {
    if constexpr (is_quantized(F))
        quant_tile<F, N, W>(m, panel, a, token, out);
    else
        float_tile<F, N, W>(m, panel, a, token, out);
}

// Two panels at once share the loads of the tokens, which makes multiplication faster; if both do not fit into one
// register they are a pair. Few tokens are bound by reading weights, and panel by panel is a single stream: on a Zen 4 a
// step of one token takes 3.1 ms that way and 4.2 ms with two panels in a 512-bit register, and 4 streams are 1.4 × as
// fast. 5 to 8 tokens are two streams with 512 bits. A token's sums have the same bits in either width. Float weights
// are added column by column: one panel would wait for each addition, and read at most 16 bytes in its 4 cycles.
template <Format F, int N>
inline void tile(const Matrix &m, int panel, int last, const Operand &a, int token, float *out) {
    constexpr bool at_once = PANELS > 1 && (is_quantized(F) ? N > IN_STREAM : WIDEST > LANES || N <= IN_STREAM);
    using W = std::conditional_t<at_once, F8x2, F8>;
    for (int i = 0; i < PANELS && panel + i < last; i += at_once ? 2 : 1)
        tile_of<F, N, W>(m, panel + i, a, token, out + LANES * i);
}

#if QUIRE_AVX512_VNNI || QUIRE_TILES
#include "block_scales.h"
#endif
#if QUIRE_AVX512_VNNI
#include "dots_many.h"
#include "floats_many.h"
#endif
#if QUIRE_TILES
#include "tiles.h"
#include "dots_tiles.h"
#endif

#if QUIRE_AVX512_VNNI
// More tokens than a tile has, times P pairs of panels.
template <Format F, int P>
inline void many(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    if constexpr (is_quantized(F)) many_tokens<F, P>(m, panel, a, token, count, out);
#if QUIRE_AVX512_BF16
    else if constexpr (F == Format::BF16) bf16_many<P>(m, panel, a, token, count, out);
#endif
    else many_floats<F, P>(m, panel, a, token, count, out);
}
#endif

template <Format F>
inline void four_at_most(const Matrix &m, int panel, int last, const Operand &a, int token, int count, float *out) {
    switch (count) {
        case 4: return tile<F, 4>(m, panel, last, a, token, out);
        case 3: return tile<F, 3>(m, panel, last, a, token, out);
        case 2: return tile<F, 2>(m, panel, last, a, token, out);
        case 1: return tile<F, 1>(m, panel, last, a, token, out);
        default: return;
    }
}

// Of fewer tokens than this, but more than a tile has, up to four come first: they bring the panels to L1 in one stream,
// and the wide tiles after them do not wait for memory. More tokens hide it.
constexpr int AFTER_STREAM = 24;

// Each format's widest tile is the fastest: a float tile needs a register for each token, a quantized one two and more.
template <Format F>
inline void some_tokens(const Matrix &m, int panel, int last, const Operand &a, int token, int count, float *out) {
#if QUIRE_TILES
    if constexpr (is_quantized(F))
        if (count > IN_TWO_STREAMS) return in_tiles<F>(m, panel, last, a, token, count, out);
#endif
#if QUIRE_AVX512_VNNI
    if (count > IN_TWO_STREAMS)
        return panel + 2 < last ? many<F, 2>(m, panel, a, token, count, out)
                                : many<F, 1>(m, panel, a, token, count, out);
    switch (count) {
        case 5: return tile<F, 5>(m, panel, last, a, token, out);
        case 6: return tile<F, 6>(m, panel, last, a, token, out);
        case 7: return tile<F, 7>(m, panel, last, a, token, out);
        default: break;
    }
#endif
    constexpr int most = !is_quantized(F) || WIDEST > LANES ? 8 : PANELS == 2 ? 5 : 4;
    if constexpr (is_quantized(F) && most == IN_STREAM + 1)
        if (count >= most && count < AFTER_STREAM) {
            const int first = count % most ? count % most : IN_STREAM;
            four_at_most<F>(m, panel, last, a, token, first, out);
            count -= first, token += first, out += first * COLUMNS;
        }
    for (; count >= most; count -= most, token += most, out += most * COLUMNS) tile<F, most>(m, panel, last, a, token, out);
    for (; count > 0; count -= 4, token += 4, out += 4 * COLUMNS)
        four_at_most<F>(m, panel, last, a, token, smaller(count, 4), out);
}

// `count` tokens, at most MAX_TOKENS, times the panels of a tile before `last`: out [count][COLUMNS].
inline void multiply(const Matrix &m, int panel, int last, const Operand &a, int token, int count, float *out) {
    switch (m.format) {
        case Format::F32: return some_tokens<Format::F32>(m, panel, last, a, token, count, out);
        case Format::F16: return some_tokens<Format::F16>(m, panel, last, a, token, count, out);
        case Format::BF16: return some_tokens<Format::BF16>(m, panel, last, a, token, count, out);
        case Format::Q8_0: return some_tokens<Format::Q8_0>(m, panel, last, a, token, count, out);
        case Format::Q4_0: return some_tokens<Format::Q4_0>(m, panel, last, a, token, count, out);
        case Format::Q4_1: return some_tokens<Format::Q4_1>(m, panel, last, a, token, count, out);
        case Format::Q5_0: return some_tokens<Format::Q5_0>(m, panel, last, a, token, count, out);
        case Format::Q5_1: return some_tokens<Format::Q5_1>(m, panel, last, a, token, count, out);
        case Format::Q2_K: return some_tokens<Format::Q2_K>(m, panel, last, a, token, count, out);
        case Format::Q3_K: return some_tokens<Format::Q3_K>(m, panel, last, a, token, count, out);
        case Format::Q4_K: return some_tokens<Format::Q4_K>(m, panel, last, a, token, count, out);
        case Format::Q5_K: return some_tokens<Format::Q5_K>(m, panel, last, a, token, count, out);
        case Format::Q6_K: return some_tokens<Format::Q6_K>(m, panel, last, a, token, count, out);
        case Format::IQ4_NL: return some_tokens<Format::IQ4_NL>(m, panel, last, a, token, count, out);
        case Format::IQ4_XS: return some_tokens<Format::IQ4_XS>(m, panel, last, a, token, count, out);
        case Format::MXFP4: return some_tokens<Format::MXFP4>(m, panel, last, a, token, count, out);
    }
}

// Tokens that are multiplied at once with a matrix of this format, at most. Tokens in pairs of bf16 are in L1.
inline int most_tokens(Format format) {
#if QUIRE_AVX512_BF16
    if (format == Format::BF16) return MAX_UNPACKED;
#endif
    return is_quantized(format) ? MAX_UNPACKED : MAX_TOKENS;
}

// How many of `count` tokens are multiplied at once, at most `most`: parts are about equal, and whole tiles.
inline int part_of(int count, int most) {
    constexpr int TILE_TOKENS = PANELS == 2 && WIDEST == LANES ? 5 : 8;
    const int num_parts = count > most ? (count + most - 1) / most : 1;
    return (count + num_parts * TILE_TOKENS - 1) / (num_parts * TILE_TOKENS) * TILE_TOKENS;
}

// Finishes the columns of a pair of panels, row by row, which touches a line once: adds the bias and a residual.
inline void put_pair(const ProductArgs &p, int panel, int token, int count, const float *tile) {
    const int column = panel * LANES;
    const F8x2 bias = p.bias ? load<F8x2>(p.bias + column) : set1<F8x2>(0.0f);
    for (int i = 0; i < count; ++i) {
        F8x2 y = load<F8x2>(tile + COLUMNS * i);
        if (p.bias) y = y + bias;
        if (p.residual.data) y = load<F8x2>(p.residual.row(token + i) + column) + y;
        store(p.out.row(p.order.target(token + i)) + column, y);
    }
}

// The same of one panel.
inline void put_columns(const ProductArgs &p, int panel, int token, int count, const float *tile) {
    const int column = panel * LANES, width = smaller(LANES, p.matrix.rows - column);
    const F8 bias = p.bias ? load(p.bias + column) : set1(0.0f);
    for (int i = 0; i < count; ++i) {
        float *out = p.out.row(p.order.target(token + i)) + column;
        const float *residual = p.residual.data ? p.residual.row(token + i) + column : nullptr;
        F8 y = load(tile + COLUMNS * i);
        if (p.bias) y = y + bias;
        if (width == LANES) {
            store(out, residual ? load(residual) + y : y);
        } else {
            float last[LANES];
            store(last, y);
            for (int c = 0; c < width; ++c) out[c] = residual ? residual[c] + last[c] : last[c];
        }
    }
}

void product(const ProductArgs &p, int first_panel, int last_panel, int begin, int end) {
    const Operand a{p.x, p.xq, p.order};
    const int most = part_of(end - begin, most_tokens(p.matrix.format));
    alignas(64) float tile[(MAX_TOKENS + SPARE_TOKENS) * COLUMNS];
    for (int panel = first_panel; panel < last_panel; panel += PANELS)
        for (int token = begin; token < end; token += most) {
            const int count = smaller(most, end - token);
            multiply(p.matrix, panel, last_panel, a, token, count, tile);
            for (int i = 0; i < PANELS && panel + i < last_panel;) {
                const int past = panel + i + 2;
                const bool is_pair = i + 2 <= PANELS && past <= last_panel && past * LANES <= p.matrix.rows;
                if (is_pair) put_pair(p, panel + i, token, count, tile + LANES * i);
                else put_columns(p, panel + i, token, count, tile + LANES * i);
                i += is_pair ? 2 : 1;
            }
        }
}

template <MapKind KIND, class W>
inline W bounded_gate(const GateArgs &p, W g, W u) {
    if (p.limit != 0.0f) g = min(g, set1<W>(p.limit)), u = min(max(u, set1<W>(-p.limit)), set1<W>(p.limit));
    const W alpha = set1<W>(p.alpha);
    g = p.alpha == 1.0f ? activate<KIND>(g) : activate<KIND>(alpha * g) / alpha;
    return g * (u + set1<W>(p.shift));
}

// The columns of a panel, or of two if W holds both.
template <MapKind KIND, class W>
inline W gate_lanes(const GateArgs &p, int panel, const float *gates, const float *ups) {
    W g = load<W>(gates);
    if (p.gate_bias) g = g + load<W>(p.gate_bias + panel * LANES);
    if (!p.up.data) return activate<KIND>(g);
    W u = load<W>(ups);
    if (p.up_bias) u = u + load<W>(p.up_bias + panel * LANES);
    const bool is_plain = p.limit == 0.0f && p.alpha == 1.0f && p.shift == 0.0f;
    return is_plain ? activate<KIND>(g) * u : bounded_gate<KIND>(p, g, u);
}

// What becomes of the products of some panels of a tile: `hidden` has a block for each token.
template <MapKind KIND>
inline void gate_columns(const GateArgs &p, int panel, int last, int count, const float *gates, const float *ups,
                         float *hidden) {
    constexpr int AT_ONCE = WIDEST / LANES;
    const int end = smaller(panel + PANELS, last);
    for (int i = 0; i < count; ++i, gates += COLUMNS, ups += COLUMNS, hidden += BLOCK) {
        int at = panel;
        for (int from = 0; at + AT_ONCE <= end; at += AT_ONCE, from += WIDEST)
            store(hidden + from, gate_lanes<KIND, Widest>(p, at, gates + from, ups + from));
        for (int from = (at - panel) * LANES; at < end; ++at, from += LANES)
            store(hidden + from, gate_lanes<KIND, F8>(p, at, gates + from, ups + from));
    }
}

inline void gate_columns(const GateArgs &p, int panel, int last, int count, const float *gates, const float *ups,
                         float *hidden) {
    switch (p.kind) {
        case MapKind::SILU: return gate_columns<MapKind::SILU>(p, panel, last, count, gates, ups, hidden);
        case MapKind::GELU: return gate_columns<MapKind::GELU>(p, panel, last, count, gates, ups, hidden);
        case MapKind::GELU_TANH: return gate_columns<MapKind::GELU_TANH>(p, panel, last, count, gates, ups, hidden);
        case MapKind::RELU: return gate_columns<MapKind::RELU>(p, panel, last, count, gates, ups, hidden);
        case MapKind::RELU2: return gate_columns<MapKind::RELU2>(p, panel, last, count, gates, ups, hidden);
        case MapKind::SIGMOID: return gate_columns<MapKind::SIGMOID>(p, panel, last, count, gates, ups, hidden);
        case MapKind::TANH: return gate_columns<MapKind::TANH>(p, panel, last, count, gates, ups, hidden);
        default: return;  // the others are no activations
    }
}

void gate(const GateArgs &p, int group, int begin, int end) {
    const Operand a{p.x, p.xq, p.order};
    const int first = group * (BLOCK / LANES), last = smaller(first + BLOCK / LANES, p.gate.num_panels());
    const int column = group * BLOCK, width = smaller(BLOCK, p.gate.rows - column);
    alignas(64) float gates[(MAX_TOKENS + SPARE_TOKENS) * COLUMNS], ups[(MAX_TOKENS + SPARE_TOKENS) * COLUMNS];
    alignas(64) float hidden[MAX_TOKENS][BLOCK];
    const int most = part_of(end - begin, smaller(most_tokens(p.gate.format), most_tokens(p.up.format)));
    for (int token = begin; token < end; token += most) {
        const int count = smaller(most, end - token);
        for (int panel = first; panel < last; panel += PANELS) {
            multiply(p.gate, panel, last, a, token, count, gates);
            if (p.up.data) multiply(p.up, panel, last, a, token, count, ups);
            gate_columns(p, panel, last, count, gates, ups, hidden[0] + (panel - first) * LANES);
        }
        for (int i = 0; i < count; ++i) {
            for (int at = (last - first) * LANES; at < BLOCK; ++at) hidden[i][at] = 0.0f;
            const int row = p.order.target(token + i);
            if (p.out.rows.data) std::memcpy(p.out.rows.row(row) + column, hidden[i], sizeof(float) * width);
            if (p.out.quants.values) quantize_block(hidden[i], p.out.quants, row, group);
        }
    }
}
