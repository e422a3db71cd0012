// Compares every kernel of every variant that this CPU runs with the portable one on random numbers, and with itself for
// another split of work. CMake builds it with -DQUIRE_COMPARE_VARIANTS=ON, for this architecture or another. It prints a
// line per comparison, and exits with 1 if any fails. See test_variants.py.
//
// Kernels without fused products must be bit-equal; the others may round sums differently, by far less than the rounding
// of the numbers; attention in pairs of bf16 rounds its operands too. For another split of work, every kernel must be
// bit-equal to itself, and so must products of variants that round alike.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../../../src/quire/devices/cpu/csrc/features.h"
#include "../../../src/quire/devices/cpu/csrc/half.h"

namespace quire {
namespace {

std::mt19937 random_bits(1);

float random_number(float low = -1.0f, float high = 1.0f) {
    return std::uniform_real_distribution<float>(low, high)(random_bits);
}

std::vector<float> numbers(size_t count) {
    std::vector<float> out(count);
    for (float &x : out) x = random_number();
    return out;
}

// --- operands

struct Weights {
    std::vector<uint8_t> bytes;
    Matrix matrix;
};

// Any bytes are valid quants and integer scales; floats must not be NaN.
void fill(const Matrix &m, uint8_t *panel) {
    for (size_t i = 0; i < m.panel_bytes; ++i) panel[i] = static_cast<uint8_t>(random_bits());
    uint16_t *halves = reinterpret_cast<uint16_t *>(panel);
    if (is_quantized(m.format)) {
        const BlockFormat f = block_format(m.format);
        for (int b = 0; b < m.num_blocks(); b += f.blocks, halves += head_step(f) / 2)
            for (int i = 0; i < floats_step(f) / 2; ++i) {
                const float x = random_number(-0.02f, 0.02f);
                halves[i] = f.is_bf16 ? half::to_bf16(x) : half::to_f16(x);
            }
    } else if (m.format == Format::F32) {
        for (int i = 0; i < LANES * m.cols; ++i) reinterpret_cast<float *>(panel)[i] = random_number();
    } else {
        for (int i = 0; i < LANES * m.cols; ++i)
            halves[i] = m.format == Format::BF16 ? half::to_bf16(random_number()) : half::to_f16(random_number());
    }
}

Weights weights(Format format, int rows, int cols) {
    Weights out{{}, {format, rows, cols, nullptr, panel_size(format, cols)}};
    out.bytes.resize(out.matrix.num_bytes());
    out.matrix.data = out.bytes.data();
    for (int i = 0; i < out.matrix.num_panels(); ++i) fill(out.matrix, out.bytes.data() + out.matrix.panel_bytes * i);
    return out;
}

// float32 rows and their blocks.
struct Tokens {
    int count, dim;
    std::vector<float> x, scales, sums;
    std::vector<int8_t> values;
    std::vector<int16_t> halves;

    Tokens(int count_, int dim_) : count(count_), dim(dim_), x(static_cast<size_t>(count_) * dim_) {
        const size_t blocks = static_cast<size_t>(count) * (dim / BLOCK);
        scales.resize(blocks), sums.resize(blocks), values.resize(blocks * BLOCK), halves.resize(blocks * 2);
    }

    Rows rows() { return {x.data(), static_cast<size_t>(dim)}; }
    QuantRows quants() { return {values.data(), scales.data(), sums.data(), halves.data(), dim / BLOCK}; }
    Output both() { return {rows(), quants()}; }
};

// Tokens in bf16 if weights are: a variant may round them.
Tokens random_tokens(const Kernels &kernels, int count, int dim, bool in_bf16 = false) {
    Tokens t(count, dim);
    t.x = numbers(t.x.size());
    for (float &x : t.x) x = in_bf16 ? half::from_bf16(half::to_bf16(x)) : x;
    kernels.gather({t.rows(), nullptr, dim, {Rows{}, t.quants()}}, 0, count);
    return t;
}

// --- comparison

struct Found {
    double worst = 0.0;  // difference, relative to the largest number
    bool same = true;    // to the bit

    void floats(const std::vector<float> &a, const std::vector<float> &b) {
        double most = 0.0, apart = 0.0;
        for (size_t i = 0; i < a.size(); ++i) {
            most = std::fmax(most, std::fabs(a[i]));
            const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
            apart = difference <= apart ? apart : difference;  // a NaN is kept
        }
        const double share = most > 0.0 ? apart / most : apart;
        worst = share <= worst ? worst : share;
        same = same && std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0;
    }

