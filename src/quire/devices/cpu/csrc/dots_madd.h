// Integer sums of one block, see dots_portable.h: x86 with products of bytes that are added in pairs (AVX2, and AVX-512
// without VNNI). Included by kernels.cpp, inside a variant's namespace.

// How many vectors a 16-bit lane can sum: two products in each, values are at most 127 in magnitude.
//   largest level   15 -> 8 (30,480)   31 -> 4 (31,496)   63 -> 2 (32,004)   128 -> 1 (32,512)
constexpr int vectors_in_16_bits(int largest) {
    int count = VECTORS;
    while (count * 2 * 127 * largest > INT16_MAX) count /= 2;
    return count;
}

// Sums of two products, 16 bits each. The instruction multiplies unsigned by signed bytes: the sign of a level that has
// one is moved to the values.
template <bool HAS_SIGN, class B>
inline B products_of(B levels, const int8_t *values) {
    const B four = four_bytes<B>(values);
    if constexpr (HAS_SIGN) return byte_pairs(size_of(levels), signed_by(four, levels));
    return byte_pairs(levels, four);
}

// 16-bit sums are widened by a multiplication, which applies the scale of a part too. The zero of both parts is one
// multiplication with the sums of their values. Then a sum is at most 2 ** 24, so that float32 holds it: in Q6_K
// 128 * 32 * 127 * 32.
template <Format F, int N, class W>
inline void block_sums(const uint8_t *quants, const int8_t *scales, size_t apart, const Tokens<N> &x, int block,
                       W *out) {
    using B = BytesFor<W>;
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts, FIT = vectors_in_16_bits(largest_level(f));
    constexpr int RUN = FIT < PART ? FIT : PART, STEP = RUN == VECTORS ? 2 : 1;
    const B ones = each_short<B>(1);
    const B factors[2] = {f.parts == 2 ? twice_at<B>(scales, apart) : ones,
                          f.parts == 2 ? twice_at<B>(scales + LANES, apart) : ones};
    const int8_t *values[N];
    for (int i = 0; i < N; ++i) values[i] = fixed(x.values[i] + BLOCK * block);
    B sums[N], run[N];
    for (int i = 0; i < N; ++i) sums[i] = run[i] = each_byte<B>(0);
    QUIRE_UNROLL
    for (int v = 0; v < VECTORS; v += STEP) {
        const B first = levels_at<B, F>(quants, apart, v), second = levels_at<B, F>(quants, apart, v + STEP - 1);
        for (int i = 0; i < N; ++i) {
            B pairs = products_of<has_sign(f)>(first, values[i] + 4 * v);
            if (STEP == 2) pairs = add_shorts(pairs, products_of<has_sign(f)>(second, values[i] + 4 * v + 4));
            run[i] = v % RUN == 0 ? pairs : add_shorts(run[i], pairs);
            settle(run[i]);
        }
        if ((v + STEP) % RUN != 0) continue;
        for (int i = 0; i < N; ++i) {
            const B whole = short_pairs(run[i], factors[v / PART]);
            sums[i] = v < RUN ? whole : add_lanes(sums[i], whole);
            settle(sums[i]);
        }
    }
    if constexpr (f.parts == 2 && f.zero != 0) {
        const B zeros = multiply_shorts(odd_shorts_of(factors[0], factors[1]), each_short<B>(f.zero));
        for (int i = 0; i < N; ++i)
            sums[i] = subtract_lanes(sums[i], short_pairs(zeros, four_bytes<B>(x.halves[i] + 2 * block)));
    }
    for (int i = 0; i < N; ++i) out[i] = floats_of(sums[i]);
}
