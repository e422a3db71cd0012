// Products of bf16 weights on x86 with AVX-512 BF16. Included by kernels.cpp, inside a
// variant's namespace.
//
// It multiplies pairs of bf16 and adds both products to a float32 lane. So tokens are rounded to bf16 too, and two
// neighbouring columns are multiplied at once, a lane for each row of two panels.

constexpr int ROUNDED = 512;  // columns that are rounded together: those of 8 tokens fit into L1
constexpr int SUMS = 2;       // per token, used in turns, so that additions are independent

inline __m512i both_panels(__m256i first, __m256i second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

// From [column][row] of each panel to [row][column].
inline __m512bh in_pairs(__m512i columns) {
    const __m512i order =
        _mm512_set_epi16(31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17, 24, 16,  //
                         15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    return (__m512bh)_mm512_permutexvar_epi16(order, columns);
}

inline __m512bh two_columns(const uint8_t *w, size_t apart) {
    return in_pairs(both_panels(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(w)),
                                _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + apart))));
}

// With an odd number of columns, the last one is paired with zeros.
inline __m512bh last_column(const uint8_t *w, size_t apart) {
    return in_pairs(both_panels(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w))),
                                _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w + apart)))));
}

// `count` numbers, and zeros up to a multiple of 16.
inline void round_part(const float *x, int count, uint16_t *out) {
    for (int k = 0; k < count; k += 16) {
        const __mmask16 there = static_cast<__mmask16>(count - k < 16 ? (1u << (count - k)) - 1u : 0xffffu);
        const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, x + k));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + k), (__m256i)rounded);
    }
}

inline __m512bh each_pair(const uint16_t *x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

// The order of a token's sums does not depend on N.
template <int N>
inline void bf16_tile(const Matrix &m, size_t apart, const uint8_t *w, const float *const *tokens, float *out) {
    alignas(64) uint16_t x[N][ROUNDED];
    const TwoStreams streams{w, m.panel_bytes, apart};
    __m512 sums[SUMS][N];
    for (int s = 0; s < SUMS; ++s)
        for (int i = 0; i < N; ++i) sums[s][i] = _mm512_setzero_ps();
    for (int first = 0; first < m.cols; first += ROUNDED) {
        const int count = m.cols - first < ROUNDED ? m.cols - first : ROUNDED;
        for (int i = 0; i < N; ++i) round_part(tokens[i] + first, count, x[i]);
        for (int k = 0; k < count;) {
            if (N <= IN_TWO_STREAMS) streams.fetch((first + k) * LANES * sizeof(uint16_t));
            for (int s = 0; s < SUMS && k < count; ++s, k += 2, w += 2 * LANES * sizeof(uint16_t)) {
                const __m512bh columns = k + 1 < count ? two_columns(w, apart) : last_column(w, apart);
                for (int i = 0; i < N; ++i) sums[s][i] = _mm512_dpbf16_ps(sums[s][i], columns, each_pair(x[i] + k));
            }
        }
    }
    for (int i = 0; i < N; ++i) _mm512_storeu_ps(out + COLUMNS * i, _mm512_add_ps(sums[0][i], sums[1][i]));
}

// --- many tokens: the weights of some columns stay in registers, and the sums of tokens are in memory, in L1

constexpr int COLUMN_PAIRS = 8;    // in registers
constexpr int MANY_ROUNDED = 128;  // columns that are rounded together: those of MAX_UNPACKED fit into L1

constexpr int LINES_OF_COLUMNS = 8;  // of two panels: COLUMN_PAIRS

// Adds the products of C pairs of columns and P pairs of panels, in the order of bf16_tile.
template <int P, int C>
inline void add_columns(const __m512bh (&w)[P][C], const uint16_t (*x)[MANY_ROUNDED], int k, int count, PanelsAhead &ahead,
                        float *const *out) {
    constexpr int S = C < SUMS ? C : SUMS;
    for (int i = 0; i < count; ++i) {
        if (i * ahead.lines < LINES_OF_COLUMNS * P) ahead.fetch();  // the first tokens are enough
        __m512 sums[S][P];
        for (int s = 0; s < S; ++s)
            for (int p = 0; p < P; ++p) sums[s][p] = _mm512_loadu_ps(out[s] + COLUMNS * i + 2 * LANES * p);
        QUIRE_UNROLL
        for (int c = 0; c < C; ++c) {
            const __m512bh pair = each_pair(x[i] + k + 2 * c);
            for (int p = 0; p < P; ++p) sums[c % S][p] = _mm512_dpbf16_ps(sums[c % S][p], w[p][c], pair);
        }
        for (int s = 0; s < S; ++s)
            for (int p = 0; p < P; ++p) _mm512_storeu_ps(out[s] + COLUMNS * i + 2 * LANES * p, sums[s][p]);
    }
}

// Up to MAX_UNPACKED times P pairs of panels.
template <int P>
[[gnu::noinline]] void bf16_many(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    alignas(64) uint16_t x[MAX_UNPACKED][MANY_ROUNDED];
    alignas(64) float others[MAX_UNPACKED * COLUMNS];
    float *const sums[SUMS] = {out, others};
    for (int i = 0; i < COLUMNS * count; ++i) out[i] = others[i] = 0.0f;
    const uint8_t *w[P];
    size_t apart[P];
    for (int p = 0; p < P; ++p) w[p] = m.panel(panel + 2 * p), apart[p] = apart_from(m, panel + 2 * p);
    PanelsAhead ahead(m, panel + 2 * P, 2 * P, (m.cols / (2 * COLUMN_PAIRS) + 1) * count);
    for (int first = 0; first < m.cols; first += MANY_ROUNDED) {
        const int columns = m.cols - first < MANY_ROUNDED ? m.cols - first : MANY_ROUNDED;
        for (int i = 0; i < count; ++i) round_part(a.x.row(a.order.source(token + i)) + first, columns, x[i]);
        int k = 0;
        for (; k + 2 * COLUMN_PAIRS <= columns; k += 2 * COLUMN_PAIRS) {
            __m512bh block[P][COLUMN_PAIRS];
            QUIRE_UNROLL
            for (int c = 0; c < COLUMN_PAIRS; ++c)
                for (int p = 0; p < P; ++p)
                    block[p][c] = two_columns(w[p] + (first + k + 2 * c) * LANES * sizeof(uint16_t), apart[p]);
            add_columns<P, COLUMN_PAIRS>(block, x, k, count, ahead, sums);
        }
        for (; k < columns; k += 2) {
            __m512bh pair[P][1];
            for (int p = 0; p < P; ++p) {
                const uint8_t *from = w[p] + (first + k) * LANES * sizeof(uint16_t);
                pair[p][0] = k + 1 < columns ? two_columns(from, apart[p]) : last_column(from, apart[p]);
            }
            add_columns<P, 1>(pair, x, k, count, ahead, sums + k / 2 % SUMS);
        }
    }
    for (int i = 0; i < COLUMNS * count; ++i) out[i] += others[i];
}
