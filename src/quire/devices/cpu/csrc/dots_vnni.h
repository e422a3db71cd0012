// Whole-number sums of one block, see dots_portable.h: x86 with the instruction for dot products of bytes (VNNI).
// Included by kernels.cpp, inside a variant's namespace.

inline __m256i bytes_at(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }

inline __m256i four_bytes(const void *p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// Adds the products of four neighbours, unsigned times signed, to each lane.
inline __m256i add_dots(__m256i sums, __m256i unsigned_bytes, __m256i signed_bytes) {
#if QUIRE_AVX512_VNNI
    return _mm256_dpbusd_epi32(sums, unsigned_bytes, signed_bytes);
#else
    return _mm256_dpbusd_avx_epi32(sums, unsigned_bytes, signed_bytes);
#endif
}

// Quants of one vector: bytes, gathered from their planes. There are no shifts of bytes; masks remove the neighbours'.
template <int BITS>
inline __m256i vector_at(const uint8_t *quants, int v) {
    __m256i all = _mm256_setzero_si256();
    for (int width = 8, done = 0; width > 0; width /= 2) {
        if (!(BITS & width)) continue;
        const __m256i bytes = bytes_at(quants + VECTOR * (v * width / 8));
        const int down = v * width % 8 - done;
        const __m256i moved = down >= 0 ? _mm256_srli_epi16(bytes, down) : _mm256_slli_epi16(bytes, -down);
        const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << width) - 1) << done));
        all = _mm256_or_si256(all, _mm256_and_si256(moved, mask));
        quants += VECTOR * width, done += width;
    }
    return all;
}

constexpr int SIGN = 128;  // added to a number with a sign, it makes one without

// What is multiplied, without a sign: quants, or quants or levels plus 128.
template <Format F>
inline __m256i weights_at(const uint8_t *quants, int v) {
    constexpr BlockFormat f = block_format(F);
    const __m256i sign = _mm256_set1_epi8(static_cast<char>(SIGN)), w = vector_at<f.bits>(quants, v);
    if constexpr (f.levels != nullptr) {
        const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i *>(f.levels));
        return _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_broadcastsi128_si256(levels), sign), w);
    }
    return f.bits == 8 ? _mm256_xor_si256(w, sign) : w;
}

// What sums of a part begin with: what its weights have too much, times the sum of its values.
template <Format F>
inline __m256i minus_surplus(int part, const int16_t *halves) {
    constexpr BlockFormat f = block_format(F);
    constexpr int surplus = f.bits == 8 || f.levels ? SIGN : f.parts == 2 ? f.zero : 0;
    if constexpr (surplus == 0) return _mm256_setzero_si256();
    const auto factor = [part](int half) { return static_cast<int16_t>(f.parts == 1 || part == half ? -surplus : 0); };
    const int16_t factors[2] = {factor(0), factor(1)};
    return _mm256_madd_epi16(four_bytes(factors), four_bytes(halves));
}

// The instruction multiplies unsigned by signed bytes, and adds up in 32 bits. Two parts with their scales are less than
// 2 ** 24, which float32 adds up exactly (Q6_K 128 * 32 * 127 * 32).
template <Format F, int N>
inline void block_sums(const uint8_t *quants, const int8_t *scales, const Tokens<N> &x, int block, F8 *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts;
    QUIRE_UNROLL
    for (int part = 0; part < f.parts; ++part) {
        __m256i sums[N];
        for (int i = 0; i < N; ++i) sums[i] = minus_surplus<F>(part, x.halves[i] + 2 * block);
        QUIRE_UNROLL
        for (int v = PART * part; v < PART * (part + 1); ++v) {
            const __m256i w = weights_at<F>(quants, v);
            for (int i = 0; i < N; ++i) sums[i] = add_dots(sums[i], w, four_bytes(x.values[i] + BLOCK * block + 4 * v));
        }
        for (int i = 0; i < N; ++i) {
            const F8 dots = {_mm256_cvtepi32_ps(sums[i])};
            if constexpr (f.parts == 1)
                out[i] = dots;
            else
                out[i] = part == 0 ? dots * load(scales) : fma(dots, load(scales + LANES), out[i]);
        }
    }
}
