// The instructions of a program. Each binds and checks its operands when it is added; then it is a function of the
// step. See program.h.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "items.h"

namespace quire {

namespace {

// Token-wise operations in sequence: an item is some tokens, and applies all operations to them.
class TokenWise final : public Instruction {
  public:
    TokenWise(const Pool &pool, bool at_logits, const TokenBody &body)
        : pool_(pool), at_logits_(at_logits), bodies_{body} {}

    // Rows of logits differ from rows of tokens, so they begin a new sequence.
    bool absorb(bool at_logits, const TokenBody &body) override {
        if (at_logits == at_logits_) bodies_.push_back(body);
        return at_logits == at_logits_;
    }

    int count(const Step &step) const override { return std::min(num_rows(step), 4 * pool_.size()); }

    void run(const Step &step, int begin, int end, int) override {
        const int64_t rows = num_rows(step), items = num_items;
        const int first = static_cast<int>(rows * begin / items), past = static_cast<int>(rows * end / items);
        for (const TokenBody &body : bodies_) body(step, first, past);
    }

  private:
    int num_rows(const Step &step) const { return step.count(at_logits_); }

    const Pool &pool_;
    const bool at_logits_;
    std::vector<TokenBody> bodies_;
};

// Work that is split by its caller.
class Shared final : public Instruction {
  public:
    using Count = std::function<int(const Step &)>;
    using Body = std::function<void(const Step &, int begin, int end)>;
    using Reads = std::function<Weights(int item)>;

    Shared(Count count, Body body, Reads reads)
        : count_(std::move(count)), body_(std::move(body)), reads_(std::move(reads)) {}

    int count(const Step &step) const override { return count_(step); }
    void run(const Step &step, int begin, int end, int) override { body_(step, begin, end); }
    Weights weights(int item) const override { return reads_(item); }

  private:
    const Count count_;
    const Body body_;
    const Reads reads_;
};

// Several products over the same tokens, split into items of 32 columns, or of 16 after `divide`, and some tokens.
struct Products {
    std::vector<ProductArgs> parts_of;
    TokenChunks chunks;
    std::vector<int> ends = {};  // of the column groups of each part
    int most = 1 << 30, panels = PANELS;  // tokens and panels of an item

    explicit Products(const TokenChunks &chunks_) : chunks(chunks_) {}

    void add(const ProductArgs &args) {
        parts_of.push_back(args);
        ends.push_back((ends.empty() ? 0 : ends.back()) + parts(args.matrix.num_panels(), panels));
        most = std::min(most, tokens_at_once(chunks, args.matrix));
    }

    int chunk(int num_tokens) const { return chunk_of(chunks, num_tokens, most); }

    // Makes items as small as this many threads need them, after the last `add`.
    void divide(int num_threads) {
        panels = panels_of_item(ends.back(), num_threads);
        ends.clear();
        for (const ProductArgs &args : parts_of)
            ends.push_back((ends.empty() ? 0 : ends.back()) + parts(args.matrix.num_panels(), panels));
    }

    int num_items(int num_tokens) const { return ends.back() * parts(num_tokens, chunk(num_tokens)); }

    Weights weights(int item) const {
        const int group = item % ends.back();
        size_t part = 0;
        while (group >= ends[part]) ++part;
        const Matrix &m = parts_of[part].matrix;
        const int first = (group - (part ? ends[part - 1] : 0)) * panels;
        return {{m.panel(first), nullptr}, m.panel_bytes * std::min(panels, m.num_panels() - first)};
    }

