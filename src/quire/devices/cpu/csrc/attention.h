// Attention over paged keys and values, causal or bidirectional. Included by kernels.cpp, inside a variant's namespace.
//
// An item is some tokens, of one row or of rows that begin with the same blocks, times some heads that share keys: its
// queries. They process stretches of 128 keys together:
//
//   shared blocks     all queries of the item           stretch 0, stretch 1, ...
//   a row's own       the queries of that row only      ... up to its last stretch; then the next row's
//
// Each query has its own maximum, sum and weighted values, and uses exactly the keys that it can see, stretch by
// stretch from the first, with the same arithmetic. So the bits of a token do not depend on its chunk, on other rows,
// on being in a group (which ends where a stretch does), or on which blocks hold its keys.

struct Queries {
    int dim, value_dim, num_heads;       // padded; heads of each token
    int value_step;                      // numbers from a value to the next
    float *q, *seen;                     // [query][dim] scaled queries; [query][value_dim] weighted values so far
    float *p;                            // [query][STRETCH] scores, then weights
    float *most, *total;                 // [query]
    float *keys, *values;                // [tile][dim][16], [STRETCH][value_step]: unpacked
    int32_t positions[MAX_ITEM_TOKENS];  // of the item's tokens
    int32_t begins[MAX_ITEM_TOKENS];     // first position that a token sees
    int32_t ends[MAX_ITEM_TOKENS];       // past the last position that it sees

    float *query(int i) const { return q + static_cast<size_t>(i) * dim; }
    float *seen_of(int i) const { return seen + static_cast<size_t>(i) * value_dim; }
    float *weights(int i, int tile) const { return p + static_cast<size_t>(i) * STRETCH + tile * TILE; }
};

struct Tile {
    const uint8_t *keys, *values;
    int base, length;     // position of its first key; how many it has
    const uint8_t *next;  // keys to prefetch while these values are added, or null
};

struct Stretch {
    Tile tiles[STRETCH / TILE];
    int count;
    size_t key_bytes, value_bytes;  // of a tile

    int begin() const { return tiles[0].base; }
    int end() const { return tiles[count - 1].base + tiles[count - 1].length; }
};

// A query and the positions that it sees of a stretch: begin..end - 1.
struct VisibleRange {
    int query, begin, end;

    bool is_whole() const { return end - begin == STRETCH; }
    bool has_same_keys(const VisibleRange &other) const { return begin == other.begin && end == other.end; }
    int begin_in(const Tile &tile) const { return begin > tile.base ? begin - tile.base : 0; }
    int end_in(const Tile &tile) const { return smaller(end - tile.base, tile.length); }
    bool sees(const Tile &tile) const { return begin_in(tile) < end_in(tile); }
};

// --- formats that are unpacked before use

inline void unpack_halves(const KvPlane &c, const uint8_t *place, float *out) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(place);
    const int count = static_cast<int>(c.tile_numbers());
    for (int i = 0; i < count; i += WIDEST) store(out + i, load<Widest>(halves + i, c.format == KvFormat::BF16));
}

// Pairs of [row][column] are those of neighbouring rows: dimensions of keys, or values.
inline void unpack_pairs(const KvPlane &c, const uint8_t *place, int columns, float *out) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(place);
    const int count = static_cast<int>(c.tile_numbers());
    for (int row = 0; row < count; row += 2 * columns)
        for (int i = 0; i < columns; ++i) {
            out[row + i] = half::from_bf16(halves[row + 2 * i]);
            out[row + columns + i] = half::from_bf16(halves[row + 2 * i + 1]);
        }
}

inline void unpack_keys(const KvPlane &c, const uint8_t *place, float *out) {
    if (c.format == KvFormat::BF16_PAIRS) return unpack_pairs(c, place, TILE, out);
    if (c.format == KvFormat::F16) return unpack_halves(c, place, out);
    const int8_t *numbers = reinterpret_cast<const int8_t *>(place);
    const uint16_t *scales = reinterpret_cast<const uint16_t *>(place + c.tile_numbers());
    for (int d = 0; d < c.dim; d += BLOCK, scales += TILE) {
        const F8 low = load(scales, false), high = load(scales + LANES, false);
        for (int at = TILE * d; at < TILE * (d + BLOCK); at += TILE) {
            store(out + at, load(numbers + at) * low);
            store(out + at + LANES, load(numbers + at + LANES) * high);
        }
    }
}

