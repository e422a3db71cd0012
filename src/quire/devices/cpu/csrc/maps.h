// What is done to each number by itself. Included by kernels.cpp, inside a variant's namespace.

template <class W>
inline W sigmoid(W x) { return set1<W>(1.0f) / (set1<W>(1.0f) + exponential(set1<W>(0.0f) - x)); }

template <class W>
inline W silu(W x) { return x / (set1<W>(1.0f) + exponential(set1<W>(0.0f) - x)); }

template <class W>
inline W tangent(W x) {  // hyperbolic: 1 - 2 / (e ** 2x + 1)
    return set1<W>(1.0f) - set1<W>(2.0f) / (exponential(x + x) + set1<W>(1.0f));
}

// x times the normal distribution's share below x. The share's tail, erfc, by Abramowitz and Stegun 7.1.26: 1.5e-7.
template <class W>
inline W gelu(W x) {
    const W z = magnitude(x) * set1<W>(0.70710678f), one = set1<W>(1.0f);
    const W t = one / fma(z, set1<W>(0.3275911f), one);
    W p = set1<W>(1.061405429f);
    p = fma(p, t, set1<W>(-1.453152027f));
    p = fma(p, t, set1<W>(1.421413741f));
    p = fma(p, t, set1<W>(-0.284496736f));
    p = fma(p, t, set1<W>(0.254829592f));
    const W tail = set1<W>(0.5f) * p * t * exponential(set1<W>(0.0f) - z * z);
    return max(x, set1<W>(0.0f)) - magnitude(x) * tail;  // x below 0: x * tail; above: x * (1 - tail)
}

template <class W>
inline W gelu_tanh(W x) {
    const W inner = set1<W>(0.79788456f) * fma(set1<W>(0.044715f) * x * x, x, x);
    return x * sigmoid(inner + inner);  // (1 + tanh(u)) / 2 is sigmoid(2u)
}

template <MapKind KIND, class W>
inline W activate(W x) {
    switch (KIND) {
        case MapKind::SILU: return silu(x);
        case MapKind::GELU: return gelu(x);
        case MapKind::GELU_TANH: return gelu_tanh(x);
        case MapKind::RELU: return max(x, set1<W>(0.0f));
        case MapKind::RELU2: return max(x, set1<W>(0.0f)) * max(x, set1<W>(0.0f));
        case MapKind::SIGMOID: return sigmoid(x);
        case MapKind::TANH: return tangent(x);
        default: return x;
    }
}

template <MapKind KIND>
inline F8 mapped(const MapArgs &m, F8 x, F8 y) {
    const F8 a = set1(m.a), nothing = set1(0.0f);
    switch (KIND) {
        case MapKind::ADD: return x + y;
        case MapKind::MULTIPLY:
        case MapKind::SCALE_BY: return x * y;
        case MapKind::SCALE:
        case MapKind::SCALE_ROWS: return x * a;
        case MapKind::SOFTCAP: return a * tangent(x / a);
        case MapKind::CLAMP: return min(max(x, nothing - a), a);
        case MapKind::XIELU: {
            const F8 above = max(x, nothing), below = min(x, nothing);
            const F8 curve = exponential(min(below, set1(m.d))) - set1(1.0f) - below;
            return fma(set1(m.c), x, fma(a * above, above, set1(m.b) * curve));
        }
        default: return activate<KIND>(x);
    }
}

// `count` numbers; `out` may be x or y.
template <MapKind KIND>
inline void map_part(const MapArgs &m, const float *x, const float *y, int count, float *out) {
    int k = 0;
    for (; k + LANES <= count; k += LANES)
        store(out + k, mapped<KIND>(m, load(x + k), y ? load(y + k) : set1(0.0f)));
    if (k < count) {
        float last[2][LANES] = {}, part[LANES];
        std::memcpy(last[0], x + k, sizeof(float) * (count - k));
        if (y) std::memcpy(last[1], y + k, sizeof(float) * (count - k));
        store(part, mapped<KIND>(m, load(last[0]), load(last[1])));
        std::memcpy(out + k, part, sizeof(float) * (count - k));
    }
}

template <MapKind KIND>
void map_tokens(MapArgs m, int begin, int end) {
    float part[BLOCK];
    for (int token = begin; token < end; ++token) {
        const float *x = m.x.row(token), *y = m.y.data ? m.y.row(token) : m.weight;
        if (KIND == MapKind::SCALE_ROWS) m.a = y[0], y = nullptr;
        if (m.out.rows.data) {
            map_part<KIND>(m, x, y, m.dim, m.out.rows.row(token));
            deliver(m.out.rows.row(token), m.dim, m.out, token);
            continue;
        }
        for (int at = 0; at < m.dim; at += BLOCK) {  // only blocks are written, of which there are whole ones
            map_part<KIND>(m, x + at, y ? y + at : nullptr, BLOCK, part);
            quantize_block(part, m.out.quants, token, at / BLOCK);
        }
    }
}

// The kind is a constant of the loops, which are a third slower where it is looked up for every eight numbers.
void map(const MapArgs &m, int begin, int end) {
    switch (m.kind) {
        case MapKind::SILU: return map_tokens<MapKind::SILU>(m, begin, end);
        case MapKind::GELU: return map_tokens<MapKind::GELU>(m, begin, end);
        case MapKind::GELU_TANH: return map_tokens<MapKind::GELU_TANH>(m, begin, end);
        case MapKind::RELU: return map_tokens<MapKind::RELU>(m, begin, end);
        case MapKind::RELU2: return map_tokens<MapKind::RELU2>(m, begin, end);
        case MapKind::SIGMOID: return map_tokens<MapKind::SIGMOID>(m, begin, end);
        case MapKind::TANH: return map_tokens<MapKind::TANH>(m, begin, end);
        case MapKind::XIELU: return map_tokens<MapKind::XIELU>(m, begin, end);
        case MapKind::SCALE: return map_tokens<MapKind::SCALE>(m, begin, end);
        case MapKind::SOFTCAP: return map_tokens<MapKind::SOFTCAP>(m, begin, end);
        case MapKind::CLAMP: return map_tokens<MapKind::CLAMP>(m, begin, end);
        case MapKind::ADD: return map_tokens<MapKind::ADD>(m, begin, end);
        case MapKind::MULTIPLY: return map_tokens<MapKind::MULTIPLY>(m, begin, end);
        case MapKind::SCALE_BY: return map_tokens<MapKind::SCALE_BY>(m, begin, end);
        case MapKind::SCALE_ROWS: return map_tokens<MapKind::SCALE_ROWS>(m, begin, end);
    }
}