    template <class Byte>
    void bytes(const std::vector<Byte> &a, const std::vector<Byte> &b) {
        same = same && a == b;
    }

    // Blocks of numbers that may differ by their last bit: then a value may be rounded to its neighbour.
    void blocks(const Tokens &a, const Tokens &b) {
        std::vector<float> x(a.values.size()), y(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
            const bool neighbour = std::abs(a.values[i] - b.values[i]) == 1;
            x[i] = a.scales[i / BLOCK] * static_cast<float>(a.values[i]);
            y[i] = neighbour ? x[i] : b.scales[i / BLOCK] * static_cast<float>(b.values[i]);
        }
        floats(x, y);
        same = same && a.values == b.values && a.scales == b.scales && a.sums == b.sums && a.halves == b.halves;
    }

    void tokens(const Tokens &a, const Tokens &b) { floats(a.x, b.x), blocks(a, b); }
};

constexpr double CLOSE = 1e-5, CLOSE_IN_BF16 = 2e-2;
int num_failures = 0;

void report(const Kernels &kernels, const std::string &what, const Found &found, bool exact, double close = CLOSE) {
    const bool ok = exact ? found.same : found.worst <= close;
    num_failures += !ok;
    std::printf("%-11s %-44s %s %.1e%s\n", kernels.name, what.c_str(), found.same ? "same" : "    ", found.worst,
                ok ? "" : "  FAILED");
}

const Kernels *portable = nullptr;

// One kernel's work, done by a table of kernels at once or split differently, into the tokens that it returns.
using Work = std::function<Tokens(const Kernels &, bool cut)>;

void compare(const Kernels &kernels, const std::string &what, const Work &work, bool exact, double close = CLOSE) {
    const Tokens whole = work(kernels, false);
    Found against_portable, against_itself;
    against_portable.tokens(work(*portable, false), whole);
    against_itself.tokens(work(kernels, true), whole);
    report(kernels, what, against_portable, exact, close);
    if (!against_itself.same) report(kernels, what + ", cut", against_itself, true);
}

// --- products

const char *const FORMAT_NAMES[] = {"f32",  "f16",  "bf16", "q8_0", "q4_0", "q4_1",   "q5_0",   "q5_1",
                                    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};
static_assert(NUM_FORMATS == sizeof FORMAT_NAMES / sizeof *FORMAT_NAMES, "a name for each format");

// Against the narrowest variant that rounds this format's products alike: a program may use either.
void compare_alike(const Kernels &kernels, Format format, const std::string &what, const Work &work) {
    const Kernels *alike = &kernels;
    for (const Kernels *other : usable_kernels())
        if (std::strcmp(other->rounding(format), kernels.rounding(format)) == 0) alike = other;
    if (alike == &kernels) return;
    Found found;
    found.tokens(work(*alike, false), work(kernels, false));
    report(kernels, what + " as " + alike->name, found, true);
}

// 37 tokens are some whole tiles and a rest, 71 more than are multiplied at once.
void compare_products(const Kernels &kernels, Format format, int TOKENS) {
    constexpr int ROWS = 77;  // odd numbers of panels, of a panel's rows, of tokens, and of columns
    const int COLS = is_quantized(format) ? 768 : 1031;
    const Weights w = weights(format, ROWS, COLS), up = weights(format, ROWS, COLS);
    const std::string name = FORMAT_NAMES[static_cast<int>(format)] + (" of " + std::to_string(TOKENS));
    Tokens x = random_tokens(*portable, TOKENS, COLS, format == Format::BF16);
    Tokens residual = random_tokens(*portable, TOKENS, 96);
    const std::vector<float> bias = numbers(96), up_bias = numbers(96);
    const int panels = w.matrix.num_panels();
    for (bool plain : {true, false}) {
        const Work product = [&](const Kernels &k, bool cut) {
            Tokens out(TOKENS, 96);
            ProductArgs args{w.matrix, plain ? nullptr : bias.data(), x.rows(), x.quants(), out.rows(), Rows{}};
            if (!plain) args.residual = residual.rows();
            if (!cut) return k.product(args, 0, panels, 0, TOKENS), out;
            for (int t = 0; t < TOKENS; t += 1 + t % 3)  // one, two, and then three tokens at a time
                for (int p = 0; p < panels; ++p) k.product(args, p, p + 1, t, std::min(t + 1 + t % 3, TOKENS));
            return out;
        };
        compare(kernels, "product " + name + (plain ? "" : " + bias + residual"), product, false);
        compare_alike(kernels, format, "product " + name, product);
        for (bool gated : {true, false}) {
            const Work gate = [&](const Kernels &k, bool cut) {
                Tokens out(TOKENS, 96);
                GateArgs args{w.matrix, up.matrix, MapKind::SILU, nullptr, nullptr, x.rows(), x.quants(), out.both()};
                if (!gated) args.up.data = nullptr;
                if (!plain) args.gate_bias = bias.data(), args.up_bias = up_bias.data();
                for (int group = 0; group < 3; ++group)
                    for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS) k.gate(args, group, t, cut ? t + 1 : TOKENS);
                return out;
            };
            const std::string what = (gated ? "gate " : "activated product ") + name;
            compare(kernels, what + (plain ? "" : " + biases"), gate, false);
            compare_alike(kernels, format, what, gate);
        }
    }
    const Work embed = [&](const Kernels &k, bool) {
        Tokens out(5, COLS);
        const int32_t ids[] = {0, 7, 76, 33, 8};
        return k.embed(w.matrix, ids, out.rows(), 0, 5), out;
    };
    compare(kernels, "embed " + name, embed, true);
}

// --- token-wise kernels

const char *const MAP_NAMES[] = {"silu",  "gelu",  "gelu_tanh", "relu",  "relu2", "sigmoid",  "tanh",
                                 "xielu", "scale", "softcap",   "clamp", "add",   "multiply", "scale_by",
                                 "scale_rows"};
constexpr int NUM_MAPS = sizeof MAP_NAMES / sizeof *MAP_NAMES;
static_assert(NUM_MAPS == static_cast<int>(MapKind::SCALE_ROWS) + 1, "a name for each map");

void compare_token_wise(const Kernels &kernels) {
    constexpr int TOKENS = 5, DIM = 96;
    Tokens x = random_tokens(*portable, TOKENS, DIM), y = random_tokens(*portable, TOKENS, DIM);
    const std::vector<float> weight = numbers(DIM), bias = numbers(DIM), cos = numbers(TOKENS * 16);
    const std::vector<float> sin = numbers(TOKENS * 16);
    const int32_t at[] = {3, 0, 4, 1, 1};
    const auto each = [&](const std::string &what, bool exact, auto body) {
        const Work work = [&](const Kernels &k, bool cut) {
            Tokens out(TOKENS, DIM);
            for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS) body(k, out, t, cut ? t + 1 : TOKENS);
            return out;
        };
        compare(kernels, what, work, exact);
    };
    for (bool is_layer : {false, true}) {
        const std::string name = is_layer ? "layer_norm" : "rms_norm";
        const float *added = is_layer ? bias.data() : nullptr;
        const auto norm = [&, is_layer, added](int dim, int group, bool is_per_group, Output out) {
            return NormArgs{x.rows(), at, weight.data(), added, dim, group, is_per_group, is_layer, 1e-5f, out};
        };
        each(name, false, [&](auto &k, Tokens &out, int a, int b) { k.norm(norm(DIM, DIM, true, out.both()), a, b); });
        each(name + " to blocks", false, [&](auto &k, Tokens &out, int a, int b) {
            k.norm(norm(DIM, DIM, true, {Rows{}, out.quants()}), a, b);
        });
        each(name + " of 93", false, [&](auto &k, Tokens &out, int a, int b) {
            k.norm(norm(93, 93, true, {out.rows(), QuantRows{}}), a, b);
        });
        for (bool is_per_group : {true, false})
            each(name + " of heads" + (is_per_group ? "" : ", a weight for each"), false,
                 [&](auto &k, Tokens &out, int a, int b) { k.norm(norm(DIM, 32, is_per_group, out.both()), a, b); });
    }
    each("norm without a weight", false, [&](auto &k, Tokens &out, int a, int b) {
        k.norm({x.rows(), nullptr, nullptr, nullptr, DIM, DIM, true, false, 1e-5f, out.both()}, a, b);
    });
    each("gather", true,
         [&](auto &k, Tokens &out, int a, int b) { k.gather({x.rows(), at, DIM, out.both()}, a, b); });
    Tokens extremes = x;  // nothing, subnormal numbers, and the largest ones
    const float above[] = {0.0f, 1e-40f, 3.4e38f}, below[] = {0.0f, -1e-40f, -1e37f};  // of each block
    for (int t = 0; t < TOKENS; ++t)
        for (int i = 0; i < DIM; ++i) extremes.rows().row(t)[i] = ((i + t) % 3 ? above : below)[i / BLOCK];
    each("gather of extremes", true,
         [&](auto &k, Tokens &out, int a, int b) { k.gather({extremes.rows(), nullptr, DIM, out.both()}, a, b); });
    for (int map = 0; map < NUM_MAPS; ++map)
        for (int dim : {DIM, 93}) {
            const MapKind kind = static_cast<MapKind>(map);
            const bool is_pair = kind == MapKind::ADD || kind == MapKind::MULTIPLY || kind == MapKind::SCALE_ROWS;
            const float *factors = kind == MapKind::SCALE_BY ? weight.data() : nullptr;
            each(std::string(MAP_NAMES[map]) + (dim == DIM ? "" : " of 93"), false,
                 [&](auto &k, Tokens &out, int a, int b) {
                     const Output to = dim == DIM ? out.both() : Output{out.rows(), QuantRows{}};
                     const Rows second = is_pair ? y.rows() : Rows{};
                     k.map({kind, x.rows(), second, factors, 0.7f, 0.3f, 0.5f, -1e-6f, dim, to}, a, b);
                 });
        }
    for (bool interleaved : {false, true})
        each(interleaved ? "rope interleaved" : "rope", true, [&](auto &k, Tokens &out, int a, int b) {
            for (int t = a; t < b; ++t) std::memcpy(out.rows().row(t), x.rows().row(t), sizeof(float) * DIM);
            k.rope({out.rows(), cos.data(), sin.data(), 16, 3, 32, interleaved}, a, b);
        });
}