inline void unpack_values(const KvPlane &c, const uint8_t *place, float *out) {
    if (c.format == KvFormat::BF16_PAIRS) return unpack_pairs(c, place, c.padded_dim(), out);
    if (c.format == KvFormat::F16 || c.format == KvFormat::BF16) return unpack_halves(c, place, out);
    const int8_t *numbers = reinterpret_cast<const int8_t *>(place);
    const uint16_t *scales = reinterpret_cast<const uint16_t *>(place + c.tile_numbers());
    const int count = static_cast<int>(c.tile_numbers());
    for (int at = 0; at < count; at += BLOCK, ++scales) {
        const F8 scale = set1(half::from_f16(*scales));
        for (int i = at; i < at + BLOCK; i += LANES) store(out + i, load(numbers + i) * scale);
    }
}

// Numbers of a tile: float32, or f16, whose conversion is hidden by the multiplications.
template <class W>
inline W fetch(const float *p) {
    return load<W>(p);
}

template <class W>
inline W fetch(const uint16_t *p) {
    return load<W>(p, false);
}

// Blocks are scattered over the cache, where hardware does not prefetch: without this, waiting for a tile takes longer
// than computing with it.
inline void fetch_tile(size_t bytes, const uint8_t *tile) {
    for (size_t at = 0; tile && at < bytes; at += 64) prefetch(tile + at);
}

// --- one stretch

// Products of N queries with the keys of M tiles, dimension by dimension. Keys that a query does not see are multiplied
// too; their scores are not used.
template <int N, int M, class Number>
inline void scores(const Queries &s, const VisibleRange *ranges, const Stretch &stretch, int tile) {
    F8x2 acc[N][M];
    const float *q[N];
    const Number *keys[M];
    QUIRE_UNROLL for (int m = 0; m < M; ++m) keys[m] = reinterpret_cast<const Number *>(stretch.tiles[tile + m].keys);
    QUIRE_UNROLL for (int n = 0; n < N; ++n) {
        q[n] = s.query(ranges[n].query);
        QUIRE_UNROLL for (int m = 0; m < M; ++m) acc[n][m] = set1<F8x2>(0.0f);
    }
    for (int d = 0; d < s.dim; ++d) {
        F8x2 columns[M];
        QUIRE_UNROLL for (int m = 0; m < M; ++m) columns[m] = fetch<F8x2>(keys[m] + TILE * d);
        QUIRE_UNROLL for (int n = 0; n < N; ++n) {
            const F8x2 number = set1<F8x2>(q[n][d]);
            QUIRE_UNROLL for (int m = 0; m < M; ++m) acc[n][m] = fma(columns[m], number, acc[n][m]);
        }
    }
    QUIRE_UNROLL for (int n = 0; n < N; ++n)
        QUIRE_UNROLL for (int m = 0; m < M; ++m) store(s.weights(ranges[n].query, tile + m), acc[n][m]);
}

template <int M, class Number>
inline void all_scores(const Queries &s, const VisibleRange *ranges, int count, const Stretch &stretch, int tile) {
    int i = 0;
    for (; i + 6 <= count; i += 6) scores<6, M, Number>(s, ranges + i, stretch, tile);
    switch (count - i) {
        case 5: return scores<5, M, Number>(s, ranges + i, stretch, tile);
        case 4: return scores<4, M, Number>(s, ranges + i, stretch, tile);
        case 3: return scores<3, M, Number>(s, ranges + i, stretch, tile);
        case 2: return scores<2, M, Number>(s, ranges + i, stretch, tile);
        case 1: return scores<1, M, Number>(s, ranges + i, stretch, tile);
    }
}

#include "latent.h"

// Weights are powers of two relative to the largest score, or to an earlier one that is at most LITTLE less: they stay
// well inside the range of float32, and earlier sums need not be rescaled for every small increase.
inline void rescale_to_maximum(const Queries &s, int query, float most) {
    constexpr float LITTLE = 8.0f;
    if (most <= s.most[query] + LITTLE) return;
    float by[LANES], *seen = s.seen_of(query);
    store(by, power(set1(s.most[query] - most)));
    for (int d = 0; d < s.value_dim; d += LANES) store(seen + d, load(seen + d) * set1(by[0]));
    s.total[query] *= by[0];
    s.most[query] = most;
}

#if QUIRE_AVX512_BF16
#include "attention_pairs.h"
#endif

