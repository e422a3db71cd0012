// Integer sums of one block, see dots_portable.h: plain NEON, with dot products (asimddp), or with matrix products
// (i8mm). Included by kernels.cpp, inside a variant's namespace.

// A vector of a block: rows 0..3, rows 4..7.
struct Bytes {
    int8x16_t low, high;
};

// The bits of half of vector v in one plane, moved to bit AT of each byte; a mask removes other bits.
template <int WIDTH, int AT>
inline uint8x16_t plane_at(const uint8_t *plane, int v) {
    const uint8x16_t bytes = vld1q_u8(plane + VECTOR * (v * WIDTH / 8));
    const int from = v * WIDTH % 8;
    const uint8x16_t moved = from >= AT ? bytes >> (from - AT) : bytes << (AT - from);
    if (AT == 0 && from + WIDTH == 8) return moved;  // there are no bits above
    return moved & vdupq_n_u8(static_cast<uint8_t>(((1 << WIDTH) - 1) << AT));
}

// Quants of half of vector v, one in each byte.
template <int BITS>
inline int8x16_t half_at(const uint8_t *quants, int v) {
    constexpr int LOW = BITS & 4 ? 4 : 2, HIGH = BITS - LOW;
    if constexpr (BITS == 8)
        return vreinterpretq_s8_u8(vld1q_u8(quants + VECTOR * v));
    else if constexpr (HIGH == 0)
        return vreinterpretq_s8_u8(plane_at<LOW, 0>(quants, v));
    else
        return vreinterpretq_s8_u8(plane_at<LOW, 0>(quants, v) | plane_at<HIGH, LOW>(quants + VECTOR * LOW, v));
}

// Levels of vector v.
template <Format F>
inline Bytes levels_at(const uint8_t *quants, int v) {
    constexpr BlockFormat f = block_format(F);
    const Bytes all = {half_at<f.bits>(quants, v), half_at<f.bits>(quants + VECTOR / 2, v)};
    if constexpr (f.table == Table::NONE) return all;
    const int8x16_t levels = vld1q_s8(levels_in(f.table));
    return {vqtbl1q_s8(levels, vreinterpretq_u8_s8(all.low)), vqtbl1q_s8(levels, vreinterpretq_u8_s8(all.high))};
}

// Sums of one token: rows 0..3, rows 4..7.
struct RowSums {
    int32x4_t low, high;
};

// Three ways to sum vectors, two at a time: `add` those at V and V + 1, of N tokens whose values of the block are at x;
// then `of` returns a token's sums.

#if QUIRE_DOTPROD

template <Format F, int N>
struct DotSums {
    RowSums sums[N];

    DotSums() {
        for (RowSums &sum : sums) sum.low = sum.high = vdupq_n_s32(0);
    }

    template <int V>
    void add(Bytes first, Bytes second, const int8_t *const *x) {
        for (int i = 0; i < N; ++i) {
            const int8x16_t values = vld1q_s8(x[i] + 16 * (V / 4));
            sums[i].low = vdotq_laneq_s32(sums[i].low, first.low, values, V % 4);
            sums[i].high = vdotq_laneq_s32(sums[i].high, first.high, values, V % 4);
            sums[i].low = vdotq_laneq_s32(sums[i].low, second.low, values, V % 4 + 1);
            sums[i].high = vdotq_laneq_s32(sums[i].high, second.high, values, V % 4 + 1);
        }
    }

    RowSums of(int i) const { return sums[i]; }
};

#endif

#if QUIRE_I8MM

// Two tokens at once: the instruction multiplies 8 columns of two rows with those of two tokens. A last odd
// token is paired with itself.
template <Format F, int N>
struct PairSums {
    static constexpr int PAIRS = (N + 1) / 2;
    int32x4_t sums[PAIRS][4];  // rows 0 1, 2 3, 4 5, 6 7: (row, token) (row, token + 1) (row + 1, token) ...

    PairSums() {
        for (auto &pair : sums)
            for (int32x4_t &sum : pair) sum = vdupq_n_s32(0);
    }

    static int8x16_t first_rows(int8x16_t a, int8x16_t b) {
        return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
    }
    static int8x16_t last_rows(int8x16_t a, int8x16_t b) {
        return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
    }

    template <int V>
    void add(Bytes first, Bytes second, const int8_t *const *x) {
        const int8x16_t rows[4] = {first_rows(first.low, second.low), last_rows(first.low, second.low),
                                   first_rows(first.high, second.high), last_rows(first.high, second.high)};
        for (int i = 0; i < PAIRS; ++i) {
            const int8_t *next = x[2 * i + 1 < N ? 2 * i + 1 : 2 * i];
            const int8x16_t values = vcombine_s8(vld1_s8(x[2 * i] + 4 * V), vld1_s8(next + 4 * V));
            for (int r = 0; r < 4; ++r) sums[i][r] = vmmlaq_s32(sums[i][r], rows[r], values);
        }
    }

    RowSums of(int i) const {
        const int32x4_t *s = sums[i / 2];
        if (i % 2 == 0) return {vuzp1q_s32(s[0], s[1]), vuzp1q_s32(s[2], s[3])};
        return {vuzp2q_s32(s[0], s[1]), vuzp2q_s32(s[2], s[3])};
    }
};

