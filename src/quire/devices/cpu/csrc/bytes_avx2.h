// The operations of bytes.h in AVX2: a vector of one panel.

struct Bytes {
    __m256i v;
};

template <>
struct BytesType<F8> {
    using type = Bytes;
};

template <>
inline Bytes bytes_at<Bytes>(const uint8_t *p, size_t) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))};
}

template <>
inline Bytes four_bytes<Bytes>(const void *p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {_mm256_set1_epi32(bytes)};
}

template <>
inline Bytes each_byte<Bytes>(int x) {
    return {_mm256_set1_epi8(static_cast<char>(x))};
}

template <>
inline Bytes each_short<Bytes>(int x) {
    return {_mm256_set1_epi16(static_cast<int16_t>(x))};
}

inline Bytes operator&(Bytes a, Bytes b) { return {_mm256_and_si256(a.v, b.v)}; }
inline Bytes operator|(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
inline Bytes operator^(Bytes a, Bytes b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline Bytes shifted_right(Bytes a, int count) { return {_mm256_srli_epi16(a.v, count)}; }
inline Bytes shifted_left(Bytes a, int count) { return {_mm256_slli_epi16(a.v, count)}; }

inline Bytes look_up(const int8_t *levels, Bytes a) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i *>(levels));
    return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), a.v)};
}

inline Bytes odd_shorts_of(Bytes a, Bytes b) { return {_mm256_blend_epi16(a.v, b.v, 0xaa)}; }

template <>
inline Bytes twice_at<Bytes>(const int8_t *p, size_t) {
    const __m256i lanes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
    return odd_shorts_of({lanes}, {_mm256_slli_epi32(lanes, 16)});
}

inline Bytes size_of(Bytes weights) { return {_mm256_abs_epi8(weights.v)}; }
inline Bytes signed_by(Bytes values, Bytes weights) { return {_mm256_sign_epi8(values.v, weights.v)}; }

inline Bytes byte_pairs(Bytes a, Bytes b) { return {_mm256_maddubs_epi16(a.v, b.v)}; }
inline Bytes short_pairs(Bytes a, Bytes b) { return {_mm256_madd_epi16(a.v, b.v)}; }

inline Bytes add_shorts(Bytes a, Bytes b) { return {_mm256_add_epi16(a.v, b.v)}; }
inline Bytes multiply_shorts(Bytes a, Bytes b) { return {_mm256_mullo_epi16(a.v, b.v)}; }
inline Bytes add_lanes(Bytes a, Bytes b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Bytes subtract_bytes(Bytes a, Bytes b) { return {_mm256_sub_epi8(a.v, b.v)}; }
inline void put_bytes(uint8_t *p, Bytes a) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), a.v); }

template <>
inline Bytes lanes_at<Bytes>(const int32_t *p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))};
}

inline Bytes subtract_lanes(Bytes a, Bytes b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline F8 floats_of(Bytes lanes) { return {_mm256_cvtepi32_ps(lanes.v)}; }

#if QUIRE_AVX512_VNNI
inline Bytes add_dots(Bytes sums, Bytes a, Bytes b) { return {_mm256_dpbusd_epi32(sums.v, a.v, b.v)}; }
#elif QUIRE_AVX_VNNI
inline Bytes add_dots(Bytes sums, Bytes a, Bytes b) { return {_mm256_dpbusd_avx_epi32(sums.v, a.v, b.v)}; }
#endif

inline void settle(Bytes &sum) { __asm__("" : "+x"(sum.v)); }