// Turns scores into weights for a query that sees the whole stretch, as it nearly always does.
inline void softmax_whole(const Queries &s, int query) {
    float *p = s.weights(query, 0);
    F8x2 largest_of = load<F8x2>(p);
    for (int i = TILE; i < STRETCH; i += TILE) largest_of = max(largest_of, load<F8x2>(p + i));
    rescale_to_maximum(s, query, largest(largest_of));
    const F8x2 most = set1<F8x2>(s.most[query]);
    F8x2 total = set1<F8x2>(0.0f);
    for (int i = 0; i < STRETCH; i += TILE) {
        const F8x2 weights = power(load<F8x2>(p + i) - most);
        total = total + weights;
        store(p + i, weights);
    }
    s.total[query] += sum(total);
}

// The same if some keys are hidden.
inline void softmax_partial(const Queries &s, const VisibleRange &range, const Stretch &stretch) {
    const F8x2 nothing = set1<F8x2>(0.0f), least = set1<F8x2>(-3.0e38f);
    F8x2 largest_of = least, total = nothing;
    for (int i = 0; i < stretch.count; ++i) {
        const int begin = range.begin_in(stretch.tiles[i]), end = range.end_in(stretch.tiles[i]);
        const F8x2 scores = load<F8x2>(s.weights(range.query, i));
        if (begin < end) largest_of = max(largest_of, between(scores, begin, end, least));
    }
    rescale_to_maximum(s, range.query, largest(largest_of));
    const F8x2 most = set1<F8x2>(s.most[range.query]);
    for (int i = 0; i < stretch.count; ++i) {
        const int begin = range.begin_in(stretch.tiles[i]), end = range.end_in(stretch.tiles[i]);
        if (begin >= end) continue;
        float *p = s.weights(range.query, i);
        const F8x2 weights = between(power(load<F8x2>(p) - most), begin, end, nothing);
        total = total + weights;
        store(p, weights);
    }
    s.total[range.query] += sum(total);
}

// seen += weights * values over WIDTH times the dimensions of a W from d on, for N queries that see the same keys. Keys
// that are not visible are skipped rather than weighted with zero: their memory may hold anything, infinities too. The
// call with `leads` prefetches the keys of the next stretch.
template <int N, class W, int WIDTH, class Number>
inline void gather_numbers(const Queries &s, const VisibleRange *ranges, const Stretch &stretch, int d, bool leads) {
    constexpr int STEP = sizeof(W) / sizeof(float);
    W acc[N][WIDTH];
    QUIRE_UNROLL for (int n = 0; n < N; ++n)
        QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) acc[n][i] = load<W>(s.seen_of(ranges[n].query) + d + STEP * i);
    for (int tile = 0; tile < stretch.count; ++tile) {
        if (leads) fetch_tile(stretch.key_bytes, stretch.tiles[tile].next);
        const int begin = ranges[0].begin_in(stretch.tiles[tile]), end = ranges[0].end_in(stretch.tiles[tile]);
        const Number *row = reinterpret_cast<const Number *>(stretch.tiles[tile].values) + begin * s.value_step + d;
        const float *p[N];
        QUIRE_UNROLL for (int n = 0; n < N; ++n) p[n] = s.weights(ranges[n].query, tile);
        for (int key = begin; key < end; ++key, row += s.value_step) {
            if constexpr (N < WIDTH) {  // the smaller operand stays in registers
                W weight[N];
                QUIRE_UNROLL for (int n = 0; n < N; ++n) weight[n] = set1<W>(p[n][key]);
                QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) {
                    const W value = fetch<W>(row + STEP * i);
                    QUIRE_UNROLL for (int n = 0; n < N; ++n) acc[n][i] = fma(value, weight[n], acc[n][i]);
                }
            } else {
                W value[WIDTH];
                QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) value[i] = fetch<W>(row + STEP * i);
                QUIRE_UNROLL for (int n = 0; n < N; ++n) {
                    const W weight = set1<W>(p[n][key]);
                    QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) acc[n][i] = fma(value[i], weight, acc[n][i]);
                }
            }
        }
    }
    QUIRE_UNROLL for (int n = 0; n < N; ++n)
        QUIRE_UNROLL for (int i = 0; i < WIDTH; ++i) store(s.seen_of(ranges[n].query) + d + STEP * i, acc[n][i]);
}

