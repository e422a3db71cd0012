// Kernels of recurrent layers. Included by kernels.cpp, inside a variant's namespace.
//
// A state has the same bits however a text was cut into steps: each token's arithmetic reads the state that the one
// before it has stored. Columns are lanes and never meet, so all variants with fused sums have the same bits, too.
//
// Where all rows of a column decay alike, S = scale * T: the scale decays with every token, and what is added to T is
// divided by it. That saves a product for every number. When a scale is below LEAST_SCALE, T is multiplied with it.

constexpr float LEAST_SCALE = 1.0f / (1 << 24);
constexpr int MAX_TAPS = 16;
constexpr int PAIRS = STATE_COLS / (2 * LANES);  // vectors of a tile's row

// ln(1 + e ** x), by 2 * atanh(e / (2 + e)) with e = e ** -|x|.
inline F8 softplus(F8 x) {
    const F8 e = exponential(set1(0.0f) - magnitude(x)), s = e / (set1(2.0f) + e), square = s * s;
    F8 p = set1(1.0f / 13.0f);
    p = fma(p, square, set1(1.0f / 11.0f));
    p = fma(p, square, set1(1.0f / 9.0f));
    p = fma(p, square, set1(1.0f / 7.0f));
    p = fma(p, square, set1(1.0f / 5.0f));
    p = fma(p, square, set1(1.0f / 3.0f));
    return max(x, set1(0.0f)) + fma(s * square, p + p, s + s);
}

// Eight numbers; of the last ones of an array as many as there are, and zeros.
inline F8 load_some(const float *p, int count) {
    if (count >= LANES) return load(p);
    float part[LANES] = {};
    std::memcpy(part, p, sizeof(float) * count);
    return load(part);
}

inline void store_some(float *p, F8 a, int count) {
    if (count >= LANES) return store(p, a);
    float part[LANES];
    store(part, a);
    std::memcpy(p, part, sizeof(float) * count);
}

// --- tiles

// The row's target tile with the state that the row begins with.
inline float *begin_tile(const States &s, const RowSpan &row, int matrix, int tile) {
    float *to = s.tile(row.target, matrix, tile);
    const size_t bytes = sizeof(float) * s.layout.tile_size();
    if (row.source < 0) {
        std::memset(to, 0, bytes);
        for (int j = 0; s.layout.has_scales && j < s.layout.width; ++j) to[s.layout.rows * s.layout.width + j] = 1.0f;
    } else if (row.source != row.target) {
        std::memcpy(to, s.tile(row.source, matrix, tile), bytes);
    }
    return to;
}

// Copies a tile to where the states after this token are stored. `next`: the first save that is not done.
inline void save_tile(const States &s, const RowSpan &row, int token, int &next, int matrix, int tile) {
    for (; next < row.num_saves && row.saves[2 * next] == token; ++next)
        std::memcpy(s.tile(row.saves[2 * next + 1], matrix, tile), s.tile(row.target, matrix, tile),
                    sizeof(float) * s.layout.tile_size());
}

// A token's numbers for the columns of a tile; columns beyond its width are zeros.
struct TileRow {
    F8x2 at[PAIRS];
};

inline TileRow load_row(const float *p, int width) {
    float part[STATE_COLS] = {};
    if (width < STATE_COLS) std::memcpy(part, p, sizeof(float) * width), p = part;
    TileRow out;
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) out.at[j] = load<F8x2>(p + 2 * LANES * j);
    return out;
}

inline void store_row(float *p, const TileRow &row, int width) {
    float part[STATE_COLS], *to = width < STATE_COLS ? part : p;
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) store(to + 2 * LANES * j, row.at[j]);
    if (width < STATE_COLS) std::memcpy(p, part, sizeof(float) * width);
}

inline TileRow same(float x) {
    TileRow out;
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) out.at[j] = set1<F8x2>(x);
    return out;
}

// --- short convolution

// The numbers of the token `back` tokens before this one: of this step, or of the state.
inline const float *tokens_before(const ConvArgs &a, const RowSpan &row, int token, int back) {
    const int before = a.states.layout.rows, at = token - back;
    if (at >= row.begin) return a.x.row(at);
    if (row.source < 0) return a.zeros;
    return a.states.tile(row.source, 0, 0) + static_cast<size_t>(before + at - row.begin) * a.states.layout.width;
}

