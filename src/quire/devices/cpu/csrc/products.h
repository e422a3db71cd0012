// Matrix products: up to 8 tokens times one panel of 8 rows. Included by kernels.cpp, inside a variant's namespace.
//
// A tile of N tokens does for each token exactly what a tile of one does, so the bits of a token do not depend on how
// many are multiplied together (law 8). Within a block of 32 sums are whole numbers, exact in any order; across blocks
// they are float32, first block first.

constexpr int MAX_TOKENS = 8;  // of one tile

struct Operand {
    Rows x;
    QuantRows xq;
};

// --- float weights: one column after the other, a lane for each row

template <Format F, int N>
inline void float_tile(const Matrix &m, int panel, const Operand &a, int token, float *out) {
    const uint8_t *w = m.panel(panel);
    const float *x[N];
    F8 acc[N];
    for (int i = 0; i < N; ++i) x[i] = a.x.row(token + i), acc[i] = set1(0.0f);
    for (int k = 0; k < m.cols; ++k) {
        F8 column;
        if constexpr (F == Format::F32)
            column = load(reinterpret_cast<const float *>(w) + LANES * k);
        else
            column = load(reinterpret_cast<const uint16_t *>(w) + LANES * k, F == Format::BF16);
        for (int i = 0; i < N; ++i) acc[i] = fma(column, set1(x[i][k]), acc[i]);
    }
    for (int i = 0; i < N; ++i) store(out + LANES * i, acc[i]);
}

// --- quantized weights

// One token reads each weight once, faster than the CPU guesses what comes next: this far ahead it is told.
inline void fetch_ahead(const uint8_t *p, size_t bytes) {
#if defined(__GNUC__)
    constexpr size_t AHEAD = 2048, LINE = 64;
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(p + AHEAD + i);
#endif
}

// The scale of a block, a lane for each row; formats with two parts have the rest of it in their sums.
template <Format F>
inline F8 block_scale(F8 scale, const int8_t *parts) {
    constexpr BlockFormat f = block_format(F);
    if constexpr (f.is_super() && f.parts == 1) return scale * load(parts);
    return scale;
}

// What all quants of a block have in common besides their scale: their minimum, or minus the zero.
template <Format F, int N>
inline void add_minimum(F8 scale, F8 minimum, const int8_t *parts, const Tokens<N> &x, int b, F8 *acc) {
    constexpr BlockFormat f = block_format(F);
    if constexpr (f.has_minimum && f.parts == 2) {
        const F8 first = load(parts + LANES * 2), second = load(parts + LANES * 3);
        for (int i = 0; i < N; ++i) {
            const int16_t *halves = x.halves[i] + 2 * b;
            const F8 sum = fma(first, set1(halves[0]), second * set1(halves[1]));  // whole numbers, exact
            acc[i] = fma(sum * minimum, set1(x.scales[i][b]), acc[i]);
        }
    } else if constexpr (f.has_minimum || (f.zero && f.parts == 1)) {
        F8 all = f.has_minimum ? minimum : scale * set1(static_cast<float>(-f.zero));
        if constexpr (f.has_minimum && f.is_super()) all = all * load(parts + LANES);
        for (int i = 0; i < N; ++i) acc[i] = fma(all, set1(x.sums[i][b]), acc[i]);
    }
}

// Scales times small whole numbers are exact in float32: what is rounded is the product with the activations alone.
template <Format F, int N>
inline void quant_tile(const Matrix &m, int panel, const Operand &a, int token, float *out) {
    constexpr BlockFormat f = block_format(F);
    const uint8_t *head = m.panel(panel), *quants = head + heads_size(f, m.num_blocks());
    Tokens<N> x;
    F8 acc[N];
    for (int i = 0; i < N; ++i) {
        x.values[i] = a.xq.row(token + i), x.halves[i] = a.xq.half(token + i);
        x.scales[i] = a.xq.scale(token + i), x.sums[i] = a.xq.sum(token + i);
        acc[i] = set1(0.0f);
    }
    for (int first = 0; first < m.num_blocks(); first += f.blocks, head += head_step(f)) {
        const uint16_t *floats = reinterpret_cast<const uint16_t *>(head);
        const F8 common = load(floats, f.is_bf16), minimum = load(f.has_minimum ? floats + LANES : floats, false);
        const int8_t *parts = reinterpret_cast<const int8_t *>(head + floats_step(f));
        for (int b = first; b < first + f.blocks; ++b, quants += quants_step(f), parts += parts_step(f)) {
            F8 dots[N];
            if (N == 1) fetch_ahead(quants, quants_step(f));
            block_sums<F, N>(quants, parts, x, b, dots);
            const F8 scale = block_scale<F>(common, parts);
            for (int i = 0; i < N; ++i) acc[i] = fma(dots[i] * scale, set1(x.scales[i][b]), acc[i]);
            add_minimum<F, N>(scale, minimum, parts, x, b, acc);
        }
    }
    for (int i = 0; i < N; ++i) store(out + LANES * i, acc[i]);
}