    // Neighbours of one part and the same tokens are one call.
    void run(const Program &program, int item, int end, int num_tokens, float *answer) const {
        const int size = chunk(num_tokens);
        while (item < end) {
            const int begin = item / ends.back() * size, group = item % ends.back();
            size_t part = 0;
            while (group >= ends[part]) ++part;
            ProductArgs args = parts_of[part];
            if (answer) args.out.data = answer;
            const int before = part ? ends[part - 1] : 0, count = std::min(end - item, ends[part] - group);
            const int last = std::min((group - before + count) * panels, args.matrix.num_panels());
            program.kernels_for(args.matrix)
                .product(args, (group - before) * panels, last, begin, std::min(begin + size, num_tokens));
            item += count;
        }
    }
};

// An item is a bundle of tokens times some heads of one key head.
class Attend final : public Instruction {
  public:
    Attend(Program &program, const AttendArgs &args, KeysOf keys) : program_(program), args_(args), keys_(keys) {}

    // More heads per item share the unpacking of keys, which costs about as much as 1.5 queries; fewer are better if
    // threads would be idle. The split changes no bit.
    int count(const Step &step) const override {
        const int num_bundles = static_cast<int>(program_.bundles().size()), threads = program_.pool().size();
        const double tokens = static_cast<double>(step.num_tokens) / num_bundles;
        double least = 0.0;
        const int most = args_.cache.is_latent() ? MAX_QUERIES / program_.bundle_tokens() : MAX_ITEM_HEADS;
        for (int heads = std::min(args_.group, most); heads >= 1; --heads) {
            const int items = num_bundles * args_.cache.num_heads() * parts(args_.group, heads);
            const double cost = parts(items, threads) * (1.5 + heads * tokens);
            if (least == 0.0 || cost < least) least = cost, heads_ = heads;
        }
        return num_bundles * args_.cache.num_heads() * parts(args_.group, heads_);
    }

    void run(const Step &step, int begin, int end, int thread) override {
        for (int item = begin; item < end; ++item) attend(step, item, thread);
    }

    void attend(const Step &step, int item, int thread) const {
        const int splits = parts(args_.group, heads_), each = args_.cache.num_heads() * splits;
        const size_t index = program_.bundles().size() - 1 - item / each;  // the longest first
        const Bundle &bundle = program_.bundles()[index];
        const int kv_head = item % each / splits, first = item % splits * heads_;
        AttendArgs now = args_;
        int leader = keys_ == KeysOf::TEXT ? program_.leader(args_.cache.group, index) : -1;
        const int num_shared = leader < 0 ? 0 : bundle.num_shared;
        if (keys_ == KeysOf::SOURCE) {
            const SourceTables &t = step.source;
            now.positions = step.positions, now.lengths = t.lengths;
            now.block_tables = t.block_tables, now.table_stride = t.stride;
        } else if (keys_ == KeysOf::STEP) {
            const RowTables &t = program_.row_tables();
            now.positions = t.positions.data(), now.lengths = t.lengths.data();
            now.block_tables = t.tables.data(), now.table_stride = t.stride;
        } else {
            const Tables &t = step.tables[args_.cache.group];
            now.positions = step.positions, now.block_tables = t.block_tables, now.table_stride = t.stride;
        }
        const AttendItem work{program_.tiles_of(bundle), bundle.num_tiles, num_shared, std::max(leader, 0),
                              kv_head,                   first,            std::min(heads_, args_.group - first)};
        program_.kernels().attend(now, work, program_.scratch(thread));
    }

    // The last blocks of each row, where this step's keys are written too, and none that no query of the row reads. In
    // long rows attention prefetches the rest.
    void foresee(const Step &step, int thread) const override {
        constexpr size_t ENOUGH = 48 * 1024;
        if (keys_ != KeysOf::TEXT) return;  // keys of the step are written just before
        const int splits = parts(args_.group, heads_), each = args_.cache.num_heads() * splits;
        const Tables &tables = step.tables[args_.cache.group];
        size_t fetched = 0;
        for (int item = first_of(thread); item < past_of(thread); ++item) {
            const Bundle &bundle = program_.bundles()[program_.bundles().size() - 1 - item / each];
            for (int tile = 0; tile < bundle.num_tiles; ++tile) {
                const QueryTile &queries = program_.tiles_of(bundle)[tile];
                const int32_t *table = tables.block_tables + static_cast<size_t>(queries.row) * tables.stride;
                const int first = args_.cache.first_visible(step.positions[queries.begin]) / args_.cache.block_tokens;
                int i = parts(step.lengths[queries.row], args_.cache.block_tokens);
                while (i-- > first && fetched < ENOUGH) fetched += fetch_block(table[i], item % each / splits);
            }
        }
    }

