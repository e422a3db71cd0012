// Causal attention over paged keys and values. Included by kernels.cpp, inside a variant's namespace.
//
// An item is some tokens, of one row or of rows that begin with the same blocks, times some heads that share keys: its
// queries. They walk over tiles of 16 keys together, because a tile is then read and unpacked once for all of them:
//
//   shared blocks     all queries of the item           tile 0, tile 1, ...
//   a row's own       the queries of that row alone     ... on to its last tile; then the next row's
//
// But each query keeps its own running maximum, sum and weighted values, and takes exactly the tiles that it can see,
// first one first, in the same arithmetic. So the bits of a token do not depend on its chunk, on its company, on being
// in a group, or on where its blocks lie.

struct Queries {
    int dim, num_heads;                  // padded; heads of each token
    float *q, *seen;                     // [query][dim] scaled queries; weighted values so far
    float *p;                            // [query][16] scores, then weights, of this tile
    float *most, *total;                 // [query]
    float *keys, *values;                // [dim][16], [16][dim] a tile unpacked
    int32_t positions[MAX_ITEM_TOKENS];  // of the item's tokens

    float *query(int i) const { return q + static_cast<size_t>(i) * dim; }
    float *seen_of(int i) const { return seen + static_cast<size_t>(i) * dim; }
};

// What a query sees of a tile: its keys begin..end - 1.
struct Sight {
    int query, begin, end;
};

inline const float *unpacked(const KvCache &c, const uint8_t *place, float *scratch) {
    if (c.format == KvFormat::F32) return reinterpret_cast<const float *>(place);
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(place);
    const int count = static_cast<int>(c.tile_numbers());
    const bool is_bf16 = c.format == KvFormat::BF16;
    for (int i = 0; i < count; i += LANES) store(scratch + i, load(halves + i, is_bf16));
    return scratch;
}

inline const float *unpacked_keys(const KvCache &c, const uint8_t *place, float *scratch) {
    if (c.format != KvFormat::Q8) return unpacked(c, place, scratch);
    const int8_t *numbers = reinterpret_cast<const int8_t *>(place);
    const uint16_t *scales = reinterpret_cast<const uint16_t *>(place + c.tile_numbers());
    for (int d = 0; d < c.head_dim; d += BLOCK, scales += TILE) {
        const F8 low = load(scales, false), high = load(scales + LANES, false);
        for (int at = TILE * d; at < TILE * (d + BLOCK); at += TILE) {
            store(scratch + at, load(numbers + at) * low);
            store(scratch + at + LANES, load(numbers + at + LANES) * high);
        }
    }
    return scratch;
}

inline const float *unpacked_values(const KvCache &c, const uint8_t *place, float *scratch) {
    if (c.format != KvFormat::Q8) return unpacked(c, place, scratch);
    const int8_t *numbers = reinterpret_cast<const int8_t *>(place);
    const uint16_t *scales = reinterpret_cast<const uint16_t *>(place + c.tile_numbers());
    const int count = static_cast<int>(c.tile_numbers());
    for (int at = 0; at < count; at += BLOCK, ++scales) {
        const F8 scale = set1(half::from_f16(*scales));
        for (int i = at; i < at + BLOCK; i += LANES) store(scratch + i, load(numbers + i) * scale);
    }
    return scratch;
}

// A tile may be read as it is stored, where so few queries see it that unpacking it first would cost more.
template <class W>
inline W fetch(const float *p) {
    return load<W>(p);
}

template <class W>
inline W fetch(const uint16_t *p) {
    return load<W>(p, false);
}

// Products of N queries with 16 keys, one dimension after the other.
template <int N, class Number>
inline void scores(const Queries &s, const Sight *sights, const Number *keys) {
    F8x2 acc[N];
    const float *q[N];
    for (int i = 0; i < N; ++i) acc[i] = set1<F8x2>(0.0f), q[i] = s.query(sights[i].query);
    for (int d = 0; d < s.dim; ++d) {
        const F8x2 column = fetch<F8x2>(keys + TILE * d);
        for (int i = 0; i < N; ++i) acc[i] = fma(column, set1<F8x2>(q[i][d]), acc[i]);
    }
    for (int i = 0; i < N; ++i) store(s.p + TILE * sights[i].query, acc[i]);
}

