// The operations of bytes.h in AVX-512: a vector of two panels, the second at `apart` bytes. A single panel uses the
// Bytes of AVX2.

struct WideBytes {
    __m512i v;
};

template <>
struct BytesType<F8x2> {
    using type = WideBytes;
};

template <>
inline WideBytes bytes_at<WideBytes>(const uint8_t *p, size_t apart) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + apart));
    return {_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
}

template <>
inline WideBytes four_bytes<WideBytes>(const void *p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {_mm512_set1_epi32(bytes)};
}

template <>
inline WideBytes each_byte<WideBytes>(int x) {
    return {_mm512_set1_epi8(static_cast<char>(x))};
}

template <>
inline WideBytes each_short<WideBytes>(int x) {
    return {_mm512_set1_epi16(static_cast<int16_t>(x))};
}

inline WideBytes operator&(WideBytes a, WideBytes b) { return {_mm512_and_si512(a.v, b.v)}; }
inline WideBytes operator|(WideBytes a, WideBytes b) { return {_mm512_or_si512(a.v, b.v)}; }
inline WideBytes operator^(WideBytes a, WideBytes b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline WideBytes shifted_right(WideBytes a, int count) { return {_mm512_srli_epi16(a.v, static_cast<unsigned>(count))}; }
inline WideBytes shifted_left(WideBytes a, int count) { return {_mm512_slli_epi16(a.v, static_cast<unsigned>(count))}; }

inline WideBytes look_up(const int8_t *levels, WideBytes a) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i *>(levels));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a.v)};
}

inline WideBytes odd_shorts_of(WideBytes a, WideBytes b) { return {_mm512_mask_blend_epi16(0xaaaaaaaau, a.v, b.v)}; }

template <>
inline WideBytes twice_at<WideBytes>(const int8_t *p, size_t apart) {
    const __m128i numbers = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)),
                                               _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p + apart)));
    const __m512i lanes = _mm512_cvtepi8_epi32(numbers);
    return odd_shorts_of({lanes}, {_mm512_slli_epi32(lanes, 16)});
}

inline WideBytes subtract_bytes(WideBytes a, WideBytes b) { return {_mm512_sub_epi8(a.v, b.v)}; }
inline void put_bytes(uint8_t *p, WideBytes a) { _mm512_storeu_si512(p, a.v); }
inline WideBytes bytes_of(const uint8_t *p) { return {_mm512_loadu_si512(p)}; }

template <>
inline WideBytes lanes_at<WideBytes>(const int32_t *p) {
    return {_mm512_loadu_si512(p)};
}

inline WideBytes size_of(WideBytes a) { return {_mm512_abs_epi8(a.v)}; }
inline WideBytes signed_by(WideBytes values, WideBytes weights) {
    const __m512i minus = _mm512_mask_sub_epi8(values.v, _mm512_movepi8_mask(weights.v), __m512i{}, values.v);
    return {minus};
}

inline WideBytes byte_pairs(WideBytes a, WideBytes b) { return {_mm512_maddubs_epi16(a.v, b.v)}; }
inline WideBytes short_pairs(WideBytes a, WideBytes b) { return {_mm512_madd_epi16(a.v, b.v)}; }
inline WideBytes add_shorts(WideBytes a, WideBytes b) { return {_mm512_add_epi16(a.v, b.v)}; }
inline WideBytes multiply_shorts(WideBytes a, WideBytes b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
inline WideBytes add_lanes(WideBytes a, WideBytes b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline WideBytes subtract_lanes(WideBytes a, WideBytes b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline F8x2 floats_of(WideBytes lanes) { return {_mm512_cvtepi32_ps(lanes.v)}; }

#if QUIRE_AVX512_VNNI
inline WideBytes add_dots(WideBytes sums, WideBytes a, WideBytes b) { return {_mm512_dpbusd_epi32(sums.v, a.v, b.v)}; }
inline WideBytes add_short_pairs(WideBytes sums, WideBytes a, WideBytes b) {
    return {_mm512_dpwssd_epi32(sums.v, a.v, b.v)};
}
inline WideBytes bits_of(F8x2 a) { return {_mm512_castps_si512(a.v)}; }
inline F8x2 floats_with(WideBytes bits) { return {_mm512_castsi512_ps(bits.v)}; }
#endif

inline void settle(WideBytes &sum) { __asm__("" : "+v"(sum.v)); }
