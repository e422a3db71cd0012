// Whole-number sums of one block of 32 for up to 4 tokens, a lane for each row of a panel: AVX2. Included by
// kernels.cpp, inside a variant's namespace. Sums are exact, so their order is free.

inline __m256i four_values(const int8_t *p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

inline __m256i bytes_at(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }

// Makes a sum final here. Left alone, GCC reorders all additions of a block, keeps every product until the end, and
// spills most of them: half the speed.
inline void settle(__m256i &sum) {
#if defined(__GNUC__)
    __asm__("" : "+x"(sum));
#endif
}

// Nibbles are at most 15 and values at most 127 in magnitude: the 16 products that a 16-bit lane adds up stay below
// 30,480, so one widening at the end is enough.
template <int N>
inline void block_sums_q4(const uint8_t *quants, const int8_t *const *x, int at, F8 *out) {
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sums[N];
    for (int i = 0; i < N; ++i) sums[i] = _mm256_setzero_si256();
    for (int g = 0; g < 4; ++g) {
        const __m256i packed = bytes_at(quants + 32 * g);
        const __m256i first = _mm256_and_si256(packed, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
        for (int i = 0; i < N; ++i) {
            const __m256i a = _mm256_maddubs_epi16(first, four_values(x[i] + at + 8 * g));
            const __m256i b = _mm256_maddubs_epi16(second, four_values(x[i] + at + 8 * g + 4));
            sums[i] = _mm256_add_epi16(sums[i], _mm256_add_epi16(a, b));
            settle(sums[i]);
        }
    }
    for (int i = 0; i < N; ++i) out[i] = {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums[i], ones))};
}

// The instruction multiplies unsigned by signed bytes, so the weight's sign is moved to the value. Two products are at
// most 2 * 128 * 127: they fit 16 bits, more would not.
template <int N>
inline void block_sums_q8(const uint8_t *quants, const int8_t *const *x, int at, F8 *out) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums[N];
    for (int i = 0; i < N; ++i) sums[i] = _mm256_setzero_si256();
    for (int g = 0; g < 8; ++g) {
        const __m256i w = bytes_at(quants + 32 * g), size = _mm256_abs_epi8(w);
        for (int i = 0; i < N; ++i) {
            const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four_values(x[i] + at + 4 * g), w));
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
            settle(sums[i]);
        }
    }
    for (int i = 0; i < N; ++i) out[i] = {_mm256_cvtepi32_ps(sums[i])};
}
