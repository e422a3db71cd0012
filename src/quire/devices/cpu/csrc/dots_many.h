// Products of many tokens with quantized weights: AVX-512 with VNNI. Included by products.h.
//
// Some blocks of up to four panels are unpacked once for up to MAX_UNPACKED tokens, and stay in L1. A few tokens at a time
// are multiplied with all of them; their sums stay in registers. A register has the rows of two panels.
//
// For each register, a token's block takes 8 instructions that multiply bytes, one for the weights' scale and one for the
// token's, one for a constant part, and half of one for a surplus of the levels. Two parts take three more.

constexpr int IN_L1 = 16;  // blocks that are unpacked together, at most: parts of a row are about equal

// Tokens that are multiplied together: as many as there are registers for, so that additions do not wait.
template <Format F>
constexpr int TOGETHER = block_format(F).parts == 1 ? 6 : 4;

// An integer below 2 ** 22 in magnitude that is added to the bits of this float is added to its value, so integer sums
// that begin with its bits need no conversion. (ORIGIN + sum) * scale - ORIGIN * scale has the bits of sum * scale: it is
// rounded once, and ORIGIN * scale is exact. The powers of two of MXFP4 could make that infinite.
constexpr float ORIGIN = 12582912.0f;
template <Format F>
constexpr bool HAS_ORIGIN = !block_format(F).is_bf16;

// Blocks of P pairs of panels.
template <Format F, int P>
struct BlocksInL1 {
    alignas(64) uint8_t levels[IN_L1][VECTORS][P][2 * VECTOR];
    BlockScales<F> scales[IN_L1][P];
    F8x2 origins[IN_L1][P];  // minus ORIGIN * scale; of two parts, that of the first

    void unpack(const Matrix &m, int panel, int first, int count) {
        constexpr BlockFormat f = block_format(F);
        for (int p = 0; p < P; ++p) {
            const uint8_t *head = m.panel(panel + 2 * p);
            const uint8_t *quants = head + heads_size(f, m.num_blocks()) + quants_step(f) * first;
            const size_t apart = apart_from(m, panel + 2 * p);
            for (int b = 0; b < count; ++b, quants += quants_step(f)) {
                QUIRE_UNROLL for (int v = 0; v < VECTORS; ++v)
                    put_bytes(levels[b][v][p], unsigned_at<WideBytes, F>(quants, apart, v));
                BlockScales<F> &s = scales[b][p];
                s.read(head, first + b, apart);
                origins[b][p] = (f.parts == 1 ? s.scale : s.scales[0]) * set1<F8x2>(-ORIGIN);
            }
        }
    }

    // The first value of a part's integer sums.
    static WideBytes first_sum(int part, const int16_t *halves) {
        const WideBytes origin = bits_of(set1<F8x2>(HAS_ORIGIN<F> && part == 0 ? ORIGIN : 0.0f));
        if constexpr (SURPLUS<F> == 0) return origin;
        else return add_short_pairs(origin, surplus_factors<WideBytes, F>(part), four_bytes<WideBytes>(halves));
    }

    // The integer sums of a part, scaled and added to those of the part before; the last ones by the block's scale, too.
    F8x2 scaled(int b, int p, int part, WideBytes sums, F8x2 before) const {
        const BlockScales<F> &s = scales[b][p];
        if constexpr (block_format(F).parts == 1)
            return HAS_ORIGIN<F> ? fma(floats_with(sums), s.scale, origins[b][p]) : floats_of(sums) * s.scale;
        else
            return part == 0 ? fma(floats_with(sums), s.scales[0], origins[b][p])
                             : s.add_part(1, floats_of(sums), before) * s.scale;
    }
};

