// Whole-number sums of one block, see dots_portable.h: x86 with the instruction for dot products of bytes (VNNI).
// Included by kernels.cpp, inside a variant's namespace.

constexpr int SIGN = 128;  // added to a number with a sign, it makes one without

// What is multiplied: levels, without a sign.
template <Format F>
inline Bytes unsigned_at(const uint8_t *quants, size_t apart, int v) {
    const Bytes levels = levels_at<F>(quants, apart, v);
    return has_sign(block_format(F)) ? levels ^ each_byte(SIGN) : levels;
}

// What the sums of a part begin with: what its weights have too much, times the sum of its values.
template <Format F>
inline Bytes minus_surplus(int part, const int16_t *halves) {
    constexpr BlockFormat f = block_format(F);
    constexpr int surplus = has_sign(f) ? SIGN : f.parts == 2 ? f.zero : 0;
    if constexpr (surplus == 0) return each_byte(0);
    const auto factor = [part](int half) { return static_cast<int16_t>(f.parts == 1 || part == half ? -surplus : 0); };
    const int16_t factors[2] = {factor(0), factor(1)};
    return short_pairs(four_bytes(factors), four_bytes(halves));
}

// The instruction multiplies bytes without a sign by bytes with one: taking 128 times the values away again is cheaper
// than moving the sign of each weight to each value. It adds up in 32 bits. Two parts with their scales are less than
// 2 ** 24, which float32 adds up exactly (Q6_K 128 * 32 * 127 * 32).
template <Format F, int N>
inline void block_sums(const uint8_t *quants, const int8_t *scales, size_t apart, const Tokens<N> &x, int block,
                       Widest *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts;
    const int8_t *values[N];
    for (int i = 0; i < N; ++i) values[i] = fixed(x.values[i] + BLOCK * block);
    QUIRE_UNROLL
    for (int part = 0; part < f.parts; ++part) {
        Bytes sums[N];
        for (int i = 0; i < N; ++i) sums[i] = minus_surplus<F>(part, x.halves[i] + 2 * block);
        QUIRE_UNROLL
        for (int v = PART * part; v < PART * (part + 1); ++v) {
            const Bytes w = unsigned_at<F>(quants, apart, v);
            for (int i = 0; i < N; ++i) sums[i] = add_dots(sums[i], w, four_bytes(values[i] + 4 * v));
        }
        for (int i = 0; i < N; ++i) {
            const Widest dots = floats_of(sums[i]);
            if constexpr (f.parts == 1)
                out[i] = dots;
            else if (part == 0)
                out[i] = dots * load_rows(scales, apart);
            else
                out[i] = fma(dots, load_rows(scales + LANES, apart), out[i]);
        }
    }
}