  private:
    // Prefetches one head's keys and values; returns how many bytes they are.
    size_t fetch_block(int block, int head) const {
        const KvCache &c = args_.cache;
        size_t fetched = 0;
        for (const KvPlane *plane : {&c.keys, &c.values}) {
            const uint8_t *first = plane->tile_at(block, head, 0);
            const size_t size = plane->tile_bytes() * plane->tiles;
            for (size_t at = 0; at < size; at += 64) prefetch(first + at);
            fetched += size;
            if (c.is_latent()) break;
        }
        return fetched;
    }

    Program &program_;
    const AttendArgs args_;
    const KeysOf keys_;
    mutable int heads_ = 1;  // of an item, in this step: set by `count`, before the first item runs
};

// A node that runs outside of the program, on one thread.
class Call final : public Instruction {
  public:
    Call(Program &program, int index, bool at_logits) : program_(program), index_(index), at_logits_(at_logits) {}

    int count(const Step &step) const override { return step.count(at_logits_) > 0; }
    void run(const Step &step, int, int, int) override { program_.fall_back(step, index_); }

  private:
    Program &program_;
    const int index_;
    const bool at_logits_;
};

// The likeliest tokens of one row of logits, likeliest first, equal ones by id. `maxima` has the maximum of every 32
// tokens: tokens below the n-th largest maximum are not among the n likeliest, so few are examined. If a logit of the
// row is NaN, all tokens are -1.
void find_likeliest(const Kernels &kernels, const float *logits, int vocab, const float *maxima, int count,
                    int32_t *tokens, float *found) {
    const int num_groups = parts(vocab, BLOCK);
    float floor = kernels.largest_of(maxima, num_groups);
    if (!std::isfinite(floor)) return std::fill_n(tokens, count, -1), void();
    if (count > num_groups) {
        floor = -std::numeric_limits<float>::infinity();
    } else if (count > 1) {
        std::vector<float> order(maxima, maxima + num_groups);
        std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), std::greater<float>());
        floor = order[static_cast<size_t>(count) - 1];
    }
    std::vector<std::pair<float, int32_t>> near;  // minus the logit, the token: their order is the result's
    for (int group = 0; group < num_groups; ++group) {
        if (maxima[group] < floor) continue;
        for (int token = BLOCK * group; token < std::min(BLOCK * (group + 1), vocab); ++token)
            if (logits[token] >= floor) near.emplace_back(-logits[token], token);
    }
    std::partial_sort(near.begin(), near.begin() + count, near.end());
    for (int i = 0; i < count; ++i) tokens[i] = near[i].second, found[i] = -near[i].first;
}

}  // namespace

void Program::append_token_wise(bool at_logits, const TokenBody &body, bool joins) {
    if (!joins || instructions_.empty() || !instructions_.back()->absorb(at_logits, body))
        append(std::make_unique<TokenWise>(*pool_, at_logits, body));
}

void Program::embed(int table, View out) {
    const Matrix m = matrix(table);
    const Rows to = rows(out);
    require(to.data && out.dim == m.cols, "embed: the output has another width than the table");
    embed_rows_ = embed_rows_ ? std::min(embed_rows_, m.rows) : m.rows;
    append_token_wise(false, [this, m, to](const Step &step, int begin, int end) {
        kernels_.embed(m, step.token_ids, to, begin, end);
    });
}

