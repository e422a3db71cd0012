// Token-wise kernels: embedding, norms, rope, quantization, the write to the KV cache. Included by
// kernels.cpp, inside a variant's namespace.

#if !QUIRE_AVX512
// 32 numbers times a factor as bytes, and the sums of both halves. Clamped because the factor may round up, or overflow
// where the numbers are subnormal.
inline void round_block(const F8 *part, F8 factor, int8_t *values, int32_t *halves) {
    const F8 low = set1(-127.0f), high = set1(127.0f);
    F8 rounded[BLOCK / LANES];
    for (int i = 0; i < BLOCK / LANES; ++i) rounded[i] = min(max(nearest(part[i] * factor), low), high);
    for (int i = 0; i < 2; ++i) halves[i] = store_bytes(values + 2 * LANES * i, rounded[2 * i], rounded[2 * i + 1]);
}
#endif

// 32 numbers of a token: value = round(x * 127 / largest magnitude), never -128.
inline void quantize_block(const float *x, const QuantRows &out, int token, int block) {
    constexpr int PARTS = BLOCK / WIDEST;
    Widest part[PARTS], most = set1<Widest>(0.0f);
    for (int i = 0; i < PARTS; ++i) part[i] = load<Widest>(x + WIDEST * i), most = max(most, magnitude(part[i]));
    const float extreme = largest(most), scale = extreme / 127.0f;
    int32_t halves[2];
    round_block(part, set1<Widest>(extreme > 0.0f ? 127.0f / extreme : 0.0f), out.row(token) + BLOCK * block, halves);
    out.scale(token)[block] = scale;
    out.sum(token)[block] = scale * static_cast<float>(halves[0] + halves[1]);
    for (int i = 0; i < 2; ++i) out.half(token)[2 * block + i] = static_cast<int16_t>(halves[i]);
}

inline void deliver(const float *x, int dim, const Output &out, int token) {
    if (out.rows.data && out.rows.row(token) != x) std::memcpy(out.rows.row(token), x, sizeof(float) * dim);
    if (out.quants.values)
        for (int b = 0; b < out.quants.blocks; ++b) quantize_block(x + BLOCK * b, out.quants, token, b);
}

// The largest of some numbers; NaN if one of them is NaN or infinite.
float largest_of(const float *x, int count) {
    float most = x[0], doubt = 0.0f;
    int k = 0;
    if (count >= WIDEST) {
        Widest all = load<Widest>(x), doubts = set1<Widest>(0.0f);
        for (; k + WIDEST <= count; k += WIDEST) {
            const Widest part = load<Widest>(x + k);
            all = max(all, part), doubts = fma(part, set1<Widest>(0.0f), doubts);
        }
        most = largest(all), doubt = sum(doubts);
    }
    for (; k < count; ++k) most = x[k] > most ? x[k] : most, doubt += 0.0f * x[k];
    return most + doubt;
}

// --- embedding: one row of a panel

inline float float_at(const uint8_t *panel, Format format, int at) {
    if (format == Format::F32) return reinterpret_cast<const float *>(panel)[at];
    const uint16_t half = reinterpret_cast<const uint16_t *>(panel)[at];
    return format == Format::F16 ? half::from_f16(half) : half::from_bf16(half);
}

// Numbers are computed in the order of quire.quant, so that they are bit-equal.
inline void block_row(const BlockFormat &f, const uint8_t *head, const uint8_t *quants, int lane, int b, float *to) {
    const uint16_t *floats = reinterpret_cast<const uint16_t *>(head);
    const float common = f.is_bf16 ? half::from_bf16(floats[lane]) : half::from_f16(floats[lane]);
    const float lowest = f.has_minimum ? half::from_f16(floats[LANES + lane]) : 0.0f;
    const int8_t *parts = reinterpret_cast<const int8_t *>(head) + floats_step(f) + parts_step(f) * b + lane;
    for (int k = 0; k < BLOCK; ++k) {
        const int part = k * f.parts / BLOCK, quant = quant_at(f, quants, k / 4, 4 * lane + k % 4);
        const float scale = f.is_super() ? common * parts[LANES * part] : common;
        to[k] = scale * static_cast<float>(level_of(f, quant) - f.zero);
        if (f.has_minimum) to[k] += f.is_super() ? lowest * parts[LANES * (f.parts + part)] : lowest;
    }
}

inline void quant_row(const Matrix &m, const uint8_t *panel, int lane, float *to) {
    const BlockFormat f = block_format(m.format);
    const uint8_t *quants = panel + heads_size(f, m.num_blocks());
    for (int b = 0; b < m.num_blocks(); ++b, quants += quants_step(f), to += BLOCK)
        block_row(f, panel + head_step(f) * (b / f.blocks), quants, lane, b % f.blocks, to);
}