#endif

#if !QUIRE_DOTPROD

inline int8x16_t four_bytes(const int8_t *p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

// How many vectors of a part a 16-bit lane can sum, one product in each: at least two (128 * 127 each).
constexpr int vectors_in_16_bits(const BlockFormat &f) {
    int count = VECTORS / f.parts;
    while (count * 127 * largest_level(f) > INT16_MAX) count /= 2;
    return count;
}

template <Format F, int N>
struct LongSums {
    static constexpr int RUN = vectors_in_16_bits(block_format(F));
    int16x8_t run[N][4];   // rows 0 1, 2 3, 4 5, 6 7: four lanes each
    int32x4_t sums[N][4];  // two lanes each

    LongSums() {
        for (auto &token : sums)
            for (int32x4_t &sum : token) sum = vdupq_n_s32(0);
    }

    template <int V>
    void add(Bytes first, Bytes second, const int8_t *const *x) {
        for (int i = 0; i < N; ++i) {
            const int8x16_t a = four_bytes(x[i] + 4 * V), b = four_bytes(x[i] + 4 * V + 4);
            int16x8_t *r = run[i];
            if constexpr (V % RUN == 0) {
                r[0] = vmull_s8(vget_low_s8(first.low), vget_low_s8(a)), r[1] = vmull_high_s8(first.low, a);
                r[2] = vmull_s8(vget_low_s8(first.high), vget_low_s8(a)), r[3] = vmull_high_s8(first.high, a);
            } else {
                r[0] = vmlal_s8(r[0], vget_low_s8(first.low), vget_low_s8(a)), r[1] = vmlal_high_s8(r[1], first.low, a);
                r[2] = vmlal_s8(r[2], vget_low_s8(first.high), vget_low_s8(a)), r[3] = vmlal_high_s8(r[3], first.high, a);
            }
            r[0] = vmlal_s8(r[0], vget_low_s8(second.low), vget_low_s8(b)), r[1] = vmlal_high_s8(r[1], second.low, b);
            r[2] = vmlal_s8(r[2], vget_low_s8(second.high), vget_low_s8(b)), r[3] = vmlal_high_s8(r[3], second.high, b);
            if constexpr ((V + 2) % RUN == 0)
                for (int k = 0; k < 4; ++k) sums[i][k] = vpadalq_s16(sums[i][k], r[k]);
        }
    }

    RowSums of(int i) const {
        return {vpaddq_s32(sums[i][0], sums[i][1]), vpaddq_s32(sums[i][2], sums[i][3])};
    }
};

#endif

#if QUIRE_I8MM
template <Format F, int N>
struct Sums : PairSums<F, N> {};
template <Format F>
struct Sums<F, 1> : DotSums<F, 1> {};
#elif QUIRE_DOTPROD
template <Format F, int N>
struct Sums : DotSums<F, N> {};
#else
template <Format F, int N>
struct Sums : LongSums<F, N> {};
#endif

// Vectors V to END - 1 of a block.
template <int V, int END, Format F, int N>
inline void add_vectors(Sums<F, N> &sums, const uint8_t *quants, const int8_t *const *x) {
    sums.template add<V>(levels_at<F>(quants, V), levels_at<F>(quants, V + 1), x);
    if constexpr (V + 2 < END) add_vectors<V + 2, END>(sums, quants, x);
}

// Part PART of a block: the sum of level * value, or with two parts, of (level - zero) * value.
template <Format F, int PART, int N>
inline void part_sums(const uint8_t *quants, const Tokens<N> &x, int block, F8 *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int COUNT = VECTORS / f.parts;
    const int8_t *values[N];
    for (int i = 0; i < N; ++i) values[i] = x.values[i] + BLOCK * block;
    Sums<F, N> sums;
    add_vectors<COUNT * PART, COUNT * (PART + 1)>(sums, quants, values);
    for (int i = 0; i < N; ++i) {
        RowSums rows = sums.of(i);
        if constexpr (f.parts == 2 && f.zero != 0) {
            const int32x4_t zeros = vdupq_n_s32(f.zero * x.halves[i][2 * block + PART]);
            rows.low = vsubq_s32(rows.low, zeros), rows.high = vsubq_s32(rows.high, zeros);
        }
        out[i] = {vcvtq_f32_s32(rows.low), vcvtq_f32_s32(rows.high)};
    }
}

// Two parts with their scales are less than 2 ** 24, which float32 adds up exactly (Q6_K 128 * 32 * 127 * 32).
template <Format F, int N, class W>
inline void block_sums(const uint8_t *quants, const int8_t *scales, size_t, const Tokens<N> &x, int block, W *out) {
    part_sums<F, 0, N>(quants, x, block, out);
    if constexpr (block_format(F).parts == 2) {
        F8 second[N];
        part_sums<F, 1, N>(quants, x, block, second);
        for (int i = 0; i < N; ++i) out[i] = fma(second[i], load(scales + LANES), out[i] * load(scales));
    }
}