// Positions beyond the table are refused when the step is launched.
void Program::embed_positions(int table, int offset, View out) {
    const Matrix m = matrix(table);
    const Rows to = rows(out);
    require(to.data && out.dim == m.cols, "embed_positions: the output has another width than the table");
    require(offset >= 0 && offset < m.rows, "embed_positions: the offset is beyond the table");
    position_rows_ = position_rows_ ? std::min(position_rows_, m.rows - offset) : m.rows - offset;
    append_token_wise(false, [this, m, to, offset](const Step &step, int begin, int end) {
        for (int token = begin; token < end; ++token) {
            const int32_t row = step.positions[token] + offset;
            kernels_.embed(m, &row - token, to, token, token + 1);
        }
    });
}

void Program::norm(View x, int weight, int bias, float eps, int group, bool is_layer, View out, int out_quants) {
    require(group > 0 && x.dim % group == 0, "norm: not a whole number of groups");
    const Output to{rows(out), quants(out_quants, x.dim)};
    const int count = weight < 0 ? group : at_vector(weight).count;
    const NormArgs args{rows(x), nullptr, vector(weight, count), vector(bias, count), x.dim,
                        group,   count == group, is_layer, eps, to};
    require(count == group || count == x.dim, "norm: a weight for a group, or for all columns");
    require(args.x.data && (to.rows.data || to.quants.values), "norm: an operand is missing");
    require(to.rows.data || group % BLOCK == 0, "norm: groups are no whole blocks");
    require(!out.given() || out.dim == x.dim, "norm: the output has another width than the input");
    require(at_logits(out, out_quants) == at_logits(x), "norm: rows of tokens and of logits");
    append_token_wise(at_logits(x), [this, args](const Step &, int begin, int end) { kernels_.norm(args, begin, end); });
}

void Program::map(MapKind kind, View x, View y, int weight, const std::array<float, 4> &numbers, View out,
                  int out_quants) {
    const Output to{rows(out), quants(out_quants, x.dim)};
    const auto [a, b, c, d] = numbers;
    const MapArgs args{kind, rows(x), rows(y), vector(weight, x.dim), a, b, c, d, x.dim, to};
    const bool is_of_rows = kind == MapKind::SCALE_ROWS;
    const bool is_pair = kind == MapKind::ADD || kind == MapKind::MULTIPLY || is_of_rows;
    require(args.x.data && (to.rows.data || to.quants.values), "map: an operand is missing");
    require(is_pair == y.given() && (kind == MapKind::SCALE_BY) == (weight >= 0), "map: an operand of another kind");
    require(!out.given() || out.dim == x.dim, "map: the output has another width than the input");
    require(to.rows.data || x.dim % BLOCK == 0, "map: blocks are whole");
    const bool narrow = at_logits(out, out_quants);
    require(at_logits(x) == narrow && (!is_pair || (y.dim == (is_of_rows ? 1 : x.dim) && at_logits(y) == narrow)),
            "map: rows of tokens and of logits, or other columns");
    append_token_wise(narrow, [this, args](const Step &, int begin, int end) { kernels_.map(args, begin, end); });
}

// Factors are computed in float64, the same on every machine.
void Program::scale_by_position(View x, double beta, int span, int shift, View out) {
    const Rows from = rows(x), to = rows(out);
    require(from.data && to.data && x.dim == out.dim && span > 0, "scale_by_position: operands do not fit");
    append_token_wise(false, [from, to, beta, span, shift, dim = x.dim](const Step &step, int begin, int end) {
        for (int token = begin; token < end; ++token) {
            const double steps = std::floor(static_cast<double>(step.positions[token] + shift) / span);
            const float factor = static_cast<float>(1.0 + beta * std::log1p(steps));
            for (int k = 0; k < dim; ++k) to.row(token)[k] = from.row(token)[k] * factor;
        }
    });
}