void embed(const Matrix &table, const int32_t *ids, Rows out, int begin, int end) {
    for (int token = begin; token < end; ++token) {
        const uint8_t *panel = table.panel(ids[token] / LANES);
        const int lane = ids[token] % LANES;
        if (is_quantized(table.format)) {
            quant_row(table, panel, lane, out.row(token));
        } else {
            float *row = out.row(token);
            for (int k = 0; k < table.cols; ++k) row[k] = float_at(panel, table.format, LANES * k + lane);
        }
    }
}

// --- norms

struct Statistics {
    float mean, factor;  // (x - mean) * factor is normed
};

inline Statistics statistics(const float *x, int dim, float eps, bool is_layer) {
    int k = 0;
    float mean = 0.0f;
    if (is_layer) {
        F8 sums = set1(0.0f);
        for (; k + LANES <= dim; k += LANES) sums = sums + load(x + k);
        mean = sum(sums);
        for (; k < dim; ++k) mean += x[k];
        mean /= static_cast<float>(dim);
    }
    F8 squares = set1(0.0f);
    for (k = 0; k + LANES <= dim; k += LANES) {
        const F8 part = load(x + k) - set1(mean);
        squares = fma(part, part, squares);
    }
    float total = sum(squares);
    for (; k < dim; ++k) total += (x[k] - mean) * (x[k] - mean);
    return {mean, 1.0f / std::sqrt(total / static_cast<float>(dim) + eps)};
}

// Numbers k..k + (the lanes of W) - 1 of a group.
template <class W>
inline void norm_lanes(const float *x, const Statistics &s, const float *weight, const float *bias, int k, float *out) {
    W y = (load<W>(x + k) - set1<W>(s.mean)) * set1<W>(s.factor);
    if (weight) y = y * load<W>(weight + k);
    store(out + k, bias ? y + load<W>(bias + k) : y);
}

// `count` numbers of a group. The mean of an RMS norm is 0. Stores are as wide as the loads of quantize_block: a load
// that needs two of the latest stores waits until they are in the cache.
inline void norm_part(const float *x, const Statistics &s, const float *weight, const float *bias, int count,
                      float *out) {
    int k = 0;
    for (; k + WIDEST <= count; k += WIDEST) norm_lanes<Widest>(x, s, weight, bias, k, out);
    for (; k + LANES <= count; k += LANES) norm_lanes<F8>(x, s, weight, bias, k, out);
    for (; k < count; ++k) {
        float y = (x[k] - s.mean) * s.factor;
        if (weight) y *= weight[k];
        out[k] = bias ? y + bias[k] : y;
    }
}

void norm(const NormArgs &a, int begin, int end) {
    float part[BLOCK];
    const bool is_direct = !a.out.rows.data;  // straight into blocks: a whole row, and a whole number of blocks
    for (int token = begin; token < end; ++token) {
        const float *x = a.x.row(a.at ? a.at[token] : token);
        for (int at = 0; at < a.dim; at += a.group) {
            const Statistics s = statistics(x + at, a.group, a.eps, a.is_layer);
            const int from = a.is_per_group ? 0 : at;
            const float *weight = a.weight ? a.weight + from : nullptr, *bias = a.bias ? a.bias + from : nullptr;
            if (!is_direct) {
                norm_part(x + at, s, weight, bias, a.group, a.out.rows.row(token) + at);
                continue;
            }
            for (int k = 0; k < a.group; k += BLOCK) {
                norm_part(x + at + k, s, weight ? weight + k : nullptr, bias ? bias + k : nullptr, BLOCK, part);
                quantize_block(part, a.out.quants, token, (at + k) / BLOCK);
            }
        }
        if (!is_direct) deliver(a.out.rows.row(token), a.dim, a.out, token);
    }
}

void gather(const GatherArgs &a, int begin, int end) {
    for (int token = begin; token < end; ++token)
        deliver(a.x.row(a.at ? a.at[token] : token), a.dim, a.out, token);
}

// --- positions

// STEP is a constant because the compiler vectorises the loop only then.
template <int STEP>
inline void rotate_head(float *x, const float *cos, const float *sin, int pairs, int apart) {
    for (int i = 0; i < pairs; ++i) {
        const float first = x[i * STEP], second = x[i * STEP + apart];
        x[i * STEP] = first * cos[i] - second * sin[i];
        x[i * STEP + apart] = second * cos[i] + first * sin[i];
    }
}

void rope(const RopeArgs &a, int begin, int end) {
    for (int token = begin; token < end; ++token) {
        const size_t angles = static_cast<size_t>(token) * a.pairs;
        const float *cos = a.cos + angles, *sin = a.sin + angles;
        for (int head = 0; head < a.num_heads; ++head) {
            float *x = a.x.row(token) + head * a.head_dim;
            if (a.interleaved)
                rotate_head<2>(x, cos, sin, a.pairs, 1);
            else
                rotate_head<1>(x, cos, sin, a.pairs, a.pairs);
        }
    }
}

