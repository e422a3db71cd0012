// Causal attention over paged keys and values. Included by kernels.cpp, inside a variant's namespace.
//
// An item is some neighbouring tokens of one row times some heads that share keys: its queries. They walk over the
// row's tiles of 16 keys together, because a tile is then unpacked once for all of them; but each keeps its own running
// maximum, sum and weighted values, and takes exactly the tiles that it can see, first one first. So the bits of a
// token do not depend on its chunk, on its company, or on where its blocks lie.

struct Queries {
    int dim;           // padded
    float *q, *seen;   // [query][dim] scaled queries; weighted values so far
    float *p;          // [query][16] scores, then weights, of this tile
    float *most, *total;  // [query]
};

inline const float *unpacked(const KvCache &c, const uint8_t *place, float *scratch) {
    if (c.format == KvFormat::F32) return reinterpret_cast<const float *>(place);
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(place);
    const int count = static_cast<int>(c.tile_numbers());
    const bool is_bf16 = c.format == KvFormat::BF16;
    for (int i = 0; i < count; i += LANES) store(scratch + i, load(halves + i, is_bf16));
    return scratch;
}

// Products of N queries with 16 keys, one dimension after the other.
template <int N>
inline void scores(const Queries &s, int query, const float *keys) {
    F8 low[N], high[N];
    const float *q[N];
    for (int i = 0; i < N; ++i) low[i] = high[i] = set1(0.0f), q[i] = s.q + static_cast<size_t>(query + i) * s.dim;
    for (int d = 0; d < s.dim; ++d) {
        const F8 k0 = load(keys + TILE * d), k1 = load(keys + TILE * d + LANES);
        for (int i = 0; i < N; ++i) {
            const F8 x = set1(q[i][d]);
            low[i] = fma(k0, x, low[i]);
            high[i] = fma(k1, x, high[i]);
        }
    }
    for (int i = 0; i < N; ++i) {
        store(s.p + TILE * (query + i), low[i]);
        store(s.p + TILE * (query + i) + LANES, high[i]);
    }
}

// Turn scores of the keys begin..end - 1 into weights, and shrink what was seen if there is a new maximum.
inline void soften(const Queries &s, int query, int begin, int end) {
    float *p = s.p + TILE * query, *seen = s.seen + static_cast<size_t>(query) * s.dim;
    const F8 low = load(p), high = load(p + LANES), hidden = set1(-3.0e38f);
    const F8 seen_low = between(low, begin, end, hidden), seen_high = between(high, begin - LANES, end - LANES, hidden);
    const float most = largest(max(seen_low, seen_high));
    if (most > s.most[query]) {
        float shrink[LANES];
        store(shrink, exponential(set1(s.most[query] - most)));
        for (int d = 0; d < s.dim; d += LANES) store(seen + d, load(seen + d) * set1(shrink[0]));
        s.total[query] *= shrink[0];
        s.most[query] = most;
    }
    const F8 top = set1(s.most[query]), none = set1(0.0f);
    const F8 p0 = between(exponential(low - top), begin, end, none);
    const F8 p1 = between(exponential(high - top), begin - LANES, end - LANES, none);
    s.total[query] += sum(p0 + p1);
    store(p, p0), store(p + LANES, p1);
}

// seen += weights * values over 8 * N dimensions.
template <int N>
inline void gather_values(const float *p, const float *values, int dim, float *seen, int begin, int end) {
    F8 acc[N];
    for (int i = 0; i < N; ++i) acc[i] = load(seen + LANES * i);
    for (int key = begin; key < end; ++key) {
        const F8 weight = set1(p[key]);
        const float *row = values + static_cast<size_t>(key) * dim;
        for (int i = 0; i < N; ++i) acc[i] = fma(load(row + LANES * i), weight, acc[i]);
    }
    for (int i = 0; i < N; ++i) store(seen + LANES * i, acc[i]);
}

inline void see_values(const Queries &s, int query, const float *values, int begin, int end) {
    const float *p = s.p + TILE * query;
    float *seen = s.seen + static_cast<size_t>(query) * s.dim;
    int d = 0;
    for (; d + 8 * LANES <= s.dim; d += 8 * LANES) gather_values<8>(p, values + d, s.dim, seen + d, begin, end);
    for (; d + 4 * LANES <= s.dim; d += 4 * LANES) gather_values<4>(p, values + d, s.dim, seen + d, begin, end);
    for (; d < s.dim; d += LANES) gather_values<1>(p, values + d, s.dim, seen + d, begin, end);
}

// Keys of the tile [base, base + length) that the token sees, counted from base; empty if begin >= end.
struct Seen {
    int begin, end;
};