// The state after a token, for some columns. The oldest first: a row of the source is read before it is overwritten.
inline void store_tokens(const ConvArgs &a, const RowSpan &row, int token, int slot, int first, int width) {
    const int before = a.states.layout.rows;
    float *to = a.states.tile(slot, 0, 0) + first;
    for (int i = 0; i < before; ++i, to += a.states.layout.width)
        std::memmove(to, tokens_before(a, row, token, before - 1 - i) + first, sizeof(float) * width);
}

// Eight columns. TAPS 0: `taps` of them.
template <int TAPS>
inline F8 convolve(const ConvArgs &a, const float *const *seen, int taps, int column) {
    const int count = TAPS ? TAPS : taps;
    const float *weight = a.weight + static_cast<size_t>(column) * count;
    F8 total = load(seen[0]) * load(weight);
    for (int i = 1; i < count; ++i) total = fma(load(seen[i]), load(weight + LANES * i), total);
    return a.bias ? total + load(a.bias + column) : total;
}

// Some columns of a token, from those of the last tokens.
template <int TAPS>
inline void convolve_part(const ConvArgs &a, const float *const *seen, int taps, int first, int width, float *out) {
    const float *from[MAX_TAPS];
    int k = 0;
    for (; k + LANES <= width; k += LANES) {
        for (int i = 0; i < (TAPS ? TAPS : taps); ++i) from[i] = seen[i] + first + k;
        store(out + first + k, convolve<TAPS>(a, from, taps, first + k));
    }
    if (k < width) {
        float part[MAX_TAPS][LANES] = {};
        for (int i = 0; i < taps; ++i) {
            std::memcpy(part[i], seen[i] + first + k, sizeof(float) * (width - k));
            from[i] = part[i];
        }
        store_some(out + first + k, convolve<TAPS>(a, from, taps, first + k), width - k);
    }
}

// Some columns of a row's tokens.
void short_conv(const ConvArgs &a, const RowSpan &row, int first, int width) {
    const int taps = a.states.layout.rows + 1;
    const float *seen[MAX_TAPS];
    int next = 0;
    for (int token = row.begin; token < row.end; ++token) {
        for (int i = 0; i < taps; ++i) seen[i] = tokens_before(a, row, token, taps - 1 - i);
        if (taps == 3)
            convolve_part<3>(a, seen, taps, first, width, a.out.row(token));
        else if (taps == 4)
            convolve_part<4>(a, seen, taps, first, width, a.out.row(token));
        else
            convolve_part<0>(a, seen, taps, first, width, a.out.row(token));
        if (a.is_activated) {
            const Rows here{a.out.data + first, a.out.stride};
            map({a.kind, here, {}, nullptr, 0.0f, 0.0f, 0.0f, 0.0f, width, {here, {}}}, token, token + 1);
        }
        for (; next < row.num_saves && row.saves[2 * next] == token; ++next)
            store_tokens(a, row, token, row.saves[2 * next + 1], first, width);
    }
    store_tokens(a, row, row.end - 1, row.target, first, width);
}

// --- the gated delta rule

inline void unit_head(const float *x, int count, float scale, float eps, bool is_unit, float *out) {
    float factor = scale;
    if (is_unit) {
        F8 squares = set1(0.0f);
        for (int k = 0; k < count; k += LANES) {
            const F8 part = load_some(x + k, count - k);
            squares = fma(part, part, squares);
        }
        factor = scale / std::sqrt(sum(squares) + eps);
    }
    for (int k = 0; k < count; k += LANES)
        store_some(out + k, load_some(x + k, count - k) * set1(factor), count - k);
}

void delta_prepare(const DeltaPrepareArgs &a, int begin, int end) {
    const int width = a.num_heads * a.key_dim, group = a.heads / a.num_heads;
    for (int token = begin; token < end; ++token) {
        float *q = a.work.row(token), *k = q + width, *kept = k + width;
        for (int at = 0; at < width; at += a.key_dim) {
            unit_head(a.q.row(token) + at, a.key_dim, a.scale, a.eps, a.is_unit, q + at);
            unit_head(a.k.row(token) + at, a.key_dim, 1.0f, a.eps, a.is_unit, k + at);
        }
        const int count = a.heads * (a.is_by_channel ? a.key_dim : 1);
        for (int i = 0; i < count; i += LANES)
            store_some(kept + i, exponential(load_some(a.decay.row(token) + i, count - i)), count - i);
        for (int head = 0; a.is_by_channel && head < a.heads; ++head) {
            const float *key = k + head / group * a.key_dim, *of_head = kept + head * a.key_dim;
            float *both = kept + count + head * a.key_dim;
            for (int i = 0; i < a.key_dim; i += LANES)
                store_some(both + i, load_some(key + i, a.key_dim - i) * load_some(of_head + i, a.key_dim - i),
                           a.key_dim - i);
        }
    }
}