template <class Number>
inline void all_scores(const Queries &s, const Sight *sights, int count, const Number *keys) {
    int i = 0;
    for (; i + 6 <= count; i += 6) scores<6>(s, sights + i, keys);
    switch (count - i) {
        case 5: return scores<5>(s, sights + i, keys);
        case 4: return scores<4>(s, sights + i, keys);
        case 3: return scores<3>(s, sights + i, keys);
        case 2: return scores<2>(s, sights + i, keys);
        case 1: return scores<1>(s, sights + i, keys);
    }
}

// Turn scores of the keys in sight into weights, and shrink what was seen if there is a new maximum.
inline void soften(const Queries &s, const Sight &sight) {
    const int query = sight.query, begin = sight.begin, end = sight.end;
    float *p = s.p + TILE * query, *seen = s.seen_of(query);
    const bool whole = begin == 0 && end == TILE;  // most tiles are: nothing has to be hidden
    const F8x2 scores = load<F8x2>(p);
    const float most = largest(whole ? scores : between(scores, begin, end, set1<F8x2>(-3.0e38f)));
    if (most > s.most[query]) {
        float shrink[LANES];
        store(shrink, exponential(set1(s.most[query] - most)));
        for (int d = 0; d < s.dim; d += LANES) store(seen + d, load(seen + d) * set1(shrink[0]));
        s.total[query] *= shrink[0];
        s.most[query] = most;
    }
    F8x2 weights = exponential(scores - set1<F8x2>(s.most[query]));
    if (!whole) weights = between(weights, begin, end, set1<F8x2>(0.0f));
    s.total[query] += sum(weights);
    store(p, weights);
}

// seen += weights * values over WIDTH times the dimensions of a W from d on, for N queries that see the same keys. Keys
// that are not in sight are left out rather than weighted with zero: what lies there may be anything, infinities too.
template <int N, class W, int WIDTH, class Number>
inline void gather_values(const Queries &s, const Sight *sights, const Number *values, int d) {
    constexpr int STEP = sizeof(W) / sizeof(float);
    W acc[N][WIDTH];
    const float *p[N];
    for (int n = 0; n < N; ++n) {
        p[n] = s.p + TILE * sights[n].query;
        for (int i = 0; i < WIDTH; ++i) acc[n][i] = load<W>(s.seen_of(sights[n].query) + d + STEP * i);
    }
    for (int key = sights[0].begin; key < sights[0].end; ++key) {
        const Number *row = values + static_cast<size_t>(key) * s.dim + d;
        if constexpr (N < WIDTH) {  // what there is less of stays in registers
            W weight[N];
            for (int n = 0; n < N; ++n) weight[n] = set1<W>(p[n][key]);
            for (int i = 0; i < WIDTH; ++i) {
                const W value = fetch<W>(row + STEP * i);
                for (int n = 0; n < N; ++n) acc[n][i] = fma(value, weight[n], acc[n][i]);
            }
        } else {
            W value[WIDTH];
            for (int i = 0; i < WIDTH; ++i) value[i] = fetch<W>(row + STEP * i);
            for (int n = 0; n < N; ++n) {
                const W weight = set1<W>(p[n][key]);
                for (int i = 0; i < WIDTH; ++i) acc[n][i] = fma(value[i], weight, acc[n][i]);
            }
        }
    }
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < WIDTH; ++i) store(s.seen_of(sights[n].query) + d + STEP * i, acc[n][i]);
}

// Sums that fill 12 of 16 registers, or 24 of 32, so that each multiplication finds its own one free.
template <int N, class Number>
inline void see_values(const Queries &s, const Sight *sights, const Number *values) {
    constexpr int WIDTH = N > 3 && WIDEST == LANES ? 2 : 4;
    int d = 0;
    for (; d + WIDTH * WIDEST <= s.dim; d += WIDTH * WIDEST) gather_values<N, Widest, WIDTH>(s, sights, values, d);
    for (; d + WIDEST <= s.dim; d += WIDEST) gather_values<N, Widest, 1>(s, sights, values, d);
    if constexpr (WIDEST > LANES)
        for (; d < s.dim; d += LANES) gather_values<N, F8, 1>(s, sights, values, d);
}