// A tile is a function of its own: many of them inlined into one are compiled worse, up to a third more instructions.
template <Format F, int N>
[[gnu::noinline]] void tile(const Matrix &m, int panel, const Operand &a, int token, float *out) {
    if constexpr (is_quantized(F))
        quant_tile<F, N>(m, panel, a, token, out);
    else
        float_tile<F, N>(m, panel, a, token, out);
}

// Each format's widest tile is as wide as registers allow: a float tile needs one for each token, a quantized one two.
template <Format F>
inline void some_tokens(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    constexpr bool wide = !is_quantized(F);
    if (wide && count == 8) return tile<F, wide ? 8 : 4>(m, panel, a, token, out);
    for (; count >= 4; count -= 4, token += 4, out += 4 * LANES) tile<F, 4>(m, panel, a, token, out);
    switch (count) {
        case 3: return tile<F, 3>(m, panel, a, token, out);
        case 2: return tile<F, 2>(m, panel, a, token, out);
        case 1: return tile<F, 1>(m, panel, a, token, out);
        default: return;
    }
}

// `count` tokens, at most MAX_TOKENS, times one panel: out [count][8].
inline void multiply(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    switch (m.format) {
        case Format::F32: return some_tokens<Format::F32>(m, panel, a, token, count, out);
        case Format::F16: return some_tokens<Format::F16>(m, panel, a, token, count, out);
        case Format::BF16: return some_tokens<Format::BF16>(m, panel, a, token, count, out);
        case Format::Q8_0: return some_tokens<Format::Q8_0>(m, panel, a, token, count, out);
        case Format::Q4_0: return some_tokens<Format::Q4_0>(m, panel, a, token, count, out);
        case Format::Q4_1: return some_tokens<Format::Q4_1>(m, panel, a, token, count, out);
        case Format::Q5_0: return some_tokens<Format::Q5_0>(m, panel, a, token, count, out);
        case Format::Q5_1: return some_tokens<Format::Q5_1>(m, panel, a, token, count, out);
        case Format::Q2_K: return some_tokens<Format::Q2_K>(m, panel, a, token, count, out);
        case Format::Q3_K: return some_tokens<Format::Q3_K>(m, panel, a, token, count, out);
        case Format::Q4_K: return some_tokens<Format::Q4_K>(m, panel, a, token, count, out);
        case Format::Q5_K: return some_tokens<Format::Q5_K>(m, panel, a, token, count, out);
        case Format::Q6_K: return some_tokens<Format::Q6_K>(m, panel, a, token, count, out);
        case Format::IQ4_NL: return some_tokens<Format::IQ4_NL>(m, panel, a, token, count, out);
        case Format::IQ4_XS: return some_tokens<Format::IQ4_XS>(m, panel, a, token, count, out);
        case Format::MXFP4: return some_tokens<Format::MXFP4>(m, panel, a, token, count, out);
    }
}

inline int smaller(int a, int b) { return a < b ? a : b; }

void product(const ProductArgs &p, int first_panel, int last_panel, int begin, int end) {
    const Operand a{p.x, p.xq};
    float tile[MAX_TOKENS * LANES];
    for (int panel = first_panel; panel < last_panel; ++panel) {
        const int column = panel * LANES, width = smaller(LANES, p.matrix.rows - column);
        const F8 bias = p.bias ? load(p.bias + column) : set1(0.0f);
        for (int token = begin; token < end; token += MAX_TOKENS) {
            const int count = smaller(MAX_TOKENS, end - token);
            multiply(p.matrix, panel, a, token, count, tile);
            for (int i = 0; i < count; ++i) {
                float *out = p.out.row(token + i) + column;
                const float *residual = p.residual.data ? p.residual.row(token + i) + column : nullptr;
                F8 y = load(tile + LANES * i);
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
    }
}

inline F8 silu(F8 g) { return g / (set1(1.0f) + exponential(set1(0.0f) - g)); }

void gate(const GateArgs &p, int group, int begin, int end) {
    const Operand a{p.x, p.xq};
    const int first = group * (BLOCK / LANES), last = smaller(first + BLOCK / LANES, p.gate.num_panels());
    const int column = group * BLOCK, width = smaller(BLOCK, p.gate.rows - column);
    float gates[MAX_TOKENS * LANES], ups[MAX_TOKENS * LANES], hidden[MAX_TOKENS][BLOCK] = {};
    for (int token = begin; token < end; token += MAX_TOKENS) {
        const int count = smaller(MAX_TOKENS, end - token);
        for (int panel = first; panel < last; ++panel) {
            multiply(p.gate, panel, a, token, count, gates);
            multiply(p.up, panel, a, token, count, ups);
            for (int i = 0; i < count; ++i) {
                F8 g = load(gates + LANES * i), u = load(ups + LANES * i);
                if (p.gate_bias) g = g + load(p.gate_bias + panel * LANES);
                if (p.up_bias) u = u + load(p.up_bias + panel * LANES);
                store(hidden[i] + (panel - first) * LANES, silu(g) * u);
            }
        }
        for (int i = 0; i < count; ++i) {
            if (p.out.rows.data) std::memcpy(p.out.rows.row(token + i) + column, hidden[i], sizeof(float) * width);
            if (p.out.quants.values) quantize_block(hidden[i], p.out.quants, token + i, group);
        }
    }
}