// What one token brings for one head; see DeltaPrepareArgs.
struct DeltaToken {
    const float *q, *k, *kept, *recalled;  // recalled: multiplied with the state before it decays
};

inline DeltaToken delta_token(const DeltaArgs &a, int token, int head) {
    const int key_dim = a.states.layout.rows, heads = a.states.layout.matrices;
    const int width = a.num_heads * key_dim, at = head / (heads / a.num_heads) * key_dim;
    const float *row = a.work.row(token), *kept = row + 2 * width;
    if (!a.is_by_channel) return {row + at, row + width + at, kept + head, row + width + at};
    return {row + at, row + width + at, kept + head * key_dim, kept + (heads + head) * key_dim};
}

// The state's answer to a key: sums over rows.
inline TileRow recall(const float *tile, const float *key, int rows) {
    TileRow known = same(0.0f);
    for (int i = 0; i < rows; ++i)
        QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j)
            known.at[j] = fma(set1<F8x2>(key[i]), load<F8x2>(tile + STATE_COLS * i + 2 * LANES * j), known.at[j]);
    return known;
}

// How a tile decays: not at all, since its scale does; all rows alike; each row by itself.
enum class Decay { SCALE, ALIKE, BY_ROW };

// One pass over a tile: it decays by `kept`, and `change` is added for the key. Returns the tile's answer to the query,
// and with NEXT its answer to the next token's key, as `recall` would.
template <Decay DECAY, bool NEXT>
inline TileRow renew(float *tile, const DeltaToken &now, const float *kept, const float *next, int rows,
                     const TileRow &change, TileRow &known) {
    TileRow out = same(0.0f), recalled = same(0.0f);
    const F8x2 alike = set1<F8x2>(kept[0]);
    for (int i = 0; i < rows; ++i) {
        const F8x2 factor = DECAY == Decay::BY_ROW ? set1<F8x2>(kept[i]) : alike;
        const F8x2 key = set1<F8x2>(now.k[i]), query = set1<F8x2>(now.q[i]);
        QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) {
            float *at = tile + STATE_COLS * i + 2 * LANES * j;
            const F8x2 before = load<F8x2>(at);
            const F8x2 state = fma(key, change.at[j], DECAY == Decay::SCALE ? before : factor * before);
            store(at, state);
            out.at[j] = fma(query, state, out.at[j]);
            if (NEXT) recalled.at[j] = fma(set1<F8x2>(next[i]), state, recalled.at[j]);
        }
    }
    if (NEXT) known = recalled;
    return out;
}

template <Decay DECAY>
inline TileRow renew(float *tile, const DeltaToken &now, const float *kept, const float *next, int rows,
                     const TileRow &change, TileRow &known) {
    if (next) return renew<DECAY, true>(tile, now, kept, next, rows, change, known);
    return renew<DECAY, false>(tile, now, kept, next, rows, change, known);
}

inline TileRow times(float factor, TileRow row) {
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) row.at[j] = set1<F8x2>(factor) * row.at[j];
    return row;
}

// beta * (v - known)
inline TileRow change_of(const TileRow &v, const TileRow &known, float beta) {
    TileRow out;
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) out.at[j] = set1<F8x2>(beta) * (v.at[j] - known.at[j]);
    return out;
}

template <bool BY_CHANNEL>
void delta_tile(const DeltaArgs &a, const RowSpan &row, int head, int tile) {
    const StateLayout &s = a.states.layout;
    const int first = tile * STATE_COLS, width = s.cols - first < STATE_COLS ? s.cols - first : STATE_COLS;
    const int column = head * s.cols + first;
    float *state = begin_tile(a.states, row, head, tile), *scales = state + STATE_COLS * s.rows;
    DeltaToken now = delta_token(a, row.begin, head);
    TileRow known = recall(state, now.recalled, s.rows);
    float scale = BY_CHANNEL ? 1.0f : scales[0];
    int next = 0;
    for (int token = row.begin; token < row.end; ++token) {
        const bool is_last = token + 1 == row.end;
        const DeltaToken after = is_last ? DeltaToken{} : delta_token(a, token + 1, head);
        const TileRow v = load_row(a.v.row(token) + column, width);
        const float beta = a.beta.row(token)[head];
        TileRow out;
        if (BY_CHANNEL) {
            const TileRow change = change_of(v, known, beta);
            out = renew<Decay::BY_ROW>(state, now, now.kept, after.recalled, s.rows, change, known);
        } else {
            const float decayed = scale * now.kept[0];
            const TileRow change = change_of(v, times(decayed, known), beta);
            if (decayed >= LEAST_SCALE) {
                scale = decayed;
                const TileRow scaled = times(1.0f / scale, change);
                out = times(scale, renew<Decay::SCALE>(state, now, &scale, after.recalled, s.rows, scaled, known));
            } else {
                out = renew<Decay::ALIKE>(state, now, &decayed, after.recalled, s.rows, change, known);
                scale = 1.0f;
            }
            store_row(scales, same(scale), STATE_COLS);
        }
        store_row(a.out.row(token) + column, out, width);
        save_tile(a.states, row, token, next, head, tile);
        now = after;
    }
}

