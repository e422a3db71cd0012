// Whole-number sums of one block of 32 for up to 4 tokens, a lane for each row of a panel: any CPU. Included by
// kernels.cpp, inside a variant's namespace.
//
// A variant offers one function, for all block formats; sums are exact, so that their order is free:
//
//   block_sums<Format, N>(quants, scales, x, block, out)    out[i] of token i, in each lane:
//     formats with one part     sum of 32 quants (or their levels) times values; zero and minimum are the caller's
//     formats with two parts    sum over both parts of scale [part][lane] * (sum of 16 (quant - zero) * value)
//
// Its own kernel for some formats and portable::block_sums for the others make a variant complete.

// What a tile of products multiplies with a panel: rows of QuantRows.
template <int N>
struct Tokens {
    const int8_t *values[N];
    const float *scales[N], *sums[N];
    const int16_t *halves[N];
};

namespace portable {

// What is multiplied: [vector][lane][4].
template <Format F>
inline void unpack(const uint8_t *quants, int8_t *to) {
    constexpr BlockFormat f = block_format(F);
    for (int v = 0; v < VECTORS; ++v)
        for (int i = 0; i < VECTOR; ++i) {
            const int quant = quant_at(f, quants, v, i);
            to[VECTOR * v + i] = static_cast<int8_t>(f.levels ? f.levels[quant] : quant);
        }
}

template <Format F, int N>
inline void block_sums(const uint8_t *quants, const int8_t *scales, const Tokens<N> &x, int block, F8 *out) {
    constexpr BlockFormat f = block_format(F);
    int8_t weights[VECTORS * VECTOR];
    unpack<F>(quants, weights);
    for (int i = 0; i < N; ++i) {
        const int8_t *values = x.values[i] + BLOCK * block;
        int32_t sums[LANES] = {};
        for (int part = 0; part < f.parts; ++part) {
            int32_t dots[LANES] = {};
            for (int v = VECTORS / f.parts * part; v < VECTORS / f.parts * (part + 1); ++v)
                for (int lane = 0; lane < LANES; ++lane)
                    for (int k = 0; k < 4; ++k) dots[lane] += weights[VECTOR * v + 4 * lane + k] * values[4 * v + k];
            for (int lane = 0; lane < LANES; ++lane)
                sums[lane] += f.parts == 1 ? dots[lane]
                                           : scales[LANES * part + lane] *
                                                 (dots[lane] - f.zero * x.halves[i][2 * block + part]);
        }
        float numbers[LANES];
        for (int lane = 0; lane < LANES; ++lane) numbers[lane] = static_cast<float>(sums[lane]);
        out[i] = load(numbers);
    }
}

}  // namespace portable
