// Kernels of recurrent layers. Included by kernels.cpp, inside a variant's namespace.
//
// A state has the same bits however a text was cut into steps: each token's arithmetic reads the state that the one
// before it has stored. Columns are lanes and never meet, so all variants with fused sums have the same bits, too.

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
    if (row.source < 0)
        std::memset(to, 0, bytes);
    else if (row.source != row.target)
        std::memcpy(to, s.tile(row.source, matrix, tile), bytes);
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
    for (int j = 0; j < PAIRS; ++j) out.at[j] = load<F8x2>(p + 2 * LANES * j);
    return out;
}

inline void store_row(float *p, const TileRow &row, int width) {
    float part[STATE_COLS], *to = width < STATE_COLS ? part : p;
    for (int j = 0; j < PAIRS; ++j) store(to + 2 * LANES * j, row.at[j]);
    if (width < STATE_COLS) std::memcpy(p, part, sizeof(float) * width);
}

inline TileRow same(float x) {
    TileRow out;
    for (int j = 0; j < PAIRS; ++j) out.at[j] = set1<F8x2>(x);
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

template <int TAPS>
inline void convolve(const ConvArgs &a, const float *const *seen, int taps, int first, int width, float *out) {
    const size_t stride = static_cast<size_t>(a.states.layout.width);
    const int count = TAPS ? TAPS : taps;
    for (int k = first; k < first + width; k += LANES) {
        const int left = first + width - k;
        F8 total = load_some(seen[0] + k, left) * load(a.weight + k);
        for (int i = 1; i < count; ++i) total = fma(load_some(seen[i] + k, left), load(a.weight + stride * i + k), total);
        store_some(out + k, a.bias ? total + load(a.bias + k) : total, left);
    }
}

constexpr int MAX_TAPS = 16;

// Some columns of a row's tokens.
void short_conv(const ConvArgs &a, const RowSpan &row, int first, int width) {
    const int taps = a.states.layout.rows + 1;
    const float *seen[MAX_TAPS];
    int next = 0;
    for (int token = row.begin; token < row.end; ++token) {
        for (int i = 0; i < taps; ++i) seen[i] = tokens_before(a, row, token, taps - 1 - i);
        if (taps == 3)
            convolve<3>(a, seen, taps, first, width, a.out.row(token));
        else if (taps == 4)
            convolve<4>(a, seen, taps, first, width, a.out.row(token));
        else
            convolve<0>(a, seen, taps, first, width, a.out.row(token));
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
        for (int j = 0; j < PAIRS; ++j)
            known.at[j] = fma(set1<F8x2>(key[i]), load<F8x2>(tile + STATE_COLS * i + 2 * LANES * j), known.at[j]);
    return known;
}

// One pass over a tile: it decays, and `change` is added for the key. Returns the state's answer to the query, and with
// NEXT its answer to the next token's key, as `recall` would.
template <bool BY_CHANNEL, bool NEXT>
inline TileRow renew(float *tile, const DeltaToken &now, const float *next, int rows, const TileRow &change,
                     TileRow &known) {
    TileRow out = same(0.0f), recalled = same(0.0f);
    const F8x2 kept = set1<F8x2>(now.kept[0]);
    for (int i = 0; i < rows; ++i) {
        const F8x2 factor = BY_CHANNEL ? set1<F8x2>(now.kept[i]) : kept;
        const F8x2 key = set1<F8x2>(now.k[i]), query = set1<F8x2>(now.q[i]);
        for (int j = 0; j < PAIRS; ++j) {
            float *at = tile + STATE_COLS * i + 2 * LANES * j;
            const F8x2 state = fma(key, change.at[j], factor * load<F8x2>(at));
            store(at, state);
            out.at[j] = fma(query, state, out.at[j]);
            if (NEXT) recalled.at[j] = fma(set1<F8x2>(next[i]), state, recalled.at[j]);
        }
    }
    if (NEXT) known = recalled;
    return out;
}

template <bool BY_CHANNEL>
void delta_tile(const DeltaArgs &a, const RowSpan &row, int head, int tile) {
    const StateLayout &s = a.states.layout;
    const int first = tile * STATE_COLS, width = s.cols - first < STATE_COLS ? s.cols - first : STATE_COLS;
    const int column = head * s.cols + first;
    float *state = begin_tile(a.states, row, head, tile);
    DeltaToken now = delta_token(a, row.begin, head);
    TileRow known = recall(state, now.recalled, s.rows);
    int next = 0;
    for (int token = row.begin; token < row.end; ++token) {
        TileRow change = load_row(a.v.row(token) + column, width);
        const F8x2 beta = set1<F8x2>(a.beta.row(token)[head]), kept = set1<F8x2>(now.kept[0]);
        for (int j = 0; j < PAIRS; ++j)
            change.at[j] = beta * (change.at[j] - (BY_CHANNEL ? known.at[j] : kept * known.at[j]));
        TileRow out;
        if (token + 1 < row.end) {
            const DeltaToken after = delta_token(a, token + 1, head);
            out = renew<BY_CHANNEL, true>(state, now, after.recalled, s.rows, change, known);
            now = after;
        } else {
            out = renew<BY_CHANNEL, false>(state, now, nullptr, s.rows, change, known);
        }
        store_row(a.out.row(token) + column, out, width);
        save_tile(a.states, row, token, next, head, tile);
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

// A number of each head, for the columns of a tile: column c belongs to head c / dim.
inline TileRow of_columns(const float *of_heads, int dim, int first, int width) {
    if (dim == 1) return load_row(of_heads + first, width);
    if (first / dim == (first + width - 1) / dim) return same(of_heads[first / dim]);
    float part[STATE_COLS];
    for (int j = 0; j < width; ++j) part[j] = of_heads[(first + j) / dim];
    return load_row(part, width);
}

template <bool BY_ROW>
void scan_tile(const ScanArgs &a, const RowSpan &row, int group, int tile) {
    const StateLayout &s = a.states.layout;
    const int first = tile * STATE_COLS, width = s.cols - first < STATE_COLS ? s.cols - first : STATE_COLS;
    const int column = group * s.cols + first;  // of all heads
    const float *rates = BY_ROW ? a.rates + s.tile_at(group, tile) : nullptr;
    float *state = begin_tile(a.states, row, group, tile);
    int next = 0;
    for (int token = row.begin; token < row.end; ++token) {
        const float *b = a.b.row(token) + group * s.rows, *c = a.c.row(token) + group * s.rows;
        const TileRow x = load_row(a.x.row(token) + column, width);
        const TileRow step = of_columns(a.work.row(token), a.dim, column, width);
        const TileRow kept = BY_ROW ? step : of_columns(a.work.row(token) + a.heads, a.dim, column, width);
        TileRow added, out = same(0.0f);
        for (int j = 0; j < PAIRS; ++j) added.at[j] = step.at[j] * x.at[j];
        for (int i = 0; i < s.rows; ++i)
            for (int j = 0; j < PAIRS; ++j) {
                float *at = state + STATE_COLS * i + 2 * LANES * j;
                F8x2 factor = kept.at[j];
                if (BY_ROW) factor = exponential(factor * load<F8x2>(rates + STATE_COLS * i + 2 * LANES * j));
                const F8x2 now = fma(set1<F8x2>(b[i]), added.at[j], factor * load<F8x2>(at));
                store(at, now);
                out.at[j] = fma(set1<F8x2>(c[i]), now, out.at[j]);
            }
        if (a.skip) {
            const TileRow skip = of_columns(a.skip, a.dim, column, width);
            for (int j = 0; j < PAIRS; ++j) out.at[j] = fma(skip.at[j], x.at[j], out.at[j]);
        }
        store_row(a.out.row(token) + column, out, width);
        save_tile(a.states, row, token, next, group, tile);
    }
}

void state_scan(const ScanArgs &a, const RowSpan &row, int group, int tile) {
    if (a.rates)
        scan_tile<true>(a, row, group, tile);
    else
        scan_tile<false>(a, row, group, tile);
}