// --- experts

// Rows that are read and written in another order, as those of one expert's tokens.
void compare_ordered(const Kernels &kernels, Format format) {
    constexpr int TOKENS = 21, DIM = 256, ROWS = 64;
    int32_t from[TOKENS], to[TOKENS];
    for (int i = 0; i < TOKENS; ++i) from[i] = (5 * i + 3) % 17, to[i] = (8 * i + 12) % TOKENS;
    const Weights w = weights(format, ROWS, DIM), up = weights(format, ROWS, DIM);
    const std::string name = FORMAT_NAMES[static_cast<int>(format)];
    Tokens x = random_tokens(*portable, TOKENS, DIM, format == Format::BF16);
    const std::vector<float> bias = numbers(ROWS), up_bias = numbers(ROWS);
    const RowOrder order{from, to};
    const Work product = [&](const Kernels &k, bool cut) {
        Tokens out(TOKENS, ROWS);
        const ProductArgs args{w.matrix, bias.data(), x.rows(), x.quants(), out.rows(), Rows{}, order};
        for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS)
            k.product(args, 0, w.matrix.num_panels(), t, cut ? t + 1 : TOKENS);
        return out;
    };
    compare(kernels, "product " + name + ", in another order", product, false);
    const Work gate = [&](const Kernels &k, bool cut) {
        Tokens out(TOKENS, ROWS);
        GateArgs args{w.matrix, up.matrix, MapKind::SILU, bias.data(), up_bias.data(), x.rows(), x.quants(), out.both()};
        args.order = order, args.limit = 20.0f, args.alpha = 1.702f, args.shift = 1.0f;
        for (int group = 0; group < ROWS / BLOCK; ++group)
            for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS) k.gate(args, group, t, cut ? t + 1 : TOKENS);
        return out;
    };
    compare(kernels, "gate " + name + ", in another order, bounded", gate, false);
}

