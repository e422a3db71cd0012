// Attention over caches of bf16 on x86 with AVX-512 BF16, which multiplies pairs of bf16 at twice the rate of float32.
// Included by attention.h.
//
// Queries and weights are rounded to bf16; scores, the softmax and sums are float32. A row of queries or weights is
// rounded in place: its halves are the first half of its floats. A lane of scores adds two dimensions of a key, and a
// lane of values two keys of a dimension. Pairs are those of the layout, so a query's sums do not depend on its block.

struct Pair;  // the numbers of such a cache

inline bool is_in_pairs(const KvCache &c) { return c.keys.format == KvFormat::BF16_PAIRS; }

inline __m512bh load_pairs(const uint16_t *p, F8x2) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m256bh load_pairs(const uint16_t *p, F8) {
    return (__m256bh)_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
}
inline __m512bh masked(__m512bh a, int mask) {
    return (__m512bh)_mm512_and_si512((__m512i)a, _mm512_set1_epi32(mask));
}
inline __m256bh masked(__m256bh a, int mask) {
    return (__m256bh)_mm256_and_si256((__m256i)a, _mm256_set1_epi32(mask));
}
inline __m512bh set_pair(int pair, F8x2) { return (__m512bh)_mm512_set1_epi32(pair); }
inline __m256bh set_pair(int pair, F8) { return (__m256bh)_mm256_set1_epi32(pair); }
inline F8x2 add_products(F8x2 sum, __m512bh a, __m512bh b) { return {_mm512_dpbf16_ps(sum.v, a, b)}; }
inline F8 add_products(F8 sum, __m256bh a, __m256bh b) { return {_mm256_dpbf16_ps(sum.v, a, b)}; }

inline int pair_at(const uint16_t *p) {
    int pair;
    std::memcpy(&pair, p, sizeof pair);
    return pair;
}

inline uint16_t *rounded_query(const Queries &s, int i) { return reinterpret_cast<uint16_t *>(s.query(i)); }
inline uint16_t *rounded_weights(const Queries &s, int i) { return reinterpret_cast<uint16_t *>(s.weights(i, 0)); }

inline void round_query(const Queries &s, int i) {
    for (int d = 0; d < s.dim; d += LANES)
        _mm_storeu_si128(reinterpret_cast<__m128i *>(rounded_query(s, i) + d),
                         (__m128i)_mm256_cvtneps_pbh(load(s.query(i) + d).v));
}

// Products of N queries with M tiles of keys, two dimensions at a time.
template <int N, int M>
inline void pair_scores(const Queries &s, const VisibleRange *ranges, const Stretch &stretch, int tile) {
    F8x2 acc[N][M];
    const uint16_t *q[N], *keys[M];
    QUIRE_UNROLL for (int m = 0; m < M; ++m) keys[m] = reinterpret_cast<const uint16_t *>(stretch.tiles[tile + m].keys);
    QUIRE_UNROLL for (int n = 0; n < N; ++n) {
        q[n] = rounded_query(s, ranges[n].query);
        QUIRE_UNROLL for (int m = 0; m < M; ++m) acc[n][m] = set1<F8x2>(0.0f);
    }
    for (int d = 0; d < s.dim; d += 2) {
        __m512bh columns[M];
        QUIRE_UNROLL for (int m = 0; m < M; ++m) columns[m] = load_pairs(keys[m] + TILE * d, F8x2{});
        QUIRE_UNROLL for (int n = 0; n < N; ++n) {
            const __m512bh numbers = set_pair(pair_at(q[n] + d), F8x2{});
            QUIRE_UNROLL for (int m = 0; m < M; ++m) acc[n][m] = add_products(acc[n][m], columns[m], numbers);
        }
    }
    QUIRE_UNROLL for (int n = 0; n < N; ++n)
        QUIRE_UNROLL for (int m = 0; m < M; ++m) store(s.weights(ranges[n].query, tile + m), acc[n][m]);
}

// Scores of M tiles. Keys that a query does not see are multiplied too; their scores are not used.
template <int M>
inline void all_pair_scores(const Queries &s, const VisibleRange *ranges, int count, const Stretch &stretch, int tile) {
    int i = 0;
    for (; i + 6 <= count; i += 6) pair_scores<6, M>(s, ranges + i, stretch, tile);
    switch (count - i) {
        case 5: return pair_scores<5, M>(s, ranges + i, stretch, tile);
        case 4: return pair_scores<4, M>(s, ranges + i, stretch, tile);
        case 3: return pair_scores<3, M>(s, ranges + i, stretch, tile);
        case 2: return pair_scores<2, M>(s, ranges + i, stretch, tile);
        case 1: return pair_scores<1, M>(s, ranges + i, stretch, tile);
    }
}