void Program::gather(View x, View out, int out_quants) {
    const Output to{rows(out), quants(out_quants, x.dim)};
    const GatherArgs args{rows(x), nullptr, x.dim, to};
    require(args.x.data && (to.rows.data || to.quants.values), "gather: an operand is missing");
    require(!out.given() || out.dim == x.dim, "gather: the output has another width than the input");
    const bool narrow = at_logits(out, out_quants), chooses = narrow && !at_logits(x);
    require(narrow || !at_logits(x), "gather: from logits back to tokens");
    append_token_wise(narrow, [this, args, chooses](const Step &step, int begin, int end) {
        GatherArgs now = args;
        now.at = chooses ? step.logits_at : nullptr;
        kernels_.gather(now, begin, end);
    });
}

// Angles are float32 products, as in training; cosine and sine are float64, the same on every machine.
void Program::rope_table(int frequencies, double scaling, View cos, View sin) {
    const int pairs = cos.dim;
    const float *turns = vector(frequencies, pairs);
    const Rows to_cos = rows(cos), to_sin = rows(sin);
    require(turns && to_cos.data && to_sin.data && sin.dim == pairs, "rope_table: an operand is missing");
    const size_t width = static_cast<size_t>(pairs);
    require(to_cos.stride == width && to_sin.stride == width, "rope_table: tables are whole buffers");
    append_token_wise(false, [=](const Step &step, int begin, int end) {
        for (int token = begin; token < end; ++token)
            for (int i = 0; i < pairs; ++i) {
                const float angle = static_cast<float>(step.positions[token]) * turns[i];
                to_cos.row(token)[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * scaling);
                to_sin.row(token)[i] = static_cast<float>(std::sin(static_cast<double>(angle)) * scaling);
            }
    });
}

void Program::rope(View x, View cos, View sin, int head_dim, bool interleaved) {
    const Rows heads = rows(x), of_cos = rows(cos), of_sin = rows(sin);
    require(heads.data && of_cos.data && of_sin.data && cos.dim == sin.dim, "rope: an operand is missing");
    const size_t width = static_cast<size_t>(cos.dim);
    require(of_cos.stride == width && of_sin.stride == width, "rope: tables are whole buffers");
    require(head_dim > 0 && x.dim % head_dim == 0 && 2 * cos.dim <= head_dim, "rope: not a whole number of heads");
    const RopeArgs args{heads, of_cos.data, of_sin.data, cos.dim, x.dim / head_dim, head_dim, interleaved};
    append_token_wise(false, [this, args](const Step &, int begin, int end) { kernels_.rope(args, begin, end); });
}

void Program::write_kv(int id, View k, View v) {
    const KvCache c = cache(id);
    const Rows keys = rows(k), values = rows(v);
    require(keys.data && values.data && k.dim == c.key_width() && v.dim == c.value_width(),
            "write_kv: not the width of the cache");
    append_token_wise(false, [this, c, keys, values](const Step &step, int begin, int end) {
        kernels_.write_kv(c, step.tables[c.group].slots, keys, values, begin, end);
    });
}

void Program::attend(int id, View q, const AttendExtras &extras, View out, int out_quants) {
    const KvCache c = cache(id);
    const int kv_dim = c.num_heads() * c.keys.dim;
    require(q.dim % kv_dim == 0, "attend: not a whole number of heads");
    const int group = q.dim / kv_dim, width = group * c.num_heads() * c.value_dim();
    require(!out.given() || out.dim == width, "attend: the output has another width than the values");
    AttendArgs args{};
    args.cache = c, args.q = rows(q), args.group = group, args.out = {rows(out), quants(out_quants, width)};
    append_attend(args, extras, KeysOf::TEXT);
}

void Program::place_heads(View x, View out, int num_heads, int offset) {
    const Rows from = rows(x), to = rows(out);
    require(from.data && to.data && num_heads > 0, "place_heads: an operand is missing");
    const int width = x.dim / num_heads, step = out.dim / num_heads;
    require(x.dim == width * num_heads && out.dim == step * num_heads && offset >= 0 && offset + width <= step,
            "place_heads: heads do not fit");
    require(at_logits(x) == at_logits(out), "place_heads: rows of tokens and of logits");
    append_token_wise(at_logits(x), [=](const Step &, int begin, int end) {
        for (int token = begin; token < end; ++token)
            for (int head = 0; head < num_heads; ++head)
                std::copy_n(from.row(token) + head * width, width, to.row(token) + head * step + offset);
    });
}

