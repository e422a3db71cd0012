// Eight floats at once, in the words that kernels are written with. Included by kernels.cpp alone, inside the namespace
// of one variant, so that two variants never share a symbol.
//
// `fma` may round once (AVX2) or twice (portable): a variant is equal to itself at any batch size, not to another one.
// The compiler must not fuse on its own (-ffp-contract=off), or two places would round the same sum differently.

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define QUIRE_AVX2 1

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

// 2 ** a for whole numbers from -126 to 127.
inline F8 power_of_two(F8 a) {
    const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(n, 23))};
}

// Lanes begin..end - 1 of a, and `other` elsewhere.
inline F8 between(F8 a, int begin, int end, F8 other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                               _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return {_mm256_blendv_ps(other.v, a.v, _mm256_castsi256_ps(inside))};
}

#else

struct F8 {
    float v[LANES];
};

#define QUIRE_EACH(expression)                          \
    F8 out;                                             \
    for (int i = 0; i < LANES; ++i) out.v[i] = (expression); \
    return out

inline F8 load(const float *p) { QUIRE_EACH(p[i]); }
inline void store(float *p, F8 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F8 set1(float x) { QUIRE_EACH(x); }
inline F8 operator+(F8 a, F8 b) { QUIRE_EACH(a.v[i] + b.v[i]); }
inline F8 operator-(F8 a, F8 b) { QUIRE_EACH(a.v[i] - b.v[i]); }
inline F8 operator*(F8 a, F8 b) { QUIRE_EACH(a.v[i] * b.v[i]); }
inline F8 operator/(F8 a, F8 b) { QUIRE_EACH(a.v[i] / b.v[i]); }
inline F8 fma(F8 a, F8 b, F8 c) { QUIRE_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline F8 max(F8 a, F8 b) { QUIRE_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F8 min(F8 a, F8 b) { QUIRE_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F8 magnitude(F8 a) { QUIRE_EACH(a.v[i] < 0.0f ? -a.v[i] : a.v[i]); }

// Adding 1.5 * 2 ** 23 leaves no bits below one: ties go to even, as the instruction does.
inline F8 nearest(F8 a) { QUIRE_EACH((a.v[i] + 12582912.0f) - 12582912.0f); }

inline F8 load(const uint16_t *p, bool is_bf16) {
    QUIRE_EACH(is_bf16 ? half::from_bf16(p[i]) : half::from_f16(p[i]));
}

inline F8 load(const int8_t *p) { QUIRE_EACH(static_cast<float>(p[i])); }

inline void store_f16(uint16_t *p, F8 a) {
    for (int i = 0; i < LANES; ++i) p[i] = half::to_f16(a.v[i]);
}

inline F8 power_of_two(F8 a) {
    F8 out;
    for (int i = 0; i < LANES; ++i) {
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) + 127) << 23;
        std::memcpy(&out.v[i], &bits, sizeof bits);
    }
    return out;
}

inline F8 between(F8 a, int begin, int end, F8 other) { QUIRE_EACH(begin <= i && i < end ? a.v[i] : other.v[i]); }

#endif

#if defined(__GNUC__)
inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
#else
inline void prefetch(const void *) {}
#endif

// Always the same tree, so that a sum does not depend on the variant's instructions for it.
#if QUIRE_AVX2
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
#else
inline float sum(F8 a) {
    float x[LANES];
    store(x, a);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

inline float largest(F8 a) {
    float x[LANES];
    store(x, a);
    float most = x[0];
    for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
    return most;
}
#endif

// e ** x to about one unit in the last place; what would leave the range of float32 is held at its ends.
inline F8 exponential(F8 x) {
    x = min(max(x, set1(-87.0f)), set1(88.0f));
    const F8 n = nearest(x * set1(1.44269504f));
    F8 r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    F8 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p * r, r, r + set1(1.0f));
    return p * power_of_two(n);
}