// Logits are far enough apart for every variant to choose the same experts.
void compare_routes(const Kernels &kernels) {
    constexpr int TOKENS = 5, EXPERTS = 20, TOP = 6, GROUPS = 5;
    const std::vector<float> correction = numbers(EXPERTS), expert_scale = numbers(EXPERTS);
    std::vector<float> logits;
    for (int i = 0; i < TOKENS * EXPERTS; ++i) logits.push_back(0.2f * static_cast<float>(i * 7 % EXPERTS - EXPERTS / 2));
    const char *const names[] = {"softmax", "sigmoid", "sqrt_softplus", "none"};
    for (Scoring scoring : {Scoring::SOFTMAX, Scoring::SIGMOID, Scoring::SQRT_SOFTPLUS, Scoring::NONE})
        for (bool is_plain : {true, false}) {
            const Work route = [&](const Kernels &k, bool cut) {
                constexpr int WIDTH = 2 * BLOCK;  // weights, then chosen
                const int width = route_width(EXPERTS, GROUPS, 2);
                Tokens out(TOKENS, WIDTH);
                std::vector<float> work(static_cast<size_t>(TOKENS) * width);
                for (int t = 0; t < TOKENS; ++t) std::copy_n(&logits[t * EXPERTS], EXPERTS, &work[t * width]);
                RouteArgs args{};
                args.work = {work.data(), static_cast<size_t>(width)}, args.num_experts = EXPERTS, args.top = TOP;
                args.scoring = scoring, args.is_scored_after = args.is_renormalized = is_plain;
                args.num_groups = is_plain ? 1 : GROUPS, args.top_groups = is_plain ? 1 : 2, args.group_top = 2;
                args.factor = 2.5f, args.softcap = is_plain ? 3.0f : 0.0f;
                args.correction = is_plain ? nullptr : correction.data();
                args.expert_scale = is_plain ? nullptr : expert_scale.data();
                args.weights = out.rows(), args.chosen = {out.x.data() + BLOCK, WIDTH};
                for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS) k.route(args, t, cut ? t + 1 : TOKENS);
                return out;
            };
            const std::string what = std::string("route ") + names[static_cast<int>(scoring)];
            compare(kernels, what + (is_plain ? "" : ", groups and correction"), route, false);
        }
    Tokens answers = random_tokens(*portable, TOKENS * TOP, BLOCK), weights = random_tokens(*portable, TOKENS, BLOCK);
    for (int width : {BLOCK, 27}) {
        const Work combine = [&](const Kernels &k, bool cut) {
            Tokens out(TOKENS, BLOCK);
            for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS) {
                const Rows from{answers.rows().row(t * TOP), static_cast<size_t>(BLOCK)};
                k.combine({from, weights.rows(), TOP, width, out.rows()}, t, cut ? t + 1 : TOKENS);
            }
            return out;
        };
        compare(kernels, "combine " + std::to_string(width) + " columns", combine, true);
    }
}