// Each head of x times its own rows of the matrix, which begin with a panel. The products of a head are the first
// `columns` of its part of the output.
void Program::multiply_heads(int id, int num_heads, int columns, View x, View out) {
    const Matrix m = matrix(id);
    const Rows from = rows(x), to = rows(out);
    require(from.data && to.data && num_heads > 0, "multiply_heads: an operand is missing");
    const int step = out.dim / num_heads, panels = parts(columns, LANES);
    require(columns > 0 && columns <= step && out.dim == step * num_heads && x.dim == m.cols * num_heads,
            "multiply_heads: heads do not fit");
    require(!is_quantized(m.format) && m.rows == panels * LANES * num_heads, "multiply_heads: the matrix does not fit");
    const bool narrow = at_logits(out);
    require(at_logits(x) == narrow, "multiply_heads: rows of tokens and of logits");
    Products products(kernels_.chunks);
    for (int head = 0; head < num_heads; ++head) {
        const Matrix part{m.format, columns, m.cols, m.panel(head * panels), m.panel_bytes};
        products.add({part, nullptr, {from.data + head * m.cols, from.stride}, {}, {to.data + head * step, to.stride}, {}});
    }
    append(std::make_unique<Shared>(
        [products, narrow](const Step &step) { return products.num_items(step.count(narrow)); },
        [this, products, narrow](const Step &step, int begin, int end) {
            products.run(*this, begin, end, step.count(narrow), nullptr);
        },
        [products](int item) { return products.weights(item); }));
}

// Keys and values go to a cache that lasts for a step, so that all attention is computed by the same kernel.
void Program::attend_bidirectional(const RowOperands &x, const AttendExtras &extras, View out, int out_quants) {
    const int heads = x.num_heads;
    require(heads > 0 && x.window >= 0, "attend_bidirectional: heads, and a window of positions");
    require(x.k.dim % heads == 0 && x.v.dim % heads == 0 && x.q.dim % x.k.dim == 0,
            "attend_bidirectional: not a whole number of heads");
    const Rows k = rows(x.k), v = rows(x.v);
    require(k.data && v.data && !at_logits(x.q) && !at_logits(x.k) && !at_logits(x.v),
            "attend_bidirectional: it takes rows of tokens");
    const KvCache c = row_cache(heads, x.k.dim / heads, x.v.dim / heads, x.window);
    const int group = x.q.dim / x.k.dim, width = group * x.v.dim;
    require(!out.given() || out.dim == width, "attend_bidirectional: the output has another width than the values");
    append_token_wise(false, [this, c, k, v](const Step &, int begin, int end) {
        kernels_.write_kv(c, row_tables_.slots.data(), k, v, begin, end);
    });
    AttendArgs args{};
    args.cache = c, args.q = rows(x.q), args.group = group, args.out = {rows(out), quants(out_quants, width)};
    append_attend(args, extras, KeysOf::STEP);
}

void Program::append_attend(AttendArgs args, const AttendExtras &extras, KeysOf keys) {
    const KvCache &c = args.cache;
    const int heads = args.group * c.num_heads();
    const int table = extras.distances < 0 ? heads : at_vector(extras.distances).count;
    require(table % heads == 0 && table / heads % 2 == 1, "attend: distances are 2 * reach + 1 for each head");
    require(args.q.data && (args.out.rows.data || args.out.quants.values), "attend: an operand is missing");
    require(!args.out.quants.values || c.value_dim() % BLOCK == 0, "attend: heads are not whole blocks");
    args.scale = extras.scale, args.softcap = extras.softcap;
    args.sinks = vector(extras.sinks, heads), args.slopes = vector(extras.slopes, heads);
    args.distances = vector(extras.distances, table), args.reach = table / heads / 2;
    scratch_floats_ = std::max(scratch_floats_, attend_scratch(c));
    append(std::make_unique<Attend>(*this, args, keys));
}