inline void score_pairs(const Queries &s, const VisibleRange *ranges, int count, const Stretch &stretch, bool is_first) {
    for (int tile = 0; tile < stretch.count;) {
        const int left = stretch.count - tile, each = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        for (int i = tile; i < tile + each; ++i) {
            if (is_first && i + each < stretch.count) fetch_tile(stretch.key_bytes, stretch.tiles[i + each].keys);
            fetch_tile(stretch.value_bytes, stretch.tiles[i].values);
        }
        if (each == 4) all_pair_scores<4>(s, ranges, count, stretch, tile);
        if (each == 2) all_pair_scores<2>(s, ranges, count, stretch, tile);
        if (each == 1) all_pair_scores<1>(s, ranges, count, stretch, tile);
        tile += each;
    }
}

// 2 ** x for x up to 127, to 1e-4, as exactly as bf16 needs. Below -125 it is that of -125.
inline F8x2 rough_power(F8x2 x) {
    x = max(x, set1<F8x2>(-125.0f));
    const F8x2 n = nearest(x), r = x - n;
    F8x2 p = set1<F8x2>(5.5827e-2f);
    p = fma(p, r, set1<F8x2>(2.42506e-1f));
    p = fma(p, r, set1<F8x2>(6.931470e-1f));
    p = fma(p, r, set1<F8x2>(9.99925e-1f));
    return p * power_of_two(n);
}

// Turns scores into weights; the total is that of rounded weights.
template <bool IS_WHOLE>
inline void softmax_pairs(const Queries &s, const VisibleRange &range, const Stretch &stretch) {
    const F8x2 nothing = set1<F8x2>(0.0f), least = set1<F8x2>(-3.0e38f);
    const auto visible = [&](F8x2 x, int tile, F8x2 other) {
        if (IS_WHOLE) return x;
        return between(x, range.begin_in(stretch.tiles[tile]), range.end_in(stretch.tiles[tile]), other);
    };
    const int count = IS_WHOLE ? STRETCH / TILE : stretch.count;
    F8x2 most = least, total = nothing;
    for (int tile = 0; tile < count; ++tile)
        if (IS_WHOLE || range.sees(stretch.tiles[tile]))
            most = max(most, visible(load<F8x2>(s.weights(range.query, tile)), tile, least));
    rescale_to_maximum(s, range.query, largest(most));
    most = set1<F8x2>(s.most[range.query]);
    for (int tile = 0; tile < count; ++tile) {
        if (!IS_WHOLE && !range.sees(stretch.tiles[tile])) continue;
        const F8x2 weights = visible(rough_power(load<F8x2>(s.weights(range.query, tile)) - most), tile, nothing);
        uint16_t *rounded = rounded_weights(s, range.query) + TILE * tile;
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(rounded), (__m256i)_mm512_cvtneps_pbh(weights.v));
        total = total + load<F8x2>(rounded, true);
    }
    s.total[range.query] += sum(total);
}

// seen += weights * values, as gather_values has it, for two keys at a time. Of a pair with one visible key, the value of
// the other is replaced by zero.
template <int N, class W, int WIDTH>
inline void gather_pairs(const Queries &s, const VisibleRange *ranges, const Stretch &stretch, int d, bool leads) {
    constexpr int STEP = sizeof(W) / sizeof(float), FIRST = 0xffff, SECOND = ~FIRST;
    W acc[N][WIDTH];
    QUIRE_UNROLL for (int n = 0; n < N; ++n)
        QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) acc[n][i] = load<W>(s.seen_of(ranges[n].query) + d + STEP * i);
    for (int tile = 0; tile < stretch.count; ++tile) {
        if (leads) fetch_tile(stretch.key_bytes, stretch.tiles[tile].next);
        const int begin = ranges[0].begin_in(stretch.tiles[tile]), end = ranges[0].end_in(stretch.tiles[tile]);
        if (begin >= end) continue;
        const uint16_t *values = reinterpret_cast<const uint16_t *>(stretch.tiles[tile].values) + 2 * d, *p[N];
        QUIRE_UNROLL for (int n = 0; n < N; ++n) p[n] = rounded_weights(s, ranges[n].query) + TILE * tile;
        const auto add = [&](int key, auto numbers_at) {  // the pair that begins with a key
            const uint16_t *row = values + key * s.value_step;
            decltype(load_pairs(row, W{})) numbers[WIDTH];
            QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) numbers[i] = numbers_at(row + 2 * STEP * i);
            QUIRE_UNROLL for (int n = 0; n < N; ++n) {
                const auto weights = set_pair(pair_at(p[n] + key), W{});
                QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) acc[n][i] = add_products(acc[n][i], numbers[i], weights);
            }
        };
        if (begin % 2) add(begin - 1, [](const uint16_t *at) { return masked(load_pairs(at, W{}), SECOND); });
        for (int key = begin + begin % 2; key + 2 <= end; key += 2)
            add(key, [](const uint16_t *at) { return load_pairs(at, W{}); });
        if (end % 2) add(end - 1, [](const uint16_t *at) { return masked(load_pairs(at, W{}), FIRST); });
    }
    QUIRE_UNROLL for (int n = 0; n < N; ++n)
        QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) store(s.seen_of(ranges[n].query) + d + STEP * i, acc[n][i]);
}
