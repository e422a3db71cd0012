// The operations of simd.h in AVX2 with FMA and F16C: one register. AVX-512 uses them too.

struct F8 {
    __m256 v;
};

inline F8 load(const float *p) { return {_mm256_loadu_ps(p)}; }
inline void store(float *p, F8 a) { _mm256_storeu_ps(p, a.v); }
inline F8 set1(float x) { return {_mm256_set1_ps(x)}; }
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 magnitude(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F8 nearest(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline F8 load(const uint16_t *p, bool is_bf16) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    if (!is_bf16) return {_mm256_cvtph_ps(half)};
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}

inline F8 load(const int8_t *p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}

inline void store_f16(uint16_t *p, F8 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

inline int32_t store_bytes(int8_t *p, F8 a, F8 b) {
    const __m256i shorts = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v));  // a0..3 b0..3 a4..7 b4..7
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(shorts, shorts),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_castsi256_si128(bytes));
    const __m256i eight = _mm256_madd_epi16(shorts, _mm256_set1_epi16(1));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline F8 power_of_two(F8 a) {
    const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(n, 23))};
}

inline F8 between(F8 a, int begin, int end, F8 other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                               _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return {_mm256_blendv_ps(other.v, a.v, _mm256_castsi256_ps(inside))};
}

inline float sum(F8 a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float largest(F8 a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
