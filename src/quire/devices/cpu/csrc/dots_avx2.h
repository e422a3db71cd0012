// Whole-number sums of one block, see dots_portable.h: AVX2. Included by kernels.cpp, inside a variant's namespace.

inline __m256i four_bytes(const void *p) {
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

// Loops over the vectors of a block are written out, so that every shift and mask in them is a constant.
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define QUIRE_UNROLL _Pragma("GCC unroll 8")
#else
#define QUIRE_UNROLL
#endif

// What one plane has of vector v, moved to bit AT of each byte. There are no shifts of bytes; the mask removes what
// came from a neighbour.
template <int WIDTH, int AT>
inline __m256i plane_at(const uint8_t *plane, int v) {
    const __m256i bytes = bytes_at(plane + VECTOR * (v * WIDTH / 8));
    const int down = v * WIDTH % 8 - AT;
    const __m256i moved = down >= 0 ? _mm256_srli_epi16(bytes, down) : _mm256_slli_epi16(bytes, -down);
    return _mm256_and_si256(moved, _mm256_set1_epi8(((1 << WIDTH) - 1) << AT));
}

// Quants of vector v, one in each byte.
template <int BITS>
inline __m256i vector_at(const uint8_t *quants, int v) {
    constexpr int LOW = BITS & 4 ? 4 : 2, HIGH = BITS - LOW;
    if constexpr (BITS == 8) return bytes_at(quants + VECTOR * v);
    else if constexpr (HIGH == 0) return plane_at<LOW, 0>(quants, v);
    else return _mm256_or_si256(plane_at<LOW, 0>(quants, v), plane_at<HIGH, LOW>(quants + VECTOR * LOW, v));
}

// So many vectors a 16-bit lane can add up: two products in each, values are at most 127 in magnitude.
//   largest level   15 -> 8 (30,480)   31 -> 4 (31,496)   63 -> 2 (32,004)   128 -> 1 (32,512)
constexpr int vectors_in_16_bits(int largest) {
    int count = VECTORS;
    while (count * 2 * 127 * largest > INT16_MAX) count /= 2;
    return count;
}

constexpr int HIGH_HALVES = 0xaa;  // of the 32-bit lanes, for blends of 16 bits

// A whole number for each lane, in both its halves.
inline __m256i twice(const int8_t *numbers) {
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(numbers)));
    return _mm256_blend_epi16(wide, _mm256_slli_epi32(wide, 16), HIGH_HALVES);
}

// Levels of vector v.
template <Format F>
inline __m256i levels_at(const uint8_t *quants, int v) {
    constexpr BlockFormat f = block_format(F);
    const __m256i all = vector_at<f.bits>(quants, v);
    if constexpr (f.table == Table::NONE) return all;
    const int8_t *levels = f.table == Table::IQ4 ? IQ4_LEVELS : MXFP4_LEVELS;
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i *>(levels));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), all);
}

// Sums of two products, 16 bits each. The instruction multiplies unsigned by signed bytes: the sign of a level that has
// one is moved to the values.
template <bool HAS_SIGN>
inline __m256i products_of(__m256i levels, const int8_t *values) {
    const __m256i four = four_bytes(values);
    if constexpr (HAS_SIGN) return _mm256_maddubs_epi16(_mm256_abs_epi8(levels), _mm256_sign_epi8(four, levels));
    return _mm256_maddubs_epi16(levels, four);
}

// Sums of 16 bits are widened by a multiplication, which takes the scale of a part along. The zero of both parts is one
// multiplication with the sums of their values. Then a sum is at most 2 ** 24, so that float32 holds it: in Q6_K
// 128 * 32 * 127 * 32.
template <Format F, int N>
inline void block_sums(const uint8_t *quants, const int8_t *scales, const Tokens<N> &x, int block, F8 *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr int PART = VECTORS / f.parts, FIT = vectors_in_16_bits(largest_level(f));
    constexpr int RUN = FIT < PART ? FIT : PART, STEP = RUN == VECTORS ? 2 : 1;
    constexpr bool HAS_SIGN = smallest_level(f) < 0;
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i factors[2] = {f.parts == 2 ? twice(scales) : ones, f.parts == 2 ? twice(scales + LANES) : ones};
    __m256i sums[N], run[N];
    for (int i = 0; i < N; ++i) sums[i] = run[i] = _mm256_setzero_si256();
    QUIRE_UNROLL
    for (int v = 0; v < VECTORS; v += STEP) {
        const __m256i first = levels_at<F>(quants, v), second = levels_at<F>(quants, v + STEP - 1);
        for (int i = 0; i < N; ++i) {
            const int8_t *values = x.values[i] + BLOCK * block + 4 * v;
            __m256i pairs = products_of<HAS_SIGN>(first, values);
            if (STEP == 2) pairs = _mm256_add_epi16(pairs, products_of<HAS_SIGN>(second, values + 4));
            run[i] = v % RUN == 0 ? pairs : _mm256_add_epi16(run[i], pairs);
            settle(run[i]);
        }
        if ((v + STEP) % RUN != 0) continue;
        for (int i = 0; i < N; ++i) {
            const __m256i whole = _mm256_madd_epi16(run[i], factors[v / PART]);
            sums[i] = v < RUN ? whole : _mm256_add_epi32(sums[i], whole);
            settle(sums[i]);
        }
    }
    if constexpr (f.parts == 2 && f.zero != 0) {
        const __m256i both = _mm256_blend_epi16(factors[0], factors[1], HIGH_HALVES);
        const __m256i zeros = _mm256_mullo_epi16(both, _mm256_set1_epi16(f.zero));
        for (int i = 0; i < N; ++i)
            sums[i] = _mm256_sub_epi32(sums[i], _mm256_madd_epi16(zeros, four_bytes(x.halves[i] + 2 * block)));
    }
    for (int i = 0; i < N; ++i) out[i] = {_mm256_cvtepi32_ps(sums[i])};
}
