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

// So many vectors a 16-bit lane can add up: two products in each, values are at most 127 in magnitude.
//   largest quant   15 -> 8 (30,480)   31 -> 4 (31,496)   63 -> 2 (32,004)   128 -> 1 (32,512)
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

// The instruction multiplies unsigned by signed bytes: the sign of a quant that has one is moved to the value. Sums of
// 16 bits are widened by a multiplication, which takes the scale of a part along. In whole numbers the zero of both
// parts is one multiplication with the sums of their values; then the sum is at most 2 ** 24, which float32 can hold:
// Q6_K 128 * 32 * 127 * 32.
template <Format F, int N>
inline void block_sums(const uint8_t *quants, const int8_t *scales, const Tokens<N> &x, int block, F8 *out) {
    constexpr BlockFormat f = block_format(F);
    constexpr bool has_sign = f.bits == 8 || f.levels, has_parts = f.parts == 2;
    constexpr int PART = VECTORS / f.parts;
    constexpr int RUN = vectors_in_16_bits(f.largest()) < PART ? vectors_in_16_bits(f.largest()) : PART;
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i factors[2] = {has_parts ? twice(scales) : ones, has_parts ? twice(scales + LANES) : ones};
    __m256i sums[N];
    for (int i = 0; i < N; ++i) sums[i] = _mm256_setzero_si256();
    QUIRE_UNROLL
    for (int first = 0; first < VECTORS; first += RUN) {
        __m256i run[N];
        for (int i = 0; i < N; ++i) run[i] = _mm256_setzero_si256();
        QUIRE_UNROLL
        for (int v = first; v < first + RUN; ++v) {
            __m256i w = vector_at<f.bits>(quants, v);
            if constexpr (f.levels != nullptr)
                w = _mm256_shuffle_epi8(
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(f.levels))), w);
            const __m256i size = has_sign ? _mm256_abs_epi8(w) : w;
            for (int i = 0; i < N; ++i) {
                const __m256i four = four_bytes(x.values[i] + BLOCK * block + 4 * v);
                const __m256i pairs = _mm256_maddubs_epi16(size, has_sign ? _mm256_sign_epi8(four, w) : four);
                run[i] = v == first ? pairs : _mm256_add_epi16(run[i], pairs);
                settle(run[i]);
            }
        }
        for (int i = 0; i < N; ++i) {
            const __m256i whole = _mm256_madd_epi16(run[i], factors[first / PART]);
            sums[i] = first == 0 ? whole : _mm256_add_epi32(sums[i], whole);
            settle(sums[i]);
        }
    }
    if constexpr (has_parts && f.zero != 0) {
        const __m256i both = _mm256_blend_epi16(factors[0], factors[1], HIGH_HALVES);
        const __m256i zeros = _mm256_mullo_epi16(both, _mm256_set1_epi16(f.zero));
        for (int i = 0; i < N; ++i)
            sums[i] = _mm256_sub_epi32(sums[i], _mm256_madd_epi16(zeros, four_bytes(x.halves[i] + 2 * block)));
    }
    for (int i = 0; i < N; ++i) out[i] = {_mm256_cvtepi32_ps(sums[i])};
}