template <int N, class W, int WIDTH, class Number>
inline void gather_values(const Queries &s, const VisibleRange *ranges, const Stretch &stretch, int d, bool leads) {
#if QUIRE_AVX512_BF16
    if constexpr (std::is_same_v<Number, Pair>)
        gather_pairs<N, W, WIDTH>(s, ranges, stretch, d, leads);
    else
#endif
        gather_numbers<N, W, WIDTH, Number>(s, ranges, stretch, d, leads);
}

// Sums fill 12 of 16 registers, or 24 of 32, so that multiplications do not wait for each other.
template <int N, class Number>
inline void accumulate_values(const Queries &s, const VisibleRange *ranges, const Stretch &stretch, bool leads) {
    constexpr int WIDTH = N == 1 ? 8 : N > 3 && WIDEST == LANES ? 2 : 4;
    int d = 0;
    for (; d + WIDTH * WIDEST <= s.value_dim; d += WIDTH * WIDEST)
        gather_values<N, Widest, WIDTH, Number>(s, ranges, stretch, d, leads && d == 0);
    if constexpr (WIDTH > 4)
        for (; d + 4 * WIDEST <= s.value_dim; d += 4 * WIDEST)
            gather_values<N, Widest, 4, Number>(s, ranges, stretch, d, leads && d == 0);
    if constexpr (WIDTH > 2)
        for (; d + 2 * WIDEST <= s.value_dim; d += 2 * WIDEST)
            gather_values<N, Widest, 2, Number>(s, ranges, stretch, d, leads && d == 0);
    for (; d + WIDEST <= s.value_dim; d += WIDEST)
        gather_values<N, Widest, 1, Number>(s, ranges, stretch, d, leads && d == 0);
    if constexpr (WIDEST > LANES)
        for (; d < s.value_dim; d += LANES) gather_values<N, F8, 1, Number>(s, ranges, stretch, d, leads && d == 0);
}

template <class Number>
inline void add_values_of(const Queries &s, const VisibleRange *ranges, int count, const Stretch &stretch) {
    for (int i = 0, same; i < count; i += same) {
        same = 1;
        while (same < 6 && i + same < count && ranges[i + same].has_same_keys(ranges[i])) ++same;
        switch (same) {
            case 6: accumulate_values<6, Number>(s, ranges + i, stretch, i == 0); break;
            case 5: accumulate_values<5, Number>(s, ranges + i, stretch, i == 0); break;
            case 4: accumulate_values<4, Number>(s, ranges + i, stretch, i == 0); break;
            case 3: accumulate_values<3, Number>(s, ranges + i, stretch, i == 0); break;
            case 2: accumulate_values<2, Number>(s, ranges + i, stretch, i == 0); break;
            default: accumulate_values<1, Number>(s, ranges + i, stretch, i == 0);
        }
    }
}

// --- all stretches

// Tokens first..last - 1 of the item, over blocks begin..end - 1 of a table that their rows share.
struct Walk {
    int first, last;
    const int32_t *table;
    int begin, end;
};

// Finds what the walk's tokens see of the stretch.
inline int find_visible(const Queries &s, const Walk &w, const Stretch &stretch, VisibleRange *ranges) {
    int count = 0;
    for (int token = w.first; token < w.last; ++token) {
        const int first = s.begins[token], end = smaller(s.ends[token], stretch.end());
        const int begin = first > stretch.begin() ? first : stretch.begin();
        for (int head = 0; head < s.num_heads && begin < end; ++head)
            ranges[count++] = {token * s.num_heads + head, begin, end};
    }
    return count;
}

inline Tile tile_of(const KvCache &c, const Walk &w, int kv_head, int index) {
    const int block = index / c.tiles(), tile = index % c.tiles();
    return {c.keys.tile_at(w.table[block], kv_head, tile), c.values.tile_at(w.table[block], kv_head, tile),
            block * c.block_tokens + tile * TILE, smaller(TILE, c.block_tokens - tile * TILE), nullptr};
}

// The tiles from `index` on, up to `end` or to where the next stretch begins.
inline Stretch stretch_of(const KvCache &c, const Walk &w, int kv_head, int index, int end) {
    constexpr int TILES = STRETCH / TILE;
    Stretch out;
    out.key_bytes = c.keys.tile_bytes(), out.value_bytes = c.values.tile_bytes();
    const int last = smaller(end, (index / TILES + 1) * TILES);
    for (out.count = 0; index < last; ++index) out.tiles[out.count++] = tile_of(c, w, kv_head, index);
    for (int i = 0; i < out.count && index < end; ++i, ++index) out.tiles[i].next = tile_of(c, w, kv_head, index).keys;
    return out;
}

