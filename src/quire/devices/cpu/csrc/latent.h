// The scores of latent attention. Included by attention.h.
//
// A latent is stored once, as a row: as a value it is read like any other, and as a key it is multiplied number by
// number with queries of the same width. All heads share it, so that a row is read for many queries.

// Products of K rows, from `key` on, with N queries. Each has one sum of vectors, in the order of columns.
template <int K, int N, class Number>
inline void latent_products(const Queries &s, const VisibleRange *ranges, const Number *rows, int tile, int key) {
    Widest acc[K][N];
    const float *q[N];
    const Number *row[K];
    QUIRE_UNROLL for (int n = 0; n < N; ++n) q[n] = s.query(ranges[n].query);
    QUIRE_UNROLL for (int k = 0; k < K; ++k) row[k] = rows + static_cast<size_t>(key + k) * s.value_step;
    QUIRE_UNROLL for (int k = 0; k < K; ++k)
        QUIRE_UNROLL for (int n = 0; n < N; ++n) acc[k][n] = set1<Widest>(0.0f);
    int d = 0;
    for (; d + WIDEST <= s.dim; d += WIDEST) {
        Widest numbers[N];
        QUIRE_UNROLL for (int n = 0; n < N; ++n) numbers[n] = load<Widest>(q[n] + d);
        QUIRE_UNROLL for (int k = 0; k < K; ++k) {
            const Widest column = fetch<Widest>(row[k] + d);
            QUIRE_UNROLL for (int n = 0; n < N; ++n) acc[k][n] = fma(column, numbers[n], acc[k][n]);
        }
    }
    QUIRE_UNROLL for (int k = 0; k < K; ++k)
        QUIRE_UNROLL for (int n = 0; n < N; ++n) {
            float total = sum(acc[k][n]);
            if (d < s.dim) total += sum(fetch<F8>(row[k] + d) * load(q[n] + d));  // half of a wide vector
            s.weights(ranges[n].query, tile)[key + k] = total;
        }
}

template <int N, class Number>
inline void latent_scores(const Queries &s, const VisibleRange *ranges, const Number *rows, int tile) {
    constexpr int AT_ONCE = 4;
    for (int key = 0; key < TILE; key += AT_ONCE) latent_products<AT_ONCE, N>(s, ranges, rows, tile, key);
}

template <class Number>
inline void all_latent_scores(const Queries &s, const VisibleRange *ranges, int count, const Number *rows, int tile) {
    constexpr int AT_ONCE = WIDEST == LANES ? 2 : 4;  // sums fill 8 of 16 registers, or 16 of 32
    int i = 0;
    for (; i + AT_ONCE <= count; i += AT_ONCE) latent_scores<AT_ONCE>(s, ranges + i, rows, tile);
    for (; i < count; ++i) latent_scores<1>(s, ranges + i, rows, tile);
}

// The stretch is unpacked already, if its format needs that.
inline void score_latents(const KvCache &c, const Queries &s, const VisibleRange *ranges, int count, const Tile &tile,
                          int i) {
    if (c.values.format == KvFormat::F16)
        all_latent_scores(s, ranges, count, reinterpret_cast<const uint16_t *>(tile.values), i);
    else
        all_latent_scores(s, ranges, count, reinterpret_cast<const float *>(tile.values), i);
}