void delta_rule(const DeltaArgs &a, const RowSpan &row, int head, int tile) {
    if (a.is_by_channel)
        delta_tile<true>(a, row, head, tile);
    else
        delta_tile<false>(a, row, head, tile);
}

void log_decay(const DecayArgs &a, int begin, int end) {
    for (int token = begin; token < end; ++token)
        for (int k = 0; k < a.dim; k += LANES) {
            const int left = a.dim - k;
            const F8 x = load_some(a.x.row(token) + k, left) + load_some(a.bias + k, left);
            store_some(a.out.row(token) + k, softplus(x) * load_some(a.rate + k, left), left);
        }
}

// --- the scan of Mamba

void scan_prepare(const ScanPrepareArgs &a, int begin, int end) {
    for (int token = begin; token < end; ++token) {
        float *steps = a.work.row(token);
        for (int k = 0; k < a.heads; k += LANES) {
            const int left = a.heads - k;
            F8 x = load_some(a.dt.row(token) + k, left);
            if (a.bias) x = x + load_some(a.bias + k, left);
            const F8 step = min(max(softplus(x), set1(a.low)), set1(a.high));
            store_some(steps + k, step, left);
            if (a.rate) store_some(steps + a.heads + k, exponential(step * load_some(a.rate + k, left)), left);
        }
    }
}

// A number of each head, for the columns of a tile: column c belongs to head c / dim. Beyond its width: `other`.
inline TileRow of_columns(const float *of_heads, int dim, int first, int width, float other) {
    if (first / dim == (first + width - 1) / dim) return same(of_heads[first / dim]);
    if (dim == 1 && width == STATE_COLS) return load_row(of_heads + first, width);
    float part[STATE_COLS];
    for (int j = 0; j < STATE_COLS; ++j) part[j] = j < width ? of_heads[(first + j) / dim] : other;
    return load_row(part, STATE_COLS);
}

inline F8x2 inverse(F8x2 x) { return join(set1(1.0f) / low_of(x), set1(1.0f) / high_of(x)); }

inline float smallest(const TileRow &row) {
    F8x2 most = set1<F8x2>(0.0f) - row.at[0];
    QUIRE_UNROLL for (int j = 1; j < PAIRS; ++j) most = max(most, set1<F8x2>(0.0f) - row.at[j]);
    return -largest(most);
}

// Some columns of a layer's channels.
struct ScanColumns {
    const float *rates;  // of the tile, or null
    int group, first, width;  // first: of all channels
};

// What one token brings for a tile: b and c, x times the time step, and how much is kept of each column.
struct ScanToken {
    const float *b, *c;
    TileRow x, added, kept;  // with rates: kept is the time step
};

inline ScanToken scan_token(const ScanArgs &a, int token, const ScanColumns &at) {
    const int size = a.states.layout.rows;
    const TileRow step = of_columns(a.work.row(token), a.dim, at.first, at.width, 0.0f);
    ScanToken out{a.b.row(token) + at.group * size, a.c.row(token) + at.group * size,
                  load_row(a.x.row(token) + at.first, at.width), step, step};
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) out.added.at[j] = step.at[j] * out.x.at[j];
    if (!at.rates) out.kept = of_columns(a.work.row(token) + a.heads, a.dim, at.first, at.width, 1.0f);
    return out;
}