// AVX-512 converts f16 in a unit that also multiplies, so many queries share one conversion there.
inline bool is_f16_as_stored(const KvPlane &c, int num_queries) {
    constexpr int MANY = 12;
    return c.format == KvFormat::F16 && (WIDEST == LANES || num_queries < MANY);
}

inline void unpack_stretch(const KvCache &c, const Queries &s, Stretch &stretch) {
    if (c.values.format == KvFormat::F32 || (c.is_latent() && c.values.format == KvFormat::F16)) return;
    for (int i = 0; i < stretch.count; ++i) {
        float *unpacked = s.values + static_cast<size_t>(TILE) * i * s.value_step;
        unpack_values(c.values, stretch.tiles[i].values, unpacked);
        stretch.tiles[i].values = reinterpret_cast<const uint8_t *>(unpacked);
    }
}

// Scores of the tiles from `tile` on, which are 1, 2 or 4: as many at once as there are registers for.
template <class Number>
inline void score_tiles(const Queries &s, const VisibleRange *ranges, int count, const Stretch &stretch, int tile,
                        int at_once) {
    const Tile &first = stretch.tiles[tile], &last = stretch.tiles[tile + at_once - 1];
    while (count && ranges[0].end <= first.base) ++ranges, --count;
    while (count && ranges[count - 1].begin >= last.base + last.length) --count;
    if constexpr (WIDEST > LANES) {
        if (at_once == 4) return all_scores<4, Number>(s, ranges, count, stretch, tile);
        if (at_once == 2) return all_scores<2, Number>(s, ranges, count, stretch, tile);
    }
    all_scores<1, Number>(s, ranges, count, stretch, tile);
}

inline void score_some(const KvCache &c, const Queries &s, const VisibleRange *ranges, int count, Stretch &stretch,
                       int tile, int at_once) {
    if (c.is_latent()) return score_latents(c, s, ranges, count, stretch.tiles[tile], tile);
    if (is_f16_as_stored(c.keys, count)) return score_tiles<uint16_t>(s, ranges, count, stretch, tile, at_once);
    for (int i = tile; i < tile + at_once && c.keys.format != KvFormat::F32; ++i) {
        float *unpacked = s.keys + static_cast<size_t>(TILE) * (i - tile) * s.dim;
        unpack_keys(c.keys, stretch.tiles[i].keys, unpacked);
        stretch.tiles[i].keys = reinterpret_cast<const uint8_t *>(unpacked);
    }
    score_tiles<float>(s, ranges, count, stretch, tile, at_once);
}

inline void score_stretch(const KvCache &c, const Queries &s, const VisibleRange *ranges, int count, Stretch &stretch,
                          bool is_first) {
#if QUIRE_AVX512_BF16
    if (is_in_pairs(c)) return score_pairs(s, ranges, count, stretch, is_first);
#endif
    for (int tile = 0; tile < stretch.count;) {
        const int left = stretch.count - tile;
        const int at_once = WIDEST == LANES || c.is_latent() || left < 2 ? 1 : left < TILES_AT_ONCE ? 2 : TILES_AT_ONCE;
        for (int i = tile; i < tile + at_once; ++i) {
            if (is_first && i + at_once < stretch.count) fetch_tile(stretch.key_bytes, stretch.tiles[i + at_once].keys);
            if (!c.is_latent()) fetch_tile(stretch.value_bytes, stretch.tiles[i].values);
        }
        score_some(c, s, ranges, count, stretch, tile, at_once);
        tile += at_once;
    }
}

inline void softmax([[maybe_unused]] const KvCache &c, const Queries &s, const VisibleRange &range,
                    const Stretch &stretch) {
#if QUIRE_AVX512_BF16
    if (is_in_pairs(c))
        return range.is_whole() ? softmax_pairs<true>(s, range, stretch) : softmax_pairs<false>(s, range, stretch);
#endif
    if (range.is_whole()) return softmax_whole(s, range.query);
    softmax_partial(s, range, stretch);
}