// --- attention

constexpr int HEADS = 2, GROUP = 3, NUM_BLOCKS = 67, TABLE = 14, REACH = 5;

struct Shape {
    KvFormat format;
    int key_dim, value_dim, block_tokens, window, chunk;
};

KvCache cache_of(const Shape &s) {
    const int tiles = (s.block_tokens + TILE - 1) / TILE;
    return {{s.format, HEADS, s.key_dim, tiles, nullptr},
            {s.format, HEADS, s.value_dim, tiles, nullptr},
            s.window, s.chunk, NUM_BLOCKS, s.block_tokens, 0, 0};
}

struct Cache {
    std::vector<uint8_t> keys, values;
    KvCache cache;
};

// `slots` are written; elsewhere are numbers that must not be read.
Cache filled_cache(const Kernels &kernels, const Shape &shape, const std::vector<int32_t> &slots, Rows k, Rows v) {
    Cache out{{}, {}, cache_of(shape)};
    KvCache &c = out.cache;
    out.keys.resize(c.keys.block_bytes() * NUM_BLOCKS), out.values.resize(c.values.block_bytes() * NUM_BLOCKS);
    c.keys.data = out.keys.data(), c.values.data = out.values.data();
    std::vector<float> wild(static_cast<size_t>(HEADS) * std::max(shape.key_dim, shape.value_dim), 1e30f);
    for (int32_t slot = 0; slot < NUM_BLOCKS * c.block_tokens; ++slot)
        kernels.write_kv(c, &slot, {wild.data(), 0}, {wild.data(), 0}, 0, 1);
    kernels.write_kv(c, slots.data(), k, v, 0, static_cast<int>(slots.size()));
    return out;
}