inline Seen visible(const AttendArgs &a, int token, int base, int length) {
    const int last = a.positions[token] + 1;
    const int first = a.cache.window && last > a.cache.window ? last - a.cache.window : 0;
    return {first > base ? first - base : 0, smaller(last - base, length)};
}

inline void attend_tile(const AttendArgs &a, const AttendItem &item, const Queries &s, int base, int length,
                        const float *keys, const float *values) {
    int first = item.begin, last = item.end;  // the tokens that see something of this tile are neighbours
    while (first < last && visible(a, first, base, length).begin >= visible(a, first, base, length).end) ++first;
    while (last > first && visible(a, last - 1, base, length).begin >= visible(a, last - 1, base, length).end) --last;
    const int begin = (first - item.begin) * item.num_heads, end = (last - item.begin) * item.num_heads;
    int query = begin;
    for (; query + 4 <= end; query += 4) scores<4>(s, query, keys);
    for (; query < end; ++query) scores<1>(s, query, keys);
    for (query = begin; query < end; ++query) {
        const Seen seen = visible(a, item.begin + query / item.num_heads, base, length);
        if (seen.begin >= seen.end) continue;
        soften(s, query, seen.begin, seen.end);
        see_values(s, query, values, seen.begin, seen.end);
    }
}

inline void load_queries(const AttendArgs &a, const AttendItem &item, const Queries &s) {
    const int dim = a.cache.head_dim;
    for (int token = item.begin, query = 0; token < item.end; ++token)
        for (int head = 0; head < item.num_heads; ++head, ++query) {
            const float *from = a.q.row(token) + (item.kv_head * a.group + item.first_head + head) * dim;
            float *to = s.q + static_cast<size_t>(query) * s.dim;
            for (int d = 0; d < s.dim; ++d) to[d] = d < dim ? from[d] * a.scale : 0.0f;
            for (int d = 0; d < s.dim; ++d) s.seen[static_cast<size_t>(query) * s.dim + d] = 0.0f;
            s.most[query] = -3.0e38f, s.total[query] = 0.0f;
        }
}

inline void store_queries(const AttendArgs &a, const AttendItem &item, const Queries &s) {
    const int dim = a.cache.head_dim;
    for (int token = item.begin, query = 0; token < item.end; ++token)
        for (int head = 0; head < item.num_heads; ++head, ++query) {
            const int column = (item.kv_head * a.group + item.first_head + head) * dim;
            float *seen = s.seen + static_cast<size_t>(query) * s.dim;
            const F8 total = set1(s.total[query]);
            for (int d = 0; d < s.dim; d += LANES) store(seen + d, load(seen + d) / total);
            if (a.out.rows.data) std::memcpy(a.out.rows.row(token) + column, seen, sizeof(float) * dim);
            if (a.out.quants.values)  // then head_dim is a whole number of blocks
                for (int d = 0; d < dim; d += BLOCK)
                    quantize_block(seen + d, a.out.quants, token, (column + d) / BLOCK);
        }
}

void attend(const AttendArgs &a, const AttendItem &item, float *scratch) {
    const KvCache &c = a.cache;
    const int dim = c.padded_dim(), num_queries = (item.end - item.begin) * item.num_heads;
    float *key_scratch = scratch, *value_scratch = key_scratch + c.tile_numbers();
    float *at = value_scratch + c.tile_numbers();
    Queries s{dim, at, nullptr, nullptr, nullptr, nullptr};
    s.seen = s.q + static_cast<size_t>(num_queries) * dim;
    s.p = s.seen + static_cast<size_t>(num_queries) * dim;
    s.most = s.p + static_cast<size_t>(num_queries) * TILE;
    s.total = s.most + num_queries;
    load_queries(a, item, s);
    const int32_t *table = a.block_tables + static_cast<size_t>(item.row) * a.table_stride;
    const int first = a.positions[item.begin] + 1, end = a.positions[item.end - 1] + 1;
    const int begin = c.window && first > c.window ? first - c.window : 0;
    for (int block = begin / c.block_tokens; block * c.block_tokens < end; ++block)
        for (int tile = 0; tile < c.tiles(); ++tile) {
            const int base = block * c.block_tokens + tile * TILE;
            const int length = smaller(TILE, c.block_tokens - tile * TILE);
            if (base >= end || base + length <= begin) continue;
            const size_t place = c.tile_at(table[block], item.kv_head, tile);
            const float *keys = unpacked(c, c.keys + place, key_scratch);
            attend_tile(a, item, s, base, length, keys, unpacked(c, c.values + place, value_scratch));
        }
    store_queries(a, item, s);
}
