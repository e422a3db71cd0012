// Integer sums of one block of 32 for up to 4 tokens, a lane for each row of a panel: any CPU. Included by kernels.cpp,
// inside a variant's namespace.
//
// A variant provides one function for all block formats; sums are exact, so their order does not matter:
//
//   block_sums<Format, N, W>(quants, scales, apart, x, block, out)    out[i] of token i, in each lane:
//     formats with one part     sum of 32 level * value; the caller applies scale, zero and minimum
//     formats with two parts    sum over both parts of scale [part][lane] * (sum of 16 (level - zero) * value); the
//                               caller applies the rest of the scale, and the minimum
//
// W is F8, or F8x2 in a variant that multiplies two panels at once: the second is `apart` bytes from the first.
//
// A variant may use its own kernel for some formats and portable::block_sums for the others.

// The tokens that a tile multiplies with a panel: rows of QuantRows.
template <int N>
struct Tokens {
    const int8_t *values[N];
    const float *scales[N], *sums[N];
    const int16_t *halves[N];
};

namespace portable {

// How many vectors a 16-bit number can sum, one product of each; values are at most 127 in magnitude.
constexpr int vectors_in_16_bits(int largest) {
    int count = VECTORS;
    while (count * 127 * largest > INT16_MAX) count /= 2;
    return count;
}

// Adds the bits of one plane at bit AT of all quants.
template <int WIDTH, int AT>
inline void add_plane(const uint8_t *plane, int16_t *to) {
    for (int v = 0; v < VECTORS; ++v)
        for (int i = 0; i < VECTOR; ++i) {
            const uint16_t byte = plane[VECTOR * (v * WIDTH / 8) + i];
            const uint16_t bits = static_cast<uint16_t>(byte >> (v * WIDTH % 8)) & ((1 << WIDTH) - 1);
            to[VECTOR * v + i] = static_cast<int16_t>((AT ? to[VECTOR * v + i] : 0) | bits << AT);
        }
}

// Levels: [vector][lane][4].
template <Format F>
inline void unpack(const uint8_t *quants, int16_t *to) {
    constexpr BlockFormat f = block_format(F);
    constexpr int LOW = f.bits & 4 ? 4 : 2, HIGH = f.bits - LOW;
    if constexpr (f.bits == 8) {
        for (int i = 0; i < VECTORS * VECTOR; ++i) to[i] = static_cast<int8_t>(quants[i]);
        return;
    }
    add_plane<LOW, 0>(quants, to);
    if constexpr (HIGH > 0) add_plane<HIGH, LOW>(quants + VECTOR * LOW, to);
    if constexpr (f.table != Table::NONE)
        for (int i = 0; i < VECTORS * VECTOR; ++i) to[i] = static_cast<int16_t>(level_of(f, to[i]));
}

// Products of one vector for one token, [lane][4], in 16 bits, in a form that compilers vectorize.
inline void add_products(const int16_t *weights, const int8_t *values, int16_t *sums) {
    const int16_t four[4] = {values[0], values[1], values[2], values[3]};
    int16_t each[VECTOR];
    for (int lane = 0; lane < LANES; ++lane) std::memcpy(each + 4 * lane, four, sizeof four);
    for (int i = 0; i < VECTOR; ++i) sums[i] = static_cast<int16_t>(sums[i] + weights[i] * each[i]);
}

// Sums of COUNT vectors for one token, a lane for each row.
template <int COUNT, int RUN>
inline void dots_of(const int16_t *weights, const int8_t *values, int32_t *dots) {
    int32_t sums[VECTOR] = {};
    for (int first = 0; first < COUNT; first += RUN) {
        int16_t run[VECTOR] = {};
        for (int v = first; v < first + RUN; ++v) add_products(weights + VECTOR * v, values + 4 * v, run);
        for (int i = 0; i < VECTOR; ++i) sums[i] += run[i];
    }
    for (int lane = 0; lane < LANES; ++lane)
        dots[lane] = sums[4 * lane] + sums[4 * lane + 1] + sums[4 * lane + 2] + sums[4 * lane + 3];
}

template <Format F, int N, class W>
inline void block_sums(const uint8_t *quants, const int8_t *scales, size_t, const Tokens<N> &x, int block, W *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts, FIT = vectors_in_16_bits(largest_level(f)), RUN = FIT < PART ? FIT : PART;
    int16_t weights[VECTORS * VECTOR];
    unpack<F>(quants, weights);
    for (int i = 0; i < N; ++i) {
        const int8_t *values = x.values[i] + BLOCK * block;
        int32_t sums[LANES];
        dots_of<PART, RUN>(weights, values, sums);
        if constexpr (f.parts == 2) {
            const int16_t *halves = x.halves[i] + 2 * block;
            int32_t others[LANES];
            dots_of<PART, RUN>(weights + VECTOR * PART, values + 4 * PART, others);
            for (int lane = 0; lane < LANES; ++lane)
                sums[lane] = scales[lane] * (sums[lane] - f.zero * halves[0]) +
                             scales[LANES + lane] * (others[lane] - f.zero * halves[1]);
        }
        float numbers[LANES];
        for (int lane = 0; lane < LANES; ++lane) numbers[lane] = static_cast<float>(sums[lane]);
        out[i] = load(numbers);
    }
}

}  // namespace portable