// Adds `count` blocks, from `first` on, to the sums of N tokens.
template <Format F, int P, int N>
inline void add_in_l1(const BlocksInL1<F, P> &w, const QuantRows &xq, const size_t *at, int first, int count,
                      PanelsAhead &ahead, float *out) {
    constexpr int PARTS = block_format(F).parts, PART = VECTORS / PARTS;
    F8x2 acc[N][P];
    QUIRE_UNROLL for (int i = 0; i < N; ++i)
        QUIRE_UNROLL for (int p = 0; p < P; ++p) acc[i][p] = load<F8x2>(out + COLUMNS * i + 2 * LANES * p);
    for (int b = 0; b < count; ++b) {
        ahead.fetch();
        F8x2 dots[N][P] = {};
        QUIRE_UNROLL for (int part = 0; part < PARTS; ++part) {
            WideBytes sums[N][P];
            QUIRE_UNROLL for (int i = 0; i < N; ++i)
                QUIRE_UNROLL for (int p = 0; p < P; ++p)
                    sums[i][p] = p ? sums[i][0] : w.first_sum(part, xq.halves + 2 * (at[i] + first + b));
            QUIRE_UNROLL for (int v = PART * part; v < PART * (part + 1); ++v)
                QUIRE_UNROLL for (int i = 0; i < N; ++i) {
                    const WideBytes four = four_bytes<WideBytes>(xq.values + BLOCK * (at[i] + first + b) + 4 * v);
                    QUIRE_UNROLL for (int p = 0; p < P; ++p)
                        sums[i][p] = add_dots(sums[i][p], bytes_of(w.levels[b][v][p]), four);
                }
            QUIRE_UNROLL for (int i = 0; i < N; ++i)
                QUIRE_UNROLL for (int p = 0; p < P; ++p) dots[i][p] = w.scaled(b, p, part, sums[i][p], dots[i][p]);
        }
        QUIRE_UNROLL for (int i = 0; i < N; ++i) {
            const size_t from = at[i] + first + b;
            const float *scale = xq.scales + from, *sum = xq.sums + from;
            QUIRE_UNROLL for (int p = 0; p < P; ++p)
                acc[i][p] = w.scales[b][p].add_scaled(dots[i][p], scale, sum, xq.halves + 2 * from, acc[i][p]);
        }
    }
    QUIRE_UNROLL for (int i = 0; i < N; ++i)
        QUIRE_UNROLL for (int p = 0; p < P; ++p) store(out + COLUMNS * i + 2 * LANES * p, acc[i][p]);
}

// Up to MAX_UNPACKED times P pairs of panels. The last token is repeated where tiles are not whole, and `out` has room.
template <Format F, int P>
[[gnu::noinline]] void many_tokens(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    constexpr int MOST = TOGETHER<F>, LEAST = 4;
    BlocksInL1<F, P> w;
    size_t at[MAX_UNPACKED + SPARE_TOKENS];
    for (int i = 0; i < count + SPARE_TOKENS; ++i) {
        at[i] = static_cast<size_t>(a.order.source(token + smaller(i, count - 1))) * a.xq.blocks;
        for (int p = 0; p < P; ++p) store(out + COLUMNS * i + 2 * LANES * p, set1<F8x2>(0.0f));
    }
    const int num_parts = (m.num_blocks() + IN_L1 - 1) / IN_L1, most = (m.num_blocks() + num_parts - 1) / num_parts;
    PanelsAhead ahead(m, panel + 2 * P, 2 * P, m.num_blocks() * ((count + MOST - 1) / MOST));
    for (int first = 0; first < m.num_blocks(); first += most) {
        const int blocks = smaller(most, m.num_blocks() - first);
        w.unpack(m, panel, first, blocks);
        for (int i = 0; i < count;) {
            const int left = count - i, size = left > 2 * LEAST || left == MOST - 1 || left == MOST ? MOST : LEAST;
            if (size == MOST) add_in_l1<F, P, MOST>(w, a.xq, at + i, first, blocks, ahead, out + COLUMNS * i);
            else add_in_l1<F, P, LEAST>(w, a.xq, at + i, first, blocks, ahead, out + COLUMNS * i);
            i += size;
        }
    }
}
