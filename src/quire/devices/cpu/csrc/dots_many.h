// Products of many tokens with quantized weights: AVX-512 with VNNI, which has registers for the unpacked weights of a
// block. Included by kernels.cpp, inside a variant's namespace.
//
// The weights of a block are unpacked once, of two panels in each register and of up to two such pairs, and then
// multiplied with one token after the other. Sums of tokens are in memory, in L1. A token's numbers are computed in the
// order of quant_tile (products.h), so that they have the same bits.

constexpr int TOGETHER = 2;  // tokens, so that 4 chains of additions are independent

// A block of two panels.
template <Format F>
struct UnpackedBlock {
    WideBytes levels[VECTORS];
    F8x2 scale, minimum;  // as block_scale and add_minimum have them
    F8x2 scales[2], minima[2];  // of its parts, where it has two

    void read(const uint8_t *quants, F8x2 common, F8x2 lowest, const int8_t *parts, size_t apart) {
        constexpr BlockFormat f = block_format(F);
        QUIRE_UNROLL
        for (int v = 0; v < VECTORS; ++v) levels[v] = unsigned_at<WideBytes, F>(quants, apart, v);
        scale = block_scale<F>(common, parts, apart);
        minimum = block_minimum<F>(scale, lowest, parts, apart);
        if constexpr (f.parts == 2)
            for (int part = 0; part < 2; ++part) {
                scales[part] = load_rows<F8x2>(parts + LANES * part, apart);
                if constexpr (f.has_minimum) minima[part] = load_rows<F8x2>(parts + LANES * (2 + part), apart);
            }
    }
};

// What a product reads of one token and block.
struct TokenBlock {
    const int8_t *values;
    const float *scale, *sum;
    const int16_t *halves;

    TokenBlock(const QuantRows &x, size_t at)
        : values(fixed(x.values + BLOCK * at)), scale(x.scales + at), sum(x.sums + at), halves(x.halves + 2 * at) {}
};

// Adds a block's products to the sums of N tokens.
template <Format F, int P, int N>
inline void add_block(const UnpackedBlock<F> (&w)[P], const QuantRows &xq, const size_t *at, int block, float *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts;
    F8x2 dots[N][P];
    QUIRE_UNROLL
    for (int part = 0; part < f.parts; ++part) {
        WideBytes sums[N][P];
        const int8_t *values[N];
        for (int i = 0; i < N; ++i) {
            const TokenBlock x(xq, at[i] + block);
            values[i] = x.values;
            sums[i][0] = minus_surplus<WideBytes, F>(part, x.halves);
            for (int p = 1; p < P; ++p) sums[i][p] = sums[i][0];
        }
        QUIRE_UNROLL
        for (int v = PART * part; v < PART * (part + 1); ++v)
            for (int i = 0; i < N; ++i) {
                const WideBytes four = four_bytes<WideBytes>(values[i] + 4 * v);
                for (int p = 0; p < P; ++p) sums[i][p] = add_dots(sums[i][p], w[p].levels[v], four);
            }
        for (int i = 0; i < N; ++i)
            for (int p = 0; p < P; ++p) {
                const F8x2 all = floats_of(sums[i][p]);
                if constexpr (f.parts == 1) dots[i][p] = all;
                else dots[i][p] = part == 0 ? all * w[p].scales[0] : fma(all, w[p].scales[1], dots[i][p]);
            }
    }
    for (int i = 0; i < N; ++i) {
        const TokenBlock x(xq, at[i] + block);
        for (int p = 0; p < P; ++p) {
            float *to = out + COLUMNS * i + 2 * LANES * p;
            F8x2 sum = fma(dots[i][p] * w[p].scale, set1<F8x2>(*x.scale), load<F8x2>(to));
            if constexpr (f.has_minimum && f.parts == 2) {
                const F8x2 second = w[p].minima[1] * set1<F8x2>(x.halves[1]);
                const F8x2 both = fma(w[p].minima[0], set1<F8x2>(x.halves[0]), second);  // exact
                sum = fma(both * w[p].minimum, set1<F8x2>(*x.scale), sum);
            } else if constexpr (has_constant(f)) {
                sum = fma(w[p].minimum, set1<F8x2>(*x.sum), sum);
            }
            store(to, sum);
        }
    }
}

// Up to MAX_TOKENS times P pairs of panels.
template <Format F, int P>
[[gnu::noinline]] void many_tokens(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    constexpr BlockFormat f = block_format(F);
    size_t at[MAX_TOKENS], apart[P];
    const uint8_t *head[P], *quants[P];
    for (int i = 0; i < count; ++i) {
        at[i] = static_cast<size_t>(a.order.source(token + i)) * a.xq.blocks;
        for (int p = 0; p < P; ++p) store(out + COLUMNS * i + 2 * LANES * p, set1<F8x2>(0.0f));
    }
    for (int p = 0; p < P; ++p) {
        apart[p] = apart_from(m, panel + 2 * p);
        head[p] = m.panel(panel + 2 * p), quants[p] = head[p] + heads_size(f, m.num_blocks());
    }
    for (int block = 0; block < m.num_blocks(); ++block) {
        UnpackedBlock<F> w[P];
        for (int p = 0; p < P; ++p) {
            const uint8_t *first = head[p] + head_step(f) * (block / f.blocks);
            const uint16_t *floats = reinterpret_cast<const uint16_t *>(first);
            const int8_t *parts = reinterpret_cast<const int8_t *>(first) + floats_step(f) + parts_step(f) * (block % f.blocks);
            w[p].read(quants[p] + quants_step(f) * block, load_rows<F8x2>(floats, apart[p], f.is_bf16),
                      load_rows<F8x2>(f.has_minimum ? floats + LANES : floats, apart[p], false), parts, apart[p]);
        }
        int i = 0;
        for (; i + TOGETHER <= count; i += TOGETHER)
            add_block<F, P, TOGETHER>(w, a.xq, at + i, block, out + COLUMNS * i);
        for (; i < count; ++i) add_block<F, P, 1>(w, a.xq, at + i, block, out + COLUMNS * i);
    }
}
