// Products of many tokens with quantized weights: AVX-512 with VNNI, which has registers for the unpacked weights of a
// block. Included by products.h.
//
// The weights of a block are unpacked once, of two panels in each register and of up to two such pairs, and then
// multiplied with one token after the other. Sums of tokens are in memory, in L1.

// Tokens whose chains of additions are independent, as many as there are registers for. On an Emerald Rapids 4 are 4 to 9 %
// faster than 2 in formats of one part; on a Zen 4 1 to 4 made no clear difference.
template <Format F>
constexpr int TOGETHER = block_format(F).parts == 1 ? 4 : 2;

// A block of two panels.
template <Format F>
struct UnpackedBlock : BlockScales<F> {
    WideBytes levels[VECTORS];

    void unpack(const uint8_t *quants, size_t apart) {
        QUIRE_UNROLL
        for (int v = 0; v < VECTORS; ++v) levels[v] = unsigned_at<WideBytes, F>(quants, apart, v);
    }
};

// Adds a block's products to the sums of N tokens.
template <Format F, int P, int N>
inline void add_block(const UnpackedBlock<F> (&w)[P], const QuantRows &xq, const size_t *at, int block, float *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts;
    F8x2 dots[N][P] = {};
    QUIRE_UNROLL
    for (int part = 0; part < f.parts; ++part) {
        WideBytes sums[N][P];
        const int8_t *values[N];
        for (int i = 0; i < N; ++i) {
            values[i] = fixed(xq.values + BLOCK * (at[i] + block));
            sums[i][0] = minus_surplus<WideBytes, F>(part, xq.halves + 2 * (at[i] + block));
            for (int p = 1; p < P; ++p) sums[i][p] = sums[i][0];
        }
        QUIRE_UNROLL
        for (int v = PART * part; v < PART * (part + 1); ++v)
            for (int i = 0; i < N; ++i) {
                const WideBytes four = four_bytes<WideBytes>(values[i] + 4 * v);
                for (int p = 0; p < P; ++p) sums[i][p] = add_dots(sums[i][p], w[p].levels[v], four);
            }
        for (int i = 0; i < N; ++i)
            for (int p = 0; p < P; ++p) dots[i][p] = w[p].add_part(part, floats_of(sums[i][p]), dots[i][p]);
    }
    for (int i = 0; i < N; ++i)
        for (int p = 0; p < P; ++p) {
            const size_t from = at[i] + block;
            float *to = out + COLUMNS * i + 2 * LANES * p;
            const F8x2 before = load<F8x2>(to);
            store(to, w[p].add_block(dots[i][p], xq.scales + from, xq.sums + from, xq.halves + 2 * from, before));
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
            w[p].unpack(quants[p] + quants_step(f) * block, apart[p]);
            w[p].read(head[p], block, apart[p]);
        }
        int i = 0;
        for (; i + TOGETHER<F> <= count; i += TOGETHER<F>)
            add_block<F, P, TOGETHER<F>>(w, a.xq, at + i, block, out + COLUMNS * i);
        for (; i < count; ++i) add_block<F, P, 1>(w, a.xq, at + i, block, out + COLUMNS * i);
    }
}
