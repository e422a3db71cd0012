// What is done to each number by itself. Included by kernels.cpp, inside a variant's namespace.

inline F8 sigmoid(F8 x) { return set1(1.0f) / (set1(1.0f) + exponential(set1(0.0f) - x)); }

inline F8 silu(F8 x) { return x / (set1(1.0f) + exponential(set1(0.0f) - x)); }

inline F8 tangent(F8 x) {  // hyperbolic: 1 - 2 / (e ** 2x + 1)
    return set1(1.0f) - set1(2.0f) / (exponential(x + x) + set1(1.0f));
}

// x times the normal distribution's share below x. The share's tail, erfc, by Abramowitz and Stegun 7.1.26: 1.5e-7.
inline F8 gelu(F8 x) {
    const F8 z = magnitude(x) * set1(0.70710678f), one = set1(1.0f);
    const F8 t = one / fma(z, set1(0.3275911f), one);
    F8 p = set1(1.061405429f);
    p = fma(p, t, set1(-1.453152027f));
    p = fma(p, t, set1(1.421413741f));
    p = fma(p, t, set1(-0.284496736f));
    p = fma(p, t, set1(0.254829592f));
    const F8 tail = set1(0.5f) * p * t * exponential(set1(0.0f) - z * z);
    return max(x, set1(0.0f)) - magnitude(x) * tail;  // x below 0: x * tail; above: x * (1 - tail)
}

inline F8 gelu_tanh(F8 x) {
    const F8 inner = set1(0.79788456f) * fma(set1(0.044715f) * x * x, x, x);
    return x * sigmoid(inner + inner);  // (1 + tanh(u)) / 2 is sigmoid(2u)
}

inline F8 activate(MapKind kind, F8 x) {
    switch (kind) {
        case MapKind::SILU: return silu(x);
        case MapKind::GELU: return gelu(x);
        case MapKind::GELU_TANH: return gelu_tanh(x);
        case MapKind::RELU: return max(x, set1(0.0f));
        case MapKind::RELU2: return max(x, set1(0.0f)) * max(x, set1(0.0f));
        case MapKind::SIGMOID: return sigmoid(x);
        case MapKind::TANH: return tangent(x);
        default: return x;
    }
}

inline F8 mapped(const MapArgs &m, F8 x, F8 y) {
    const F8 a = set1(m.a), nothing = set1(0.0f);
    switch (m.kind) {
        case MapKind::ADD: return x + y;
        case MapKind::MULTIPLY:
        case MapKind::SCALE_BY: return x * y;
        case MapKind::SCALE: return x * a;
        case MapKind::SOFTCAP: return a * tangent(x / a);
        case MapKind::CLAMP: return min(max(x, nothing - a), a);
        case MapKind::XIELU: {
            const F8 above = max(x, nothing), below = min(x, nothing);
            const F8 curve = exponential(min(below, set1(m.d))) - set1(1.0f) - below;
            return fma(set1(m.c), x, fma(a * above, above, set1(m.b) * curve));
        }
        default: return activate(m.kind, x);
    }
}

void map(const MapArgs &m, int begin, int end) {
    const bool is_pair = m.y.data != nullptr;
    float part[BLOCK];
    for (int token = begin; token < end; ++token) {
        const float *x = m.x.row(token), *y = is_pair ? m.y.row(token) : m.weight;
        for (int at = 0; at < m.dim; at += BLOCK) {
            const int width = m.dim - at < BLOCK ? m.dim - at : BLOCK;
            int k = 0;
            for (; k + LANES <= width; k += LANES)
                store(part + k, mapped(m, load(x + at + k), y ? load(y + at + k) : set1(0.0f)));
            if (k < width) {
                float last[2][LANES] = {}, out[LANES];
                std::memcpy(last[0], x + at + k, sizeof(float) * (width - k));
                if (y) std::memcpy(last[1], y + at + k, sizeof(float) * (width - k));
                store(out, mapped(m, load(last[0]), load(last[1])));
                std::memcpy(part + k, out, sizeof(float) * (width - k));
            }
            if (m.out.rows.data) std::memcpy(m.out.rows.row(token) + at, part, sizeof(float) * width);
            if (m.out.quants.values) quantize_block(part, m.out.quants, token, at / BLOCK);
        }
    }
}