// --- the KV cache

// Stores the numbers of one head of a token, `step` apart; eight at a time if possible.
inline void put_halves(bool is_bf16, const float *numbers, int dim, uint16_t *to, int step) {
    int d = 0;
    for (; d + LANES <= dim && !is_bf16; d += LANES) {
        uint16_t part[LANES];
        store_f16(part, load(numbers + d));
        for (int i = 0; i < LANES; ++i) to[(d + i) * step] = part[i];
    }
    for (; d < dim; ++d) to[d * step] = is_bf16 ? half::to_bf16(numbers[d]) : half::to_f16(numbers[d]);
}

// The same as blocks of 32 with a scale each; scales are `scale_step` apart.
inline void put_blocks(const float *numbers, int dim, int8_t *to, int step, uint16_t *scales, int scale_step) {
    for (int b = 0; b < dim / BLOCK; ++b) {
        int8_t part[BLOCK];
        float scale, sum;
        int16_t halves[2];
        quantize_block(numbers + BLOCK * b, {part, &scale, &sum, halves, 1}, 0, 0);
        for (int i = 0; i < BLOCK; ++i) to[(BLOCK * b + i) * step] = part[i];
        scales[b * scale_step] = half::to_f16(scale);
    }
}

// The same in pairs: neighbouring dimensions of a key together, neighbouring values of a dimension together.
inline void put_pairs(const KvPlane &c, const float *numbers, uint16_t *tile, int lane, bool is_key) {
    uint16_t *to = is_key ? tile + 2 * lane : tile + (lane / 2 * c.padded_dim() * 2 + lane % 2);
    for (int d = 0; d < c.dim; ++d) to[is_key ? d / 2 * 2 * TILE + d % 2 : 2 * d] = half::to_bf16(numbers[d]);
}

// Stores one head of one token in its lane of the tile at `place`.
inline void put(const KvPlane &c, uint8_t *place, int lane, const float *numbers, bool is_key) {
    const size_t first = is_key ? lane : static_cast<size_t>(lane) * c.padded_dim();
    const int step = is_key ? TILE : 1;
    if (c.format == KvFormat::F32) {
        float *to = reinterpret_cast<float *>(place) + first;
        for (int d = 0; d < c.dim; ++d) to[d * step] = numbers[d];
    } else if (c.format == KvFormat::Q8) {
        uint16_t *scales = c.scales_of(place) + (is_key ? lane : lane * c.scales());
        put_blocks(numbers, c.dim, reinterpret_cast<int8_t *>(place) + first, step, scales, step);
    } else if (c.format == KvFormat::BF16_PAIRS) {
        put_pairs(c, numbers, reinterpret_cast<uint16_t *>(place), lane, is_key);
    } else {
        put_halves(c.format == KvFormat::BF16, numbers, c.dim, reinterpret_cast<uint16_t *>(place) + first, step);
    }
}

// Stores some columns of a row in the layout of values, from `first` on.
inline void put_columns(const KvPlane &c, uint8_t *place, int lane, const float *numbers, int first, int count) {
    const size_t at = static_cast<size_t>(lane) * c.padded_dim() + first;
    if (c.format == KvFormat::F32)
        std::memcpy(reinterpret_cast<float *>(place) + at, numbers, sizeof(float) * count);
    else if (c.format == KvFormat::Q8)
        put_blocks(numbers, count, reinterpret_cast<int8_t *>(place) + at, 1,
                   c.scales_of(place) + lane * c.scales() + first / BLOCK, 1);
    else
        put_halves(c.format == KvFormat::BF16, numbers, count, reinterpret_cast<uint16_t *>(place) + at, 1);
}

// In latent attention k is the latent, and v the rotated part of the key.
void write_kv(const KvCache &c, const int32_t *slots, Rows k, Rows v, int begin, int end) {
    for (int token = begin; token < end && c.is_latent(); ++token) {
        const int offset = slots[token] % c.block_tokens, lane = offset % TILE;
        uint8_t *place = c.values.tile_at(slots[token] / c.block_tokens, 0, offset / TILE);
        put_columns(c.values, place, lane, k.row(token), 0, c.latent_dim);
        put_columns(c.values, place, lane, v.row(token), c.latent_dim, c.values.dim - c.latent_dim);
    }
    if (c.is_latent()) return;
    for (int token = begin; token < end; ++token) {
        const int block = slots[token] / c.block_tokens, offset = slots[token] % c.block_tokens;
        for (int head = 0; head < c.num_heads(); ++head) {
            const int tile = offset / TILE, lane = offset % TILE;
            put(c.keys, c.keys.tile_at(block, head, tile), lane, k.row(token) + head * c.keys.dim, true);
            put(c.values, c.values.tile_at(block, head, tile), lane, v.row(token) + head * c.values.dim, false);
        }
    }
}
