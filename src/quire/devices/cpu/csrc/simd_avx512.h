// F8x2 of simd.h: sixteen floats in one register of AVX-512. F8 is that of AVX2.

struct F8x2 {
    __m512 v;
};

inline F8x2 join(F8 low, F8 high) { return {_mm512_insertf32x8(_mm512_castps256_ps512(low.v), high.v, 1)}; }
inline F8 low_of(F8x2 a) { return {_mm512_castps512_ps256(a.v)}; }
inline F8 high_of(F8x2 a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }
inline void store(float *p, F8x2 a) { _mm512_storeu_ps(p, a.v); }
inline F8x2 operator+(F8x2 a, F8x2 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F8x2 operator-(F8x2 a, F8x2 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F8x2 operator*(F8x2 a, F8x2 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F8x2 operator/(F8x2 a, F8x2 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F8x2 fma(F8x2 a, F8x2 b, F8x2 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F8x2 max(F8x2 a, F8x2 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F8x2 min(F8x2 a, F8x2 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F8x2 magnitude(F8x2 a) { return {_mm512_abs_ps(a.v)}; }
inline F8x2 nearest(F8x2 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// See tokenwise.h. The conversion rounds. What is too small is clamped in bytes; what is too large before, since it
// would become negative. Sums are those of absolute differences from -128.
inline void round_block(const F8x2 *part, F8x2 factor, int8_t *values, int32_t *halves) {
    const __m512 high = _mm512_set1_ps(127.0f);
    const __m512i first = _mm512_cvtps_epi32(_mm512_min_ps(high, _mm512_mul_ps(part[0].v, factor.v)));
    const __m512i second = _mm512_cvtps_epi32(_mm512_min_ps(high, _mm512_mul_ps(part[1].v, factor.v)));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtsepi32_epi8(first)),
                                                 _mm512_cvtsepi32_epi8(second), 1);
    const __m256i bytes = _mm256_max_epi8(both, _mm256_set1_epi8(-127));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(values), bytes);
    const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m256i sums = _mm256_add_epi64(eights, _mm256_shuffle_epi32(eights, 0x4e));
    halves[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums)) - 128 * 2 * LANES;
    halves[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)) - 128 * 2 * LANES;
}

inline F8x2 power_of_two(F8x2 a) {
    const __m512i n = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(n, 23))};
}

inline F8x2 between(F8x2 a, int begin, int end, F8x2 other) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin)) &
                             _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
    return {_mm512_mask_blend_ps(inside, other.v, a.v)};
}

template <>
inline F8x2 set1<F8x2>(float x) {
    return {_mm512_set1_ps(x)};
}

template <>
inline F8x2 load<F8x2>(const float *p) {
    return {_mm512_loadu_ps(p)};
}

template <>
inline F8x2 load<F8x2>(const uint16_t *p, bool is_bf16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    if (!is_bf16) return {_mm512_cvtph_ps(halves)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
