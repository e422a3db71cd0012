// Integer sums of one block, see dots_portable.h: x86 with dot products of bytes (VNNI).
// Included by kernels.cpp, inside a variant's namespace.

constexpr int SIGN = 128;  // added to a signed byte, it gives an unsigned one

// Unsigned levels, for the multiplication.
template <class B, Format F>
inline B unsigned_at(const uint8_t *quants, size_t apart, int v) {
    const B levels = levels_at<B, F>(quants, apart, v);
    return has_sign(block_format(F)) ? levels ^ each_byte<B>(SIGN) : levels;
}

// What unsigned levels have too much.
template <Format F>
constexpr int SURPLUS = has_sign(block_format(F)) ? SIGN : block_format(F).parts == 2 ? block_format(F).zero : 0;

// The factors of the sums of both halves of a block's values: a part is one of them, or both.
template <class B, Format F>
inline B surplus_factors(int part) {
    const auto factor = [part](int half) {
        return static_cast<int16_t>(block_format(F).parts == 1 || part == half ? -SURPLUS<F> : 0);
    };
    const int16_t factors[2] = {factor(0), factor(1)};
    return four_bytes<B>(factors);
}

// The initial value of a part's sums: minus the surplus of its weights, times the sum of its values.
template <class B, Format F>
inline B minus_surplus(int part, const int16_t *halves) {
    if constexpr (SURPLUS<F> == 0) return each_byte<B>(0);
    else return short_pairs(surplus_factors<B, F>(part), four_bytes<B>(halves));
}

// The instruction multiplies unsigned by signed bytes: subtracting 128 times the values is cheaper than moving the sign
// of each weight to each value. It sums in 32 bits. Two parts with their scales are less than
// 2 ** 24, which float32 adds up exactly (Q6_K 128 * 32 * 127 * 32).
template <Format F, int N, class W>
inline void block_sums(const uint8_t *quants, const int8_t *scales, size_t apart, const Tokens<N> &x, int block,
                       W *out) {
    using B = BytesFor<W>;
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts;
    const int8_t *values[N];
    for (int i = 0; i < N; ++i) values[i] = fixed(x.values[i] + BLOCK * block);
    QUIRE_UNROLL
    for (int part = 0; part < f.parts; ++part) {
        B sums[N];
        for (int i = 0; i < N; ++i) sums[i] = minus_surplus<B, F>(part, x.halves[i] + 2 * block);
        QUIRE_UNROLL
        for (int v = PART * part; v < PART * (part + 1); ++v) {
            const B w = unsigned_at<B, F>(quants, apart, v);
            for (int i = 0; i < N; ++i) sums[i] = add_dots(sums[i], w, four_bytes<B>(values[i] + 4 * v));
        }
        for (int i = 0; i < N; ++i) {
            const W dots = floats_of(sums[i]);
            if constexpr (f.parts == 1)
                out[i] = dots;
            else if (part == 0)
                out[i] = dots * load_rows<W>(scales, apart);
            else
                out[i] = fma(dots, load_rows<W>(scales + LANES, apart), out[i]);
        }
    }
}