inline void add_values(const KvCache &c, const Queries &s, const VisibleRange *ranges, int count, Stretch &stretch) {
#if QUIRE_AVX512_BF16
    if (is_in_pairs(c)) return add_values_of<Pair>(s, ranges, count, stretch);
#endif
    if (c.is_latent() ? c.values.format == KvFormat::F16 : is_f16_as_stored(c.values, count))
        return add_values_of<uint16_t>(s, ranges, count, stretch);
    if (!c.is_latent()) unpack_stretch(c, s, stretch);
    add_values_of<float>(s, ranges, count, stretch);
}

constexpr float LOG2_E = 1.44269504f;  // weights are powers of two instead of e

inline int head_of(const AttendArgs &a, const AttendItem &item, int query) {
    return item.kv_head * a.group + item.first_head + query % item.num_heads;
}

// Softcap and bias of one query's scores.
inline void adjust(const AttendArgs &a, const Queries &s, const VisibleRange &range, const Stretch &stretch, int head) {
    static const float LANE[TILE] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int position = s.positions[range.query / s.num_heads];
    for (int i = 0; i < stretch.count; ++i) {
        const Tile &tile = stretch.tiles[i];
        if (!range.sees(tile)) continue;
        float *p = s.weights(range.query, i);
        for (int at = 0; at < TILE; at += LANES) {
            F8 score = load(p + at);
            if (a.softcap != 0.0f) score = set1(a.softcap * LOG2_E) * tangent(score);
            if (a.slopes) {
                const F8 offset = load(LANE + at) + set1(static_cast<float>(tile.base - position));
                score = score + set1(a.slopes[head] * LOG2_E) * min(offset, set1(0.0f) - offset);
            }
            store(p + at, score);
        }
        for (int key = 0; a.distances && key < TILE; ++key) {
            const int offset = tile.base + key - position;
            const int clipped = offset < -a.reach ? -a.reach : smaller(offset, a.reach);
            p[key] += LOG2_E * a.distances[static_cast<size_t>(head) * (2 * a.reach + 1) + clipped + a.reach];
        }
    }
}

inline void walk(const AttendArgs &a, const AttendItem &item, const Queries &s, const Walk &w) {
    const int kv_head = item.kv_head;
    const bool is_adjusted = a.softcap != 0.0f || a.slopes || a.distances;
    const KvCache &c = a.cache;
    VisibleRange ranges[MAX_QUERIES];
    const int end = w.end * c.tiles();
    for (int index = w.begin * c.tiles(); index < end;) {
        const bool is_first = index == w.begin * c.tiles();
        Stretch stretch = stretch_of(c, w, kv_head, index, end);
        index += stretch.count;
        const int count = find_visible(s, w, stretch, ranges);
        if (count == 0) continue;
        if (c.is_latent()) unpack_stretch(c, s, stretch);  // for the scores, too
        score_stretch(c, s, ranges, count, stretch, is_first);
        for (int i = 0; is_adjusted && i < count; ++i)
            adjust(a, s, ranges[i], stretch, head_of(a, item, ranges[i].query));
        for (int i = 0; i < count; ++i) softmax(c, s, ranges[i], stretch);
        add_values(c, s, ranges, count, stretch);
    }
}

inline void load_queries(const AttendArgs &a, const AttendItem &item, Queries &s) {
    const int dim = a.cache.keys.dim;
    const float scale = a.softcap != 0.0f ? a.scale / a.softcap : a.scale * LOG2_E;  // see `adjust`
    int at = 0;
    for (int i = 0; i < item.num_tiles; ++i)
        for (int token = item.tiles[i].begin; token < item.tiles[i].end; ++token, ++at) {
            const int position = a.positions[token];
            s.positions[at] = position, s.begins[at] = a.cache.first_visible(position);
            s.ends[at] = a.lengths ? a.cache.past_visible(position, a.lengths[item.tiles[i].row]) : position + 1;
            for (int head = 0; head < item.num_heads; ++head) {
                const int query = at * item.num_heads + head;
                const int of_all = item.kv_head * a.group + item.first_head + head;
                const float *from = a.q.row(token) + of_all * dim;
                float *to = s.query(query);
                for (int d = 0; d < s.dim; ++d) to[d] = d < dim ? from[d] * scale : 0.0f;
#if QUIRE_AVX512_BF16
                if (is_in_pairs(a.cache)) round_query(s, query);
#endif
                for (int d = 0; d < s.value_dim; ++d) s.seen_of(query)[d] = 0.0f;
                s.most[query] = a.sinks ? a.sinks[of_all] * LOG2_E : -3.0e38f;
                s.total[query] = a.sinks ? 1.0f : 0.0f;
            }
        }
}