template <class Number>
inline void all_values(const Queries &s, const Sight *sights, int count, const Number *values) {
    for (int i = 0, same; i < count; i += same) {
        same = 1;
        while (same < 6 && i + same < count && sights[i + same].begin == sights[i].begin &&
               sights[i + same].end == sights[i].end)
            ++same;
        switch (same) {
            case 6: see_values<6>(s, sights + i, values); break;
            case 5: see_values<5>(s, sights + i, values); break;
            case 4: see_values<4>(s, sights + i, values); break;
            case 3: see_values<3>(s, sights + i, values); break;
            case 2: see_values<2>(s, sights + i, values); break;
            default: see_values<1>(s, sights + i, values);
        }
    }
}

// Tokens first..last - 1 of the item, over blocks begin..end - 1 of a table that their rows agree on.
struct Walk {
    int first, last;
    const int32_t *table;
    int begin, end;
};

// What the walk's tokens see of the tile [base, base + length).
inline int look(const Queries &s, const Walk &w, int window, int base, int length, Sight *sights) {
    int count = 0;
    for (int token = w.first; token < w.last; ++token) {
        const int last = s.positions[token] + 1;
        const int first = window && last > window ? last - window : 0;
        const int begin = first > base ? first - base : 0, end = smaller(last - base, length);
        for (int head = 0; head < s.num_heads && begin < end; ++head)
            sights[count++] = {token * s.num_heads + head, begin, end};
    }
    return count;
}

// Where the walk goes next. Blocks lie all over the cache, where no hardware foresees them: without this a tile is
// waited for longer than it is computed with. Keys and values are asked for apart, since a core waits for a few dozen
// lines at a time.
struct Ahead {
    const uint8_t *keys = nullptr, *values = nullptr;
    size_t bytes = 0;

    void fetch_keys() const {
        for (size_t at = 0; at < bytes; at += 64) prefetch(keys + at);
    }
    void fetch_values() const {
        for (size_t at = 0; at < bytes; at += 64) prefetch(values + at);
    }
};

inline Ahead ahead(const KvCache &c, const Walk &w, int kv_head, int block, int tile) {
    if (block >= w.end) return {};
    const size_t place = c.tile_at(w.table[block], kv_head, tile);
    return {c.keys + place, c.values + place, c.tile_bytes()};
}

inline void walk(const AttendArgs &a, int kv_head, const Queries &s, const Walk &w) {
    constexpr int FEW = 6;
    const KvCache &c = a.cache;
    Sight sights[MAX_QUERIES];
    for (int block = w.begin; block < w.end; ++block)
        for (int tile = 0; tile < c.tiles(); ++tile) {
            const int base = block * c.block_tokens + tile * TILE;
            const int count = look(s, w, c.window, base, smaller(TILE, c.block_tokens - tile * TILE), sights);
            if (count == 0) continue;
            const bool is_last = tile + 1 == c.tiles();
            const Ahead next = ahead(c, w, kv_head, is_last ? block + 1 : block, is_last ? 0 : tile + 1);
            const size_t place = c.tile_at(w.table[block], kv_head, tile);
            const uint8_t *keys = c.keys + place, *values = c.values + place;
            next.fetch_keys();
            if (c.format == KvFormat::F16 && count <= FEW)
                all_scores(s, sights, count, reinterpret_cast<const uint16_t *>(keys));
            else
                all_scores(s, sights, count, unpacked_keys(c, keys, s.keys));
            for (int i = 0; i < count; ++i) soften(s, sights[i]);
            next.fetch_values();
            if (c.format == KvFormat::F16 && count <= FEW)
                all_values(s, sights, count, reinterpret_cast<const uint16_t *>(values));
            else
                all_values(s, sights, count, unpacked_values(c, values, s.values));
        }
}

inline void load_queries(const AttendArgs &a, const AttendItem &item, Queries &s) {
    const int dim = a.cache.head_dim;
    int at = 0;
    for (int i = 0; i < item.num_tiles; ++i)
        for (int token = item.tiles[i].begin; token < item.tiles[i].end; ++token, ++at) {
            s.positions[at] = a.positions[token];
            for (int head = 0; head < item.num_heads; ++head) {
                const int query = at * item.num_heads + head;
                const float *from = a.q.row(token) + (item.kv_head * a.group + item.first_head + head) * dim;
                float *to = s.query(query);
                for (int d = 0; d < s.dim; ++d) to[d] = d < dim ? from[d] * a.scale : 0.0f;
                for (int d = 0; d < s.dim; ++d) s.seen_of(query)[d] = 0.0f;
                s.most[query] = -3.0e38f, s.total[query] = 0.0f;
            }
        }
}