void Program::call(int index, bool at_logits) {
    ++num_calls_;
    append(std::make_unique<Call>(*this, index, at_logits));
}

void Program::product(const std::vector<int> &matrices, const std::vector<int> &biases, View x, int in_quants, View out,
                      View residual) {
    require(!matrices.empty() && matrices.size() == biases.size(), "product: a bias, or none, for every matrix");
    Rows to = rows(out), added = rows(residual);
    require(to.data && (!residual.given() || residual.dim == out.dim), "product: outputs do not fit");
    Products products(kernels_.chunks);
    int column = 0;
    for (size_t i = 0; i < matrices.size(); ++i) {
        const Matrix m = matrix(matrices[i]);
        const ProductArgs args{m, vector(biases[i], m.rows), rows(x), quants(in_quants, x.dim), to, added};
        check_operand(m, args.x, args.xq, x.dim);
        products.add(args);
        column += m.rows, to.data += m.rows;
        if (added.data) added.data += m.rows;
    }
    require(column == out.dim, "product: the output has another width than the matrices");
    products.divide(pool_->size());
    const bool narrow = at_logits(out);
    require(at_logits(x, in_quants) == narrow && (!residual.given() || at_logits(residual) == narrow),
            "product: rows of tokens and of logits");
    append(std::make_unique<Shared>(
        [products, narrow](const Step &step) { return products.num_items(step.count(narrow)); },
        [this, products, narrow](const Step &step, int begin, int end) {
            products.run(*this, begin, end, step.count(narrow), nullptr);
        },
        [products](int item) { return products.weights(item); }));
}

void Program::gate(MapKind kind, const std::vector<int> &matrices, const std::vector<int> &biases, View x,
                   int in_quants, View out, int out_quants) {
    const bool has_up = matrices.size() == 2;
    require((matrices.size() == 1 || has_up) && biases.size() == matrices.size(), "gate: one matrix or two");
    require(kind <= MapKind::TANH, "gate: not an activation");
    const Matrix g = matrix(matrices[0]), u = has_up ? matrix(matrices[1]) : Matrix{g.format, g.rows, g.cols, nullptr, 0};
    require(g.rows == u.rows && (!out.given() || out.dim == g.rows), "gate: outputs do not fit");
    const GateArgs args{g,       u, kind,
                        vector(biases[0], g.rows), vector(has_up ? biases[1] : -1, u.rows),
                        rows(x), quants(in_quants, x.dim),
                        {rows(out), quants(out_quants, g.rows)}};
    check_operand(g, args.x, args.xq, x.dim);
    check_operand(u, args.x, args.xq, x.dim);
    require(args.out.rows.data || args.out.quants.values, "gate: no output");
    const int groups = parts(g.rows, BLOCK), most = std::min(tokens_at_once(kernels_.chunks, g), tokens_at_once(kernels_.chunks, u));
    const bool narrow = at_logits(out, out_quants);
    require(at_logits(x, in_quants) == narrow, "gate: rows of tokens and of logits");
    append(std::make_unique<Shared>(
        [this, groups, most, narrow](const Step &step) {
            return groups * parts(step.count(narrow), chunk_of(kernels_.chunks, step.count(narrow), most));
        },
        [this, args, groups, most, narrow](const Step &step, int item, int end) {
            const int chunk = chunk_of(kernels_.chunks, step.count(narrow), most);
            // One variant computes both products, so one that was chosen for a single format serves no mixed pair.
            const Kernels &kernels = args.gate.format == args.up.format ? kernels_for(args.gate) : kernels_;
            for (; item < end; ++item) {
                const int begin = item / groups * chunk;
                kernels.gate(args, item % groups, begin, std::min(begin + chunk, step.count(narrow)));
            }
        },
        [g, u, groups](int item) -> Weights {
            const int first = item % groups * PANELS;
            const uint8_t *up = u.data ? u.panel(first) : nullptr;
            return {{g.panel(first), up}, g.panel_bytes * std::min(PANELS, g.num_panels() - first)};
        }));
}