inline void store_query(const AttendArgs &a, const Queries &s, int query, int token, int column) {
    const int dim = a.cache.value_dim();
    float *seen = s.seen_of(query);
    int at = 0;  // stores are as wide as the loads of quantize_block
    for (; at + WIDEST <= s.value_dim; at += WIDEST)
        store(seen + at, load<Widest>(seen + at) / set1<Widest>(s.total[query]));
    for (; at < s.value_dim; at += LANES) store(seen + at, load(seen + at) / set1(s.total[query]));
    if (a.out.rows.data) std::memcpy(a.out.rows.row(token) + column, seen, sizeof(float) * dim);
    if (a.out.quants.values)  // then value_dim is a whole number of blocks
        for (int d = 0; d < dim; d += BLOCK) quantize_block(seen + d, a.out.quants, token, (column + d) / BLOCK);
}

inline void store_queries(const AttendArgs &a, const AttendItem &item, const Queries &s) {
    int query = 0;
    for (int i = 0; i < item.num_tiles; ++i)
        for (int token = item.tiles[i].begin; token < item.tiles[i].end; ++token)
            for (int head = 0; head < item.num_heads; ++head, ++query)
                store_query(a, s, query, token, (item.kv_head * a.group + item.first_head + head) * a.cache.value_dim());
}

// Removes the blocks that none of the walk's tokens sees.
inline Walk walk_of(const AttendArgs &a, const Queries &s, Walk w) {
    int32_t begin = s.begins[w.first], end = s.ends[w.first];
    for (int token = w.first; token < w.last; ++token) {
        begin = smaller(begin, s.begins[token]);
        end = s.ends[token] > end ? s.ends[token] : end;
    }
    if (begin / a.cache.block_tokens > w.begin) w.begin = begin / a.cache.block_tokens;
    w.end = smaller(w.end, (end - 1) / a.cache.block_tokens + 1);
    return w;
}

inline const int32_t *table_of(const AttendArgs &a, const AttendItem &item, int tile) {
    return a.block_tables + static_cast<size_t>(item.tiles[tile].row) * a.table_stride;
}

// The walk of one tile's tokens, the item's tokens from `first` on, after the shared blocks.
inline Walk own_walk(const AttendArgs &a, const AttendItem &item, const Queries &s, int tile, int first) {
    const int last = first + item.tiles[tile].end - item.tiles[tile].begin;
    return walk_of(a, s, {first, last, table_of(a, item, tile), item.num_shared, a.table_stride});
}

void attend(const AttendArgs &a, const AttendItem &item, float *scratch) {
    const size_t dim = static_cast<size_t>(a.cache.keys.padded_dim());
    const size_t value_dim = static_cast<size_t>(a.cache.padded_value_dim());
    Queries s{};
    s.dim = static_cast<int>(dim), s.value_dim = static_cast<int>(value_dim), s.num_heads = item.num_heads;
    s.value_step = a.cache.values.padded_dim();
    s.keys = scratch;
    s.values = s.keys + TILES_AT_ONCE * TILE * dim;
    s.q = s.values + STRETCH * static_cast<size_t>(s.value_step);
    s.seen = s.q + MAX_QUERIES * dim;
    s.p = s.seen + MAX_QUERIES * value_dim;
    s.most = s.p + MAX_QUERIES * STRETCH;
    s.total = s.most + MAX_QUERIES;
    load_queries(a, item, s);
    int num_tokens = 0;
    for (int i = 0; i < item.num_tiles; ++i) num_tokens += item.tiles[i].end - item.tiles[i].begin;
    walk(a, item, s, walk_of(a, s, {0, num_tokens, table_of(a, item, item.leader), 0, item.num_shared}));
    Walk next = own_walk(a, item, s, 0, 0);
    for (int i = 0; i < item.num_tiles; ++i) {
        const Walk now = next;
        if (i + 1 < item.num_tiles) {
            next = own_walk(a, item, s, i + 1, now.last);
            if (next.begin < next.end)
                fetch_tile(a.cache.keys.tile_bytes(),
                           tile_of(a.cache, next, item.kv_head, next.begin * a.cache.tiles()).keys);
        }
        walk(a, item, s, now);
    }
    store_queries(a, item, s);
}