// Three rows whose tables begin with the same stretch; the tokens of a row are neighbours.
struct Texts {
    std::vector<int32_t> tables, positions, slots, lengths;
    QueryTile tiles[3];
    int num_shared;

    explicit Texts(const KvCache &shape) : num_shared(shape.stretch_blocks()) {
        const int size = shape.block_tokens, shared = num_shared * size, tokens[] = {7, 1, 8};
        lengths = {shared + 3 * size + 5, shared + 5 * size + 1, shared + 2 * size};
        int next = 1, begin = 0;
        for (int row = 0; row < 3; ++row) {
            for (int i = 0; i < TABLE; ++i)
                tables.push_back(i < num_shared ? i : num_shared + next++ * 11 % (NUM_BLOCKS - num_shared));
            for (int i = row ? shared : 0; i < lengths[row]; ++i)
                slots.push_back(tables[row * TABLE + i / size] * size + i % size);
            for (int i = 0; i < tokens[row]; ++i) positions.push_back(lengths[row] - tokens[row] + i);
            tiles[row] = {row, begin, begin + tokens[row]};
            begin += tokens[row];
        }
    }
};

struct Extras {
    const char *name;
    float softcap;
    bool has_sinks, has_slopes, has_distances, is_bidirectional;
};

constexpr Extras PLAIN{"", 0.0f, false, false, false, false};
constexpr Extras KINDS[] = {
    {", softcap", 3.0f, false, false, false, false}, {", sinks", 0.0f, true, false, false, false},
    {", slopes", 0.0f, false, true, false, false},   {", distances", 0.0f, false, false, true, false},
    {", bidirectional", 0.0f, false, false, false, true}, {", everything", 2.0f, true, true, true, true},
};

void compare_attention(const Kernels &kernels, const std::string &name, const Shape &shape, const Extras &extras) {
    const int width = HEADS * GROUP * shape.value_dim, padded = (width + BLOCK - 1) / BLOCK * BLOCK;
    const int q_width = HEADS * GROUP * shape.key_dim, q_padded = (q_width + BLOCK - 1) / BLOCK * BLOCK;
    const Texts texts(cache_of(shape));
    const int num_tokens = static_cast<int>(texts.positions.size());
    const size_t written = texts.slots.size(), k_width = HEADS * shape.key_dim, v_width = HEADS * shape.value_dim;
    std::vector<float> k = numbers(written * k_width), v = numbers(written * v_width);
    const Rows k_rows{k.data(), k_width}, v_rows{v.data(), v_width};
    const Cache expected = filled_cache(*portable, shape, texts.slots, k_rows, v_rows);
    const Cache actual = filled_cache(kernels, shape, texts.slots, k_rows, v_rows);
    Found same_cache;
    same_cache.bytes(expected.keys, actual.keys), same_cache.bytes(expected.values, actual.values);
    report(kernels, "write_kv " + name, same_cache, true);
    Tokens q(num_tokens, q_padded);
    q.x = numbers(q.x.size());
    for (float &x : q.x) x *= 4.0f;
    const std::vector<float> sinks = numbers(HEADS * GROUP), slopes = numbers(HEADS * GROUP);
    const std::vector<float> distances = numbers(HEADS * GROUP * (2 * REACH + 1));
    for (int shared : {0, texts.num_shared}) {
        const Work attend = [&](const Kernels &table, bool cut) {
            Tokens out(num_tokens, padded);
            std::vector<float> scratch(attend_scratch(expected.cache));
            AttendArgs args{};
            args.cache = expected.cache, args.q = q.rows(), args.group = GROUP;
            args.scale = 0.3f, args.softcap = extras.softcap, args.reach = REACH;
            args.sinks = extras.has_sinks ? sinks.data() : nullptr;
            args.slopes = extras.has_slopes ? slopes.data() : nullptr;
            args.distances = extras.has_distances ? distances.data() : nullptr;
            args.lengths = extras.is_bidirectional ? texts.lengths.data() : nullptr;
            args.positions = texts.positions.data(), args.block_tables = texts.tables.data(), args.table_stride = TABLE;
            args.out = {out.rows(), shape.value_dim % BLOCK ? QuantRows{} : out.quants()};
            const auto item = [&](const QueryTile *tiles, int count, int num_shared) {
                for (int head = 0; head < HEADS; ++head)
                    for (int first = 0; first < GROUP; first += cut ? 1 : GROUP)
                        table.attend(args, {tiles, count, num_shared, 0, head, first, cut ? 1 : GROUP}, scratch.data());
            };
            if (shared && !cut) return item(texts.tiles, 3, shared), out;
            for (const QueryTile &tile : texts.tiles)
                for (int t = tile.begin; t < tile.end; t += cut ? 1 : tile.end) {
                    const QueryTile part{tile.row, t, cut ? t + 1 : tile.end};
                    item(&part, 1, 0);
                }
            return out;
        };
        const bool has_pairs = std::strcmp(kernels.rounding(Format::BF16), "pairs of bf16") == 0;
        const bool is_rounded = has_pairs && shape.format == KvFormat::BF16_PAIRS;
        compare(kernels, "attend " + name + extras.name + (shared ? ", shared blocks" : ""), attend, false,
                is_rounded ? CLOSE_IN_BF16 : CLOSE);
    }
}