// One pass over a tile for N tokens, one after the other. Returns sums over rows of c times the tile.
template <Decay DECAY, int N>
inline void scan_tokens(float *tile, const float *rates, int rows, const ScanToken *tokens, TileRow *out) {
    TileRow sums[N];
    QUIRE_UNROLL for (int n = 0; n < N; ++n) sums[n] = same(0.0f);
    for (int i = 0; i < rows; ++i)
        QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) {
            const size_t at = static_cast<size_t>(STATE_COLS) * i + 2 * LANES * j;
            F8x2 state = load<F8x2>(tile + at);
            QUIRE_UNROLL for (int n = 0; n < N; ++n) {
                if (DECAY == Decay::ALIKE) state = tokens[n].kept.at[j] * state;
                if (DECAY == Decay::BY_ROW) state = exponential(tokens[n].kept.at[j] * load<F8x2>(rates + at)) * state;
                state = fma(set1<F8x2>(tokens[n].b[i]), tokens[n].added.at[j], state);
                sums[n].at[j] = fma(set1<F8x2>(tokens[n].c[i]), state, sums[n].at[j]);
            }
            store(tile + at, state);
        }
    QUIRE_UNROLL for (int n = 0; n < N; ++n) out[n] = sums[n];
}

// The scale of a tile's columns after a token. False: one is too small, and the tile decays.
inline bool decay_scales(TileRow &scale, const ScanToken &token) {
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) scale.at[j] = scale.at[j] * token.kept.at[j];
    return smallest(scale) >= LEAST_SCALE;
}

inline void store_scanned(const ScanArgs &a, int token, const ScanColumns &at, const ScanToken &given, TileRow out) {
    if (a.skip) {
        const TileRow skip = of_columns(a.skip, a.dim, at.first, at.width, 0.0f);
        QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) out.at[j] = fma(skip.at[j], given.x.at[j], out.at[j]);
    }
    store_row(a.out.row(token) + at.first, out, at.width);
}

inline TileRow product(TileRow a, const TileRow &b) {
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) a.at[j] = a.at[j] * b.at[j];
    return a;
}

// What is added to a tile whose columns have a scale.
inline void divide_by(ScanToken &token, const TileRow &scale) {
    QUIRE_UNROLL for (int j = 0; j < PAIRS; ++j) token.added.at[j] = token.added.at[j] * inverse(scale.at[j]);
}

// Two tokens in one pass if no state is saved between them, and no scale is too small: the bits are the same.
inline int scan_scaled(const ScanArgs &a, const RowSpan &row, int token, bool is_pair, const ScanColumns &at, float *state) {
    float *scales = state + static_cast<size_t>(STATE_COLS) * a.states.layout.rows;
    const int rows = a.states.layout.rows;
    ScanToken given[2] = {scan_token(a, token, at), {}};
    TileRow scale[2] = {load_row(scales, STATE_COLS), {}}, out[2];
    if (!decay_scales(scale[0], given[0])) {
        given[0].kept = scale[0];
        scan_tokens<Decay::ALIKE, 1>(state, nullptr, rows, given, out);
        store_row(scales, same(1.0f), STATE_COLS);
        store_scanned(a, token, at, given[0], out[0]);
        return 1;
    }
    divide_by(given[0], scale[0]);
    if (is_pair && token + 1 < row.end) {
        given[1] = scan_token(a, token + 1, at), scale[1] = scale[0];
        is_pair = decay_scales(scale[1], given[1]);
        divide_by(given[1], scale[1]);
    } else {
        is_pair = false;
    }
    if (is_pair)
        scan_tokens<Decay::SCALE, 2>(state, nullptr, rows, given, out);
    else
        scan_tokens<Decay::SCALE, 1>(state, nullptr, rows, given, out);
    for (int n = 0; n < 1 + is_pair; ++n) store_scanned(a, token + n, at, given[n], product(scale[n], out[n]));
    store_row(scales, scale[is_pair], STATE_COLS);
    return 1 + is_pair;
}

void state_scan(const ScanArgs &a, const RowSpan &row, int group, int tile) {
    const StateLayout &s = a.states.layout;
    const int first = tile * STATE_COLS, width = s.cols - first < STATE_COLS ? s.cols - first : STATE_COLS;
    const ScanColumns at{a.rates ? a.rates + s.tile_at(group, tile) : nullptr, group, group * s.cols + first, width};
    float *state = begin_tile(a.states, row, group, tile);
    int next = 0;
    for (int token = row.begin; token < row.end;) {
        if (a.rates) {
            const ScanToken given = scan_token(a, token, at);
            TileRow out;
            scan_tokens<Decay::BY_ROW, 1>(state, at.rates, s.rows, &given, &out);
            store_scanned(a, token++, at, given, out);
        } else {
            const bool is_saved = next < row.num_saves && row.saves[2 * next] == token;
            token += scan_scaled(a, row, token, !is_saved, at, state);
        }
        save_tile(a.states, row, token - 1, next, group, tile);
    }
}