inline void store_query(const AttendArgs &a, const Queries &s, int query, int token, int column) {
    const int dim = a.cache.head_dim;
    float *seen = s.seen_of(query);
    const F8 total = set1(s.total[query]);
    for (int d = 0; d < s.dim; d += LANES) store(seen + d, load(seen + d) / total);
    if (a.out.rows.data) std::memcpy(a.out.rows.row(token) + column, seen, sizeof(float) * dim);
    if (a.out.quants.values)  // then head_dim is a whole number of blocks
        for (int d = 0; d < dim; d += BLOCK) quantize_block(seen + d, a.out.quants, token, (column + d) / BLOCK);
}

inline void store_queries(const AttendArgs &a, const AttendItem &item, const Queries &s) {
    int query = 0;
    for (int i = 0; i < item.num_tiles; ++i)
        for (int token = item.tiles[i].begin; token < item.tiles[i].end; ++token)
            for (int head = 0; head < item.num_heads; ++head, ++query)
                store_query(a, s, query, token, (item.kv_head * a.group + item.first_head + head) * a.cache.head_dim);
}

// Without the blocks that none of the walk's tokens sees.
inline Walk walk_of(const AttendArgs &a, const Queries &s, Walk w) {
    int32_t least = s.positions[w.first], most = least;
    for (int token = w.first; token < w.last; ++token) {
        least = smaller(least, s.positions[token]);
        most = s.positions[token] > most ? s.positions[token] : most;
    }
    const int window = a.cache.window, seen_from = window && least >= window ? least + 1 - window : 0;
    if (seen_from / a.cache.block_tokens > w.begin) w.begin = seen_from / a.cache.block_tokens;
    w.end = smaller(w.end, most / a.cache.block_tokens + 1);
    return w;
}

inline const int32_t *table_of(const AttendArgs &a, const AttendItem &item, int tile) {
    return a.block_tables + static_cast<size_t>(item.tiles[tile].row) * a.table_stride;
}

// What the tokens of one tile, the item's tokens from `first` on, see beyond the blocks that all share.
inline Walk own_walk(const AttendArgs &a, const AttendItem &item, const Queries &s, int tile, int first) {
    const int last = first + item.tiles[tile].end - item.tiles[tile].begin;
    return walk_of(a, s, {first, last, table_of(a, item, tile), item.num_shared, a.table_stride});
}

void attend(const AttendArgs &a, const AttendItem &item, float *scratch) {
    const size_t dim = static_cast<size_t>(a.cache.padded_dim());
    Queries s{};
    s.dim = static_cast<int>(dim), s.num_heads = item.num_heads;
    s.keys = scratch;
    s.values = s.keys + TILE * dim;
    s.q = s.values + TILE * dim;
    s.seen = s.q + MAX_QUERIES * dim;
    s.p = s.seen + MAX_QUERIES * dim;
    s.most = s.p + MAX_QUERIES * TILE;
    s.total = s.most + MAX_QUERIES;
    load_queries(a, item, s);
    int num_tokens = 0;
    for (int i = 0; i < item.num_tiles; ++i) num_tokens += item.tiles[i].end - item.tiles[i].begin;
    walk(a, item.kv_head, s, walk_of(a, s, {0, num_tokens, table_of(a, item, 0), 0, item.num_shared}));
    Walk next = own_walk(a, item, s, 0, 0);
    for (int i = 0; i < item.num_tiles; ++i) {
        const Walk now = next;
        if (i + 1 < item.num_tiles) {
            next = own_walk(a, item, s, i + 1, now.last);
            const Ahead first = ahead(a.cache, next, item.kv_head, next.begin, 0);
            first.fetch_keys(), first.fetch_values();
        }
        walk(a, item.kv_head, s, now);
    }
    store_queries(a, item, s);
}