void compare_attentions(const Kernels &kernels) {
    const std::pair<KvFormat, const char *> formats[] = {
        {KvFormat::F32, "f32"}, {KvFormat::F16, "f16"}, {KvFormat::BF16_PAIRS, "bf16"}, {KvFormat::Q8, "q8"}};
    for (const auto &[format, name] : formats) {
        const std::string of_format = name;
        for (int dim : {32, 40, 64, 128})
            for (int block_tokens : {16, 24})
                for (int window : {0, 20}) {
                    if (format == KvFormat::Q8 && dim % BLOCK) continue;
                    const std::string sizes = std::to_string(dim) + ", blocks of " + std::to_string(block_tokens);
                    compare_attention(kernels, of_format + " heads of " + sizes + (window ? ", window" : ""),
                                      {format, dim, dim, block_tokens, window, 0}, PLAIN);
                }
        compare_attention(kernels, of_format + " keys of 32, values of 96", {format, 32, 96, 16, 0, 0}, PLAIN);
        compare_attention(kernels, of_format + " keys of 64, values of 32", {format, 64, 32, 16, 0, 0}, PLAIN);
        compare_attention(kernels, of_format + " chunks of 48", {format, 32, 32, 16, 0, 48}, PLAIN);
        for (const Extras &extras : KINDS)
            for (int window : {0, 20})
                compare_attention(kernels, of_format + (window ? " window" : ""), {format, 32, 32, 16, window, 0},
                                  extras);
    }
}

// --- recurrent layers

// A row of 11 tokens that begins with zeros: in one call for each tile, or cut into calls of 4 that move the state.
// `body` runs the tiles of a row.
template <class Body>
void compare_states(const Kernels &kernels, const std::string &what, const StateLayout &layout, int width, Body body) {
    constexpr int TOKENS = 11, CUT = 4;
    const Work work = [&](const Kernels &k, bool cut) {
        std::vector<float> slots(2 * layout.size());
        const States states{layout, 2, slots.data()};
        Tokens out(TOKENS + 1, width);  // the last row: the sum of the state's numbers
        const int32_t save[] = {TOKENS - 1, 1};
        int slot = -1;
        for (int begin = 0; begin < TOKENS; begin += cut ? CUT : TOKENS) {
            const int end = cut ? std::min(begin + CUT, TOKENS) : TOKENS, target = cut ? begin / CUT % 2 : 0;
            body(k, states, RowSpan{begin, end, slot, target, save, cut ? 0 : 1}, out.rows());
            slot = target;
        }
        const float *last = states.tile(cut ? slot : save[1], 0, 0);
        for (size_t i = 0; i < layout.size(); ++i) out.x[TOKENS * width + i % width] += last[i];
        return out;
    };
    compare(kernels, what, work, false);
    compare_alike(kernels, Format::F32, what, work);
}