// The rows of x are those of logits_at. Writes the logits to the caller's array, then the likeliest tokens of each row.
void Program::head(int id, int bias, float factor, float cap, View x, int in_quants) {
    const Matrix m = matrix(id);
    require(vocab_ == 0, "head: a program has one output");
    vocab_ = m.rows;
    const Rows answer{nullptr, static_cast<size_t>(m.rows)};
    const ProductArgs args{m, vector(bias, m.rows), rows(x), quants(in_quants, x.dim), answer, {}};
    require(at_logits(x, in_quants), "head: it takes rows of logits_at");
    check_operand(m, args.x, args.xq, x.dim);
    Products products(kernels_.chunks);
    products.add(args);
    const int num_groups = parts(vocab_, BLOCK);
    const Rows maxima = rows({add_rows(num_groups, true), 0, num_groups});
    const bool is_scaled = factor != 1.0f, is_capped = cap != 0.0f;
    append(std::make_unique<Shared>(
        [products](const Step &step) { return products.num_items(step.num_logits); },
        [this, products, maxima, num_groups, factor, cap, is_scaled, is_capped](const Step &step, int item, int end) {
            const int chunk = products.chunk(step.num_logits);
            products.run(*this, item, end, step.num_logits, step.logits);
            for (; item < end; ++item) {
                const int group = item % num_groups, begin = item / num_groups * chunk, first = BLOCK * group;
                const int width = std::min(BLOCK, vocab_ - first);
                for (int i = begin; i < std::min(begin + chunk, step.num_logits); ++i) {
                    float *part = step.logits + static_cast<size_t>(i) * vocab_ + first;
                    const Rows here{part, 0};
                    if (is_scaled)
                        kernels_.map({MapKind::SCALE, here, {}, nullptr, factor, 0, 0, 0, width, {here, {}}}, 0, 1);
                    if (is_capped)
                        kernels_.map({MapKind::SOFTCAP, here, {}, nullptr, cap, 0, 0, 0, width, {here, {}}}, 0, 1);
                    maxima.row(i)[group] = kernels_.largest_of(part, width);
                }
            }
        },
        [products](int item) { return products.weights(item); }));
    append_likeliest(maxima);
}

void Program::output(View x) {
    const Rows from = rows(x);
    require(vocab_ == 0, "output: a program has one output");
    require(from.data && at_logits(x), "output: it takes rows of logits_at");
    vocab_ = x.dim;
    const int num_groups = parts(vocab_, BLOCK);
    const Rows maxima = rows({add_rows(num_groups, true), 0, num_groups});
    append_token_wise(true, [this, from, maxima, num_groups](const Step &step, int begin, int end) {
        for (int i = begin; i < end; ++i) {
            float *to = step.logits + static_cast<size_t>(i) * vocab_;
            std::copy_n(from.row(i), vocab_, to);
            for (int group = 0; group < num_groups; ++group)
                maxima.row(i)[group] = kernels_.largest_of(to + BLOCK * group, std::min(BLOCK, vocab_ - BLOCK * group));
        }
    });
    append_likeliest(maxima);
}

void Program::append_likeliest(Rows maxima) {
    append_token_wise(true, [this, vocab = vocab_, maxima](const Step &step, int begin, int end) {
        for (int i = begin; i < end; ++i) {
            const size_t row = static_cast<size_t>(i), at = row * step.max_top;
            if (step.num_top[i] > 0)
                find_likeliest(kernels_, step.logits + row * vocab, vocab, maxima.row(i), step.num_top[i],
                               step.top_tokens + at, step.top_logits + at);
        }
    });
}

}  // namespace quire
