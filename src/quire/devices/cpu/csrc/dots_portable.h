// Whole-number sums of one block of 32 for up to 4 tokens, a lane for each row of a panel: any CPU. Included by
// kernels.cpp, inside a variant's namespace. Sums are exact, so their order is free.

template <int N>
inline void block_sums_q4(const uint8_t *quants, const int8_t *const *x, int at, F8 *out) {
    for (int i = 0; i < N; ++i) {
        int32_t sums[LANES] = {};
        for (int g = 0; g < 4; ++g)
            for (int lane = 0; lane < LANES; ++lane)
                for (int k = 0; k < 4; ++k) {
                    const uint8_t packed = quants[32 * g + 4 * lane + k];
                    sums[lane] += (packed & 15) * x[i][at + 8 * g + k] + (packed >> 4) * x[i][at + 8 * g + 4 + k];
                }
        for (int lane = 0; lane < LANES; ++lane) out[i].v[lane] = static_cast<float>(sums[lane]);
    }
}

template <int N>
inline void block_sums_q8(const uint8_t *quants, const int8_t *const *x, int at, F8 *out) {
    for (int i = 0; i < N; ++i) {
        int32_t sums[LANES] = {};
        for (int g = 0; g < 8; ++g)
            for (int lane = 0; lane < LANES; ++lane)
                for (int k = 0; k < 4; ++k)
                    sums[lane] += static_cast<int8_t>(quants[32 * g + 4 * lane + k]) * x[i][at + 4 * g + k];
        for (int lane = 0; lane < LANES; ++lane) out[i].v[lane] = static_cast<float>(sums[lane]);
    }
}