void compare_recurrence(const Kernels &kernels) {
    constexpr int TOKENS = 11, HEADS = 3, KEY = 24, VALUE = 40, DIM = 96;
    Tokens q = random_tokens(*portable, TOKENS, DIM), k = random_tokens(*portable, TOKENS, DIM);
    Tokens v = random_tokens(*portable, TOKENS, HEADS * VALUE + 8), decay = random_tokens(*portable, TOKENS, DIM);
    for (float &x : decay.x) x = -8.0f * std::fabs(x);
    const std::vector<float> weight = numbers(5 * DIM), bias = numbers(DIM), zeros(DIM);
    for (bool is_by_channel : {false, true}) {
        const int width = delta_width(HEADS, HEADS, KEY, is_by_channel);
        const StateLayout layout{HEADS, KEY, VALUE, STATE_COLS, false, !is_by_channel};
        const auto body = [&](const Kernels &with, const States &states, const RowSpan &row, Rows out) {
            std::vector<float> work(static_cast<size_t>(TOKENS) * width);
            const Rows shared{work.data(), static_cast<size_t>(width)};
            with.delta_prepare({q.rows(), k.rows(), decay.rows(), shared, HEADS, HEADS, KEY, is_by_channel, true, 0.2f, 1e-6f},
                               row.begin, row.end);
            for (int head = 0; head < HEADS; ++head)
                for (int tile = 0; tile < layout.tiles(); ++tile)
                    with.delta_rule({shared, v.rows(), q.rows(), HEADS, is_by_channel, states, out}, row, head, tile);
        };
        compare_states(kernels, is_by_channel ? "delta_rule by channel" : "delta_rule", layout, 128, body);
    }
    for (bool is_by_row : {false, true}) {
        const int dim = is_by_row ? 1 : 8, heads = DIM / dim, size = 16;
        const StateLayout layout{2, size, DIM / 2, STATE_COLS, true, !is_by_row};
        std::vector<float> rates(layout.size());
        for (float &x : rates) x = random_number(-9.0f, 0.0f);
        const auto body = [&](const Kernels &with, const States &states, const RowSpan &row, Rows out) {
            std::vector<float> work(static_cast<size_t>(TOKENS) * 2 * heads);
            const Rows shared{work.data(), static_cast<size_t>(2 * heads)};
            with.scan_prepare({decay.rows(), shared, bias.data(), is_by_row ? nullptr : rates.data(), heads, 0.01f, 3.0f},
                              row.begin, row.end);
            for (int group = 0; group < layout.matrices; ++group)
                for (int tile = 0; tile < layout.tiles(); ++tile)
                    with.state_scan({shared, v.rows(), q.rows(), k.rows(), is_by_row ? rates.data() : nullptr, bias.data(),
                                     heads, dim, states, out}, row, group, tile);
        };
        compare_states(kernels, is_by_row ? "state_scan of rows" : "state_scan", layout, DIM, body);
    }
    for (int taps = 2; taps <= 5; ++taps) {
        const StateLayout layout{1, taps - 1, DIM, DIM, true, false};
        const auto body = [&](const Kernels &with, const States &states, const RowSpan &row, Rows out) {
            const ConvArgs args{q.rows(), weight.data(), bias.data(), zeros.data(), states, taps == 4, MapKind::SILU, out};
            with.short_conv(args, row, 0, DIM - 3);
        };
        compare_states(kernels, "short_conv of " + std::to_string(taps), layout, DIM, body);
    }
    const Work work = [&](const Kernels &with, bool cut) {
        Tokens out(TOKENS, DIM);
        const DecayArgs args{q.rows(), weight.data(), bias.data(), 93, out.rows()};
        for (int t = 0; t < TOKENS; t += cut ? 1 : TOKENS) with.log_decay(args, t, cut ? t + 1 : TOKENS);
        return out;
    };
    compare(kernels, "log_decay", work, false);
}

}  // namespace

int compare_variants() {
    const std::vector<const Kernels *> usable = usable_kernels();
    portable = usable.back();
    std::printf("%s, usable here:", portable->name);
    for (const Kernels *kernels : usable) std::printf(" %s", kernels->name);
    std::printf("\nvariant     kernel                                       bits, difference\n");
    for (const Kernels *kernels : usable) {
        for (int f = 0; f < NUM_FORMATS; ++f)
            for (int tokens : {13, 37, 71}) compare_products(*kernels, static_cast<Format>(f), tokens);
        for (int f = 0; f < NUM_FORMATS; ++f) compare_ordered(*kernels, static_cast<Format>(f));
        compare_token_wise(*kernels);
        compare_routes(*kernels);
        compare_recurrence(*kernels);
        compare_attentions(*kernels);
    }
    std::printf("%d failures\n", num_failures);
    return num_failures ? 1 : 0;
}

}  // namespace quire

int main() { return quire::compare_variants(); }
