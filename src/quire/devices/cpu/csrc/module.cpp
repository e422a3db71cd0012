// The Python bindings of the native CPU device. They turn arrays into pointers and sizes; dtypes and dimensions are
// checked here, values in the program.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "features.h"
#include "program.h"
#include "roof.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PackedBytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesToFill = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsToFill = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Answer = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowsInPlace = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using TopTokens = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using StateSlots = std::tuple<Ints, Ints, IntRows>;  // source, target, saves
using Columns = std::tuple<int, int, int>;  // buffer, offset, dim
using WindowArrays = std::tuple<Ints, IntRows, IntRows>;  // slots, block_tables, copies
using SourceArrays = std::tuple<Ints, IntRows>;           // lengths, block_tables
using PoolArrays = std::tuple<IntRows, Answer, Ints>;     // pools, pooled, token_types (none: of length 0)

View view(const Columns &c) { return {std::get<0>(c), std::get<1>(c), std::get<2>(c)}; }

int size(size_t n) {
    require(n <= INT32_MAX, "an array is too large");
    return static_cast<int>(n);
}

template <class Value>
Value named(const std::string &name, std::initializer_list<std::pair<const char *, Value>> known, const char *what) {
    for (const auto &[word, value] : known)
        if (name == word) return value;
    throw std::invalid_argument(what + name);
}

Format format(const std::string &name) {
    return named<Format>(name,
                         {{"f32", Format::F32},       {"f16", Format::F16},       {"bf16", Format::BF16},
                          {"q8_0", Format::Q8_0},     {"q4_0", Format::Q4_0},     {"q4_1", Format::Q4_1},
                          {"q5_0", Format::Q5_0},     {"q5_1", Format::Q5_1},     {"q2_k", Format::Q2_K},
                          {"q3_k", Format::Q3_K},     {"q4_k", Format::Q4_K},     {"q5_k", Format::Q5_K},
                          {"q6_k", Format::Q6_K},     {"iq4_nl", Format::IQ4_NL}, {"iq4_xs", Format::IQ4_XS},
                          {"mxfp4", Format::MXFP4}},
                         "no kernel for the format ");
}

MapKind map_kind(const std::string &name) {
    static const char *const NAMES[] = {"silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "tanh",
                                        "xielu", "scale", "softcap", "clamp", "add", "multiply", "scale_by",
                                        "scale_rows"};
    for (int i = 0; i < 15; ++i)
        if (name == NAMES[i]) return static_cast<MapKind>(i);
    throw std::invalid_argument("there is no map " + name);
}

KvFormat kv_format(const std::string &name) {
    return named<KvFormat>(name,
                           {{"f32", KvFormat::F32}, {"f16", KvFormat::F16}, {"bf16", KvFormat::BF16},
                            {"q8_0", KvFormat::Q8}},
                           "the KV cache cannot be ");
}

const Kernels &variant(const std::string &name) {
    for (const Kernels *kernels : usable_kernels())
        if (name == kernels->name) return *kernels;
    throw std::invalid_argument("there are no kernels for this machine named " + name);
}

std::shared_ptr<Program> make_program(const std::string &name, std::shared_ptr<Pool> pool, std::vector<int> limits) {
    require(limits.size() == 6, "six limits");
    const int max_logits = std::min(limits[2], limits[0]);  // at most one per token
    const Bounds bounds{limits[0], limits[1], max_logits, limits[3], limits[4], limits[5]};
    return std::make_shared<Program>(variant(name), std::move(pool), bounds);
}

int add_matrix(Program &program, const std::string &name, int cols, const Bytes &source) {
    const Format f = format(name);
    require(cols > 0 && source.shape(1) == source_row_bytes(f, cols), "a matrix has rows of another size");
    return program.add_matrix(f, size(source.shape(0)), cols, source.data());
}

// `sources` may be a generator: each matrix is packed before the next one is made.
int add_stack(Program &program, const std::string &name, const std::array<int, 3> &shape, const nb::iterable &sources) {
    const Format f = format(name);
    const auto [count, rows, cols] = shape;
    nb::iterator next = nb::iter(sources);
    Bytes source;
    return program.add_stack(f, count, rows, cols, [&, rows = rows, cols = cols] {
        require(next != nb::iterator::sentinel(), "a stack has fewer matrices than were announced");
        source = nb::cast<Bytes>(*next);
        require(source.shape(0) == static_cast<size_t>(rows) && source.shape(1) == source_row_bytes(f, cols),
                "a matrix of a stack has another shape");
        ++next;
        return source.data();
    });
}

int adopt_matrix(Program &program, const std::string &name, std::pair<int, int> shape, const PackedBytes &panels) {
    Panels given{panels.data(), panels.shape(0), std::make_shared<PackedBytes>(panels)};
    return program.adopt_matrix(format(name), shape.first, shape.second, std::move(given));
}

// A view of the program's memory, which keeps the program alive.
PackedBytes panels_of(nb::handle self, int id) {
    const Matrix matrix = nb::cast<const Program &>(self).matrix(id);
    return PackedBytes(matrix.data, {matrix.num_bytes()}, self);
}

void store_kv(Program &program, int cache, const Ints &slots, const FloatRows &k, const FloatRows &v) {
    const KvCache c = program.cache(cache);
    const size_t key_width = static_cast<size_t>(c.key_width()), value_width = static_cast<size_t>(c.value_width());
    require(k.shape(0) == slots.shape(0) && k.shape(1) == key_width, "store_kv: not the width of the cache");
    require(v.shape(0) == slots.shape(0) && v.shape(1) == value_width, "store_kv: not the width of the cache");
    program.store_kv(cache, slots.data(), k.data(), v.data(), size(slots.shape(0)));
}

// The rows of a buffer, in place. They keep the program alive.
RowsInPlace rows_of(nb::handle self, const Columns &columns) {
    const Program &program = nb::cast<const Program &>(self);
    const View place = view(columns);
    const Rows found = program.rows(place);
    require(found.data, "a view of nothing");
    const size_t num_rows = static_cast<size_t>(program.num_rows(place)), dim = static_cast<size_t>(place.dim);
    return RowsInPlace(found.data, {num_rows, dim}, self, {static_cast<int64_t>(found.stride), 1});
}

void poke(Program &program, const Columns &to, const FloatRows &numbers) {
    require(numbers.shape(1) == static_cast<size_t>(std::get<2>(to)), "poke: another width than the view");
    program.poke(view(to), numbers.data(), size(numbers.shape(0)));
}

void peek(const Program &program, const Columns &from, const Answer &numbers) {
    require(numbers.shape(1) == static_cast<size_t>(std::get<2>(from)), "peek: another width than the view");
    program.peek(view(from), numbers.data(), size(numbers.shape(0)));
}

void set_states(Step &step, const StateSlots &states) {
    const auto &[source, target, saves] = states;
    const size_t num_rows = static_cast<size_t>(step.num_rows);
    require(source.shape(0) == num_rows && target.shape(0) == num_rows, "states: a slot for each row");
    require(saves.shape(1) == 2, "saves: token, slot");
    step.sources = source.data(), step.targets = target.data();
    step.saves = saves.data(), step.num_saves = size(saves.shape(0));
}

void set_source(Step &step, const SourceArrays &source) {
    const auto &[lengths, tables] = source;
    const size_t num_rows = static_cast<size_t>(step.num_rows);
    require(lengths.shape(0) == num_rows && tables.shape(0) == num_rows, "sources: one for each row");
    step.source = {lengths.data(), tables.data(), size(tables.shape(1))};
}

void set_pools(Step &step, const PoolArrays &arrays, size_t dim) {
    const auto &[pools, pooled, types] = arrays;
    require(pools.shape(1) == 3, "pools: first token, token after the last, kind");
    require(dim == 0 || (pooled.shape(0) == pools.shape(0) && pooled.shape(1) == dim), "pooled: a vector for each pool");
    require(types.shape(0) == 0 || types.shape(0) == static_cast<size_t>(step.num_tokens),
            "the arrays of tokens differ in length");
    step.pools = pools.data(), step.num_pools = size(pools.shape(0)), step.pooled = pooled.data();
    step.token_types = types.shape(0) ? types.data() : nullptr;
}

Tables tables_of(const Ints &slots, const IntRows &block_tables, const IntRows &copies, const Step &step) {
    require(slots.shape(0) == static_cast<size_t>(step.num_tokens), "the arrays of tokens differ in length");
    require(block_tables.shape(0) == static_cast<size_t>(step.num_rows), "the arrays of rows differ in length");
    require(copies.shape(1) == 3, "copies: from, to, number of tokens");
    return {slots.data(), block_tables.data(), copies.data(), size(block_tables.shape(1)), size(copies.shape(0))};
}

void launch(Program &program, const Ints &token_ids, const Ints &positions, const Ints &slots, const Ints &row_of_token,
            const Ints &starts, const Ints &lengths, const IntRows &block_tables, const Ints &logits_at,
            const IntRows &copies, const IntRows &groups, const Ints &num_top, const Answer &logits,
            const TopTokens &top_tokens, const Answer &top_logits, const nb::object &fallback,
            const std::vector<WindowArrays> &windows, const std::optional<StateSlots> &states,
            const std::optional<SourceArrays> &source,
            const std::optional<PoolArrays> &pools) {
    const size_t num_tokens = token_ids.shape(0), num_rows = lengths.shape(0), num_logits = logits_at.shape(0);
    for (const Ints *array : {&positions, &row_of_token})
        require(array->shape(0) == num_tokens, "the arrays of tokens differ in length");
    require(starts.shape(0) == num_rows + 1, "the arrays of rows differ in length");
    require(groups.shape(1) == 3, "groups: group, row, number of blocks");
    require(logits.shape(0) == num_logits && top_tokens.shape(0) == num_logits && top_logits.shape(0) == num_logits,
            "an answer for each of logits_at");
    require(num_top.shape(0) == num_logits && top_tokens.shape(1) == top_logits.shape(1),
            "num_top: one for each row of logits");
    require(logits.shape(1) == static_cast<size_t>(program.vocab()), "logits: not as wide as the vocabulary");
    Step step{};
    step.num_tokens = size(num_tokens), step.num_rows = size(num_rows), step.num_logits = size(num_logits);
    step.num_grouped = size(groups.shape(0)), step.groups = groups.data();
    step.token_ids = token_ids.data(), step.positions = positions.data();
    step.row_of_token = row_of_token.data(), step.starts = starts.data(), step.lengths = lengths.data();
    step.logits_at = logits_at.data(), step.num_top = num_top.data(), step.max_top = size(top_tokens.shape(1));
    step.logits = logits.data(), step.top_tokens = top_tokens.data(), step.top_logits = top_logits.data();
    if (states) set_states(step, *states);
    if (source) set_source(step, *source);
    if (pools) set_pools(step, *pools, static_cast<size_t>(program.pooled_dim()));
    const std::function<void(int)> call = [&](int index) {  // on any thread
        nb::gil_scoped_acquire acquire;
        fallback(index);
    };
    step.fallback = fallback.is_none() ? nullptr : &call;
    step.tables.push_back(tables_of(slots, block_tables, copies, step));
    for (const auto &[of_slots, of_rows, of_copies] : windows)
        step.tables.push_back(tables_of(of_slots, of_rows, of_copies, step));
    nb::gil_scoped_release release;
    program.launch(step);
}

using Ids = std::vector<int>;

// One method for each instruction. A view is (buffer, first column, columns); (-1, 0, 0): none.
void bind_instructions(nb::class_<Program> &program) {
    program.def(
        "embed", [](Program &p, int table, const Columns &out) { p.embed(table, view(out)); }, "table"_a, "out"_a);
    program.def(
        "embed_positions",
        [](Program &p, int table, int offset, const Columns &out) { p.embed_positions(table, offset, view(out)); },
        "table"_a, "offset"_a, "out"_a);
    program.def(
        "embed_types", [](Program &p, int table, const Columns &out) { p.embed_types(table, view(out)); }, "table"_a,
        "out"_a);
    program.def(
        "pool", [](Program &p, const Columns &x, const Columns &out) { p.pool(view(x), view(out)); }, "x"_a, "out"_a);
    program.def(
        "norm",
        [](Program &p, const Columns &x, int weight, int bias, float eps, int group, bool is_layer, const Columns &out,
           int quants) { p.norm(view(x), weight, bias, eps, group, is_layer, view(out), quants); },
        "x"_a, "weight"_a, "bias"_a, "eps"_a, "group"_a, "is_layer"_a, "out"_a, "quants"_a);
    program.def(
        "map",
        [](Program &p, const std::string &kind, const Columns &x, const Columns &y, int weight,
           const std::array<float, 4> &numbers, const Columns &out, int quants) {
            p.map(map_kind(kind), view(x), view(y), weight, numbers, view(out), quants);
        },
        "kind"_a, "x"_a, "y"_a, "weight"_a, "numbers"_a, "out"_a, "quants"_a);
    program.def(
        "scale_by_position",
        [](Program &p, const Columns &x, double beta, int span, int shift, const Columns &out) {
            p.scale_by_position(view(x), beta, span, shift, view(out));
        },
        "x"_a, "beta"_a, "span"_a, "shift"_a, "out"_a);
    program.def(
        "gather",
        [](Program &p, const Columns &x, const Columns &out, int quants) { p.gather(view(x), view(out), quants); },
        "x"_a, "out"_a, "quants"_a);
    program.def(
        "rope_table",
        [](Program &p, int frequencies, double scaling, const Columns &cos, const Columns &sin) {
            p.rope_table(frequencies, scaling, view(cos), view(sin));
        },
        "frequencies"_a, "scaling"_a, "cos"_a, "sin"_a);
    program.def(
        "rope",
        [](Program &p, const Columns &x, const Columns &cos, const Columns &sin, int head_dim, bool interleaved) {
            p.rope(view(x), view(cos), view(sin), head_dim, interleaved);
        },
        "x"_a, "cos"_a, "sin"_a, "head_dim"_a, "interleaved"_a);
    program.def(
        "write_kv",
        [](Program &p, int cache, const Columns &k, const Columns &v) { p.write_kv(cache, view(k), view(v)); },
        "cache"_a, "k"_a, "v"_a);
    program.def(
        "attend",
        [](Program &p, int cache, const Columns &q, float scale, float softcap, int sinks, int slopes, int distances,
           const Columns &out, int quants) {
            p.attend(cache, view(q), {scale, softcap, sinks, slopes, distances}, view(out), quants);
        },
        "cache"_a, "q"_a, "scale"_a, "softcap"_a, "sinks"_a, "slopes"_a, "distances"_a, "out"_a, "quants"_a);
    program.def(
        "attend_bidirectional",
        [](Program &p, const Columns &q, const Columns &k, const Columns &v, int num_heads, int window, float scale,
           float softcap, int sinks, int slopes, int distances, const Columns &out, int quants) {
            p.attend_bidirectional({view(q), view(k), view(v), num_heads, window},
                                   {scale, softcap, sinks, slopes, distances}, view(out), quants);
        },
        "q"_a, "k"_a, "v"_a, "num_heads"_a, "window"_a, "scale"_a, "softcap"_a, "sinks"_a, "slopes"_a, "distances"_a,
        "out"_a, "quants"_a);
    program.def(
        "attend_source",
        [](Program &p, int cache, const Columns &q, float scale, float softcap, int sinks, int slopes, int distances,
           const Columns &out, int quants) {
            p.attend_source(cache, view(q), {scale, softcap, sinks, slopes, distances}, view(out), quants);
        },
        "cache"_a, "q"_a, "scale"_a, "softcap"_a, "sinks"_a, "slopes"_a, "distances"_a, "out"_a, "quants"_a);
    program.def(
        "shift", [](Program &p, const Columns &x, int by, const Columns &out) { p.shift(view(x), by, view(out)); },
        "x"_a, "by"_a, "out"_a);
    program.def(
        "place_heads",
        [](Program &p, const Columns &x, const Columns &out, int num_heads, int offset) {
            p.place_heads(view(x), view(out), num_heads, offset);
        },
        "x"_a, "out"_a, "num_heads"_a, "offset"_a);
    program.def(
        "multiply_heads",
        [](Program &p, int matrix, int num_heads, int columns, const Columns &x, const Columns &out) {
            p.multiply_heads(matrix, num_heads, columns, view(x), view(out));
        },
        "matrix"_a, "num_heads"_a, "columns"_a, "x"_a, "out"_a);
    program.def("call", &Program::call, "index"_a, "at_logits"_a);
    program.def(
        "product",
        [](Program &p, const Ids &matrices, const Ids &biases, const Columns &x, int quants, const Columns &out,
           const Columns &residual) { p.product(matrices, biases, view(x), quants, view(out), view(residual)); },
        "matrices"_a, "biases"_a, "x"_a, "quants"_a, "out"_a, "residual"_a);
    program.def(
        "gate",
        [](Program &p, const std::string &kind, const Ids &matrices, const Ids &biases, const Columns &x, int quants,
           const Columns &out, int out_quants) {
            p.gate(map_kind(kind), matrices, biases, view(x), quants, view(out), out_quants);
        },
        "kind"_a, "matrices"_a, "biases"_a, "x"_a, "quants"_a, "out"_a, "out_quants"_a);
    program.def(
        "head",
        [](Program &p, int matrix, int bias, float factor, float cap, const Columns &x, int quants) {
            p.head(matrix, bias, factor, cap, view(x), quants);
        },
        "matrix"_a, "bias"_a, "factor"_a, "cap"_a, "x"_a, "quants"_a);
    program.def(
        "output", [](Program &p, const Columns &x) { p.output(view(x)); }, "x"_a);
}

void bind_experts(nb::class_<Program> &program) {
    program.def(
        "route",
        [](Program &p, const std::string &scoring, int num_experts, int top, const std::pair<bool, bool> &kind,
           const std::array<int, 3> &groups, const std::pair<float, float> &numbers, const std::pair<int, int> &vectors,
           const Columns &work, const Columns &weights, const Columns &chosen) {
            const Scoring how = named<Scoring>(scoring,
                                               {{"softmax", Scoring::SOFTMAX}, {"sigmoid", Scoring::SIGMOID},
                                                {"sqrt_softplus", Scoring::SQRT_SOFTPLUS}, {"none", Scoring::NONE}},
                                               "there is no scoring ");
            const RouteRule rule{num_experts, top, how, kind.first, kind.second, groups[0], groups[1], groups[2],
                                 numbers.first, numbers.second, vectors.first, vectors.second};
            p.route(rule, view(work), view(weights), view(chosen));
        },
        "scoring"_a, "num_experts"_a, "top"_a, "kind"_a, "groups"_a, "numbers"_a, "vectors"_a, "work"_a, "weights"_a,
        "chosen"_a,
        "kind: scores_chosen, renormalize; groups: groups, top_groups, group_top; numbers: factor, softcap; vectors: "
        "correction, expert_scale.");
    program.def(
        "experts",
        [](Program &p, const std::string &kind, const std::pair<int, int> &sizes, const std::array<int, 3> &stacks,
           const std::array<int, 3> &biases, const std::array<float, 3> &numbers, const Columns &x, int quants,
           const std::pair<Columns, Columns> &choice, const std::pair<Columns, int> &scaled,
           const std::pair<Columns, int> &hidden, const Columns &out, bool on_input) {
            const auto [gate, up, down] = stacks;
            const ExpertStacks all{sizes.first, sizes.second, gate, up, down, biases[0], biases[1], biases[2],
                                   map_kind(kind), numbers[0], numbers[1], numbers[2]};
            p.experts(all, {view(x), quants, view(choice.first), view(choice.second), view(scaled.first), scaled.second,
                            view(hidden.first), hidden.second, view(out), on_input});
        },
        "kind"_a, "sizes"_a, "stacks"_a, "biases"_a, "numbers"_a, "x"_a, "quants"_a, "choice"_a, "scaled"_a, "hidden"_a,
        "out"_a, "on_input"_a,
        "sizes: experts, ffn; stacks and biases: gate, up, down; numbers: limit, alpha, shift; choice: weights, chosen.");
}

// The numbers of a state, in the order of its shape outside.
void store_state(Program &program, int states, int slot, const Floats &numbers) {
    require(numbers.shape(0) == program.states(states).layout.outer_size(), "store_state: not the size of a state");
    program.store_state(states, slot, numbers.data());
}

void load_state(Program &program, int states, int slot, const FloatsToFill &numbers) {
    require(numbers.shape(0) == program.states(states).layout.outer_size(), "load_state: not the size of a state");
    program.load_state(states, slot, numbers.data());
}

void bind_recurrence(nb::class_<Program> &program) {
    program.def(
        "states",
        [](Program &p, int num_states, const std::array<int, 3> &shape, bool is_transposed, bool is_tiled,
           bool has_scales) {
            const auto [matrices, rows, cols] = shape;
            const int width = is_tiled ? STATE_COLS : (cols + LANES - 1) / LANES * LANES;
            return p.add_states({matrices, rows, cols, width, is_transposed, has_scales}, num_states);
        },
        "num_states"_a, "shape"_a, "is_transposed"_a, "is_tiled"_a, "has_scales"_a,
        "Add the states of a layer: matrices, rows, columns each; transposed: outside they are [columns][rows].");
    program.def("store_state", &store_state, "states"_a, "slot"_a, "numbers"_a.noconvert());
    program.def("load_state", &load_state, "states"_a, "slot"_a, "numbers"_a.noconvert());
    program.def(
        "short_conv",
        [](Program &p, int states, const Columns &x, int weight, int bias, const std::string &kind, const Columns &out) {
            std::optional<MapKind> activation;
            if (!kind.empty()) activation = map_kind(kind);
            p.short_conv(states, view(x), weight, bias, activation, view(out));
        },
        "states"_a, "x"_a, "weight"_a, "bias"_a, "kind"_a, "out"_a);
    program.def(
        "delta_rule",
        [](Program &p, int states, const std::array<Columns, 3> &qkv, const Columns &decay, const Columns &beta,
           const Columns &work, int num_heads, bool is_unit, const std::pair<float, float> &numbers, const Columns &out) {
            const auto &[q, k, v] = qkv;
            p.delta_rule(states, {view(q), view(k), view(v), view(decay), view(beta), view(work)},
                         {num_heads, is_unit, numbers.first, numbers.second}, view(out));
        },
        "states"_a, "qkv"_a, "decay"_a, "beta"_a, "work"_a, "num_heads"_a, "is_unit"_a, "numbers"_a, "out"_a,
        "numbers: scale, eps.");
    program.def(
        "log_decay",
        [](Program &p, const Columns &x, int rate, int bias, const Columns &out) {
            p.log_decay(view(x), rate, bias, view(out));
        },
        "x"_a, "rate"_a, "bias"_a, "out"_a);
    program.def(
        "state_scan",
        [](Program &p, int states, const std::array<Columns, 3> &xbc, const Columns &dt, const Columns &work,
           const std::array<int, 3> &vectors, const std::pair<float, float> &bounds, const Columns &out) {
            const auto &[x, b, c] = xbc;
            p.state_scan(states, {view(x), view(dt), view(b), view(c), view(work)},
                         {vectors[0], vectors[1], vectors[2], bounds.first, bounds.second}, view(out));
        },
        "states"_a, "xbc"_a, "dt"_a, "work"_a, "vectors"_a, "bounds"_a, "out"_a, "vectors: rate, bias, skip.");
}

// Blocks and states as bytes: one row for each. See blocks.cpp.
void bind_blocks(nb::class_<Program> &program) {
    program.def("block_bytes", &Program::block_bytes, "group"_a);
    program.def_prop_ro("state_bytes", &Program::state_bytes);
    const auto check = [](Program &p, int group, size_t count, size_t rows, size_t bytes) {
        require(count == rows && bytes == p.block_bytes(group), "blocks: not as many bytes as the blocks have");
    };
    program.def(
        "read_blocks",
        [check](Program &p, int group, const Ints &blocks, const BytesToFill &to) {
            check(p, group, blocks.shape(0), to.shape(0), to.shape(1));
            nb::gil_scoped_release release;
            p.read_blocks(group, blocks.data(), size(blocks.shape(0)), to.data());
        },
        "group"_a, "blocks"_a.noconvert(), "to"_a.noconvert());
    program.def(
        "write_blocks",
        [check](Program &p, int group, const Ints &blocks, const Bytes &from) {
            check(p, group, blocks.shape(0), from.shape(0), from.shape(1));
            nb::gil_scoped_release release;
            p.write_blocks(group, blocks.data(), size(blocks.shape(0)), from.data());
        },
        "group"_a, "blocks"_a.noconvert(), "numbers"_a.noconvert());
    program.def(
        "read_state",
        [](Program &p, int slot, const BytesToFill &to) {
            require(to.size() == p.state_bytes(), "read_state: not the size of a state");
            p.read_state(slot, to.data());
        },
        "slot"_a, "to"_a.noconvert());
    program.def(
        "write_state",
        [](Program &p, int slot, const Bytes &from) {
            require(from.size() == p.state_bytes(), "write_state: not the size of a state");
            p.write_state(slot, from.data());
        },
        "slot"_a, "numbers"_a.noconvert());
}

void bind_program(nb::module_ &m) {
    nb::class_<Program> program(m, "Program", "A lowered model: weights, buffers, KV caches, instructions over them.");
    program.def(nb::new_(&make_program), "variant"_a, "pool"_a, "limits"_a);
    program.def("matrix", &add_matrix, "format"_a, "cols"_a, "source"_a.noconvert());
    program.def("stack", &add_stack, "format"_a, "shape"_a, "sources"_a,
                "Add matrices of one shape [count, rows, cols]; each is padded to whole panels of 8 rows.");
    program.def("adopt", &adopt_matrix, "format"_a, "shape"_a, "panels"_a.noconvert(),
                "Add a matrix of packed panels. They are not copied, and kept alive as long as the program.");
    program.def("panels", &panels_of, "matrix"_a, "The bytes of a packed matrix.");
    program.def(
        "vector", [](Program &p, const Floats &x) { return p.add_vector(x.data(), size(x.shape(0))); },
        "numbers"_a.noconvert());
    program.def("rows", &Program::add_rows, "dim"_a, "for_logits"_a = false);
    program.def("quants", &Program::add_quants, "dim"_a, "for_logits"_a = false);
    program.def(
        "window", [](Program &p, int window, int num_blocks) { return p.add_window({window, num_blocks}); }, "window"_a,
        "num_blocks"_a, "Add a window group; return its number, for the caches of its layers. 0 is that of all tokens.");
    program.def(
        "cache",
        [](Program &p, const std::string &kv, int heads, int key_dim, int value_dim, int window, int chunk, int group) {
            return p.add_cache({kv_format(kv), heads, key_dim, value_dim, window, chunk, 0, group});
        },
        "format"_a, "num_heads"_a, "key_dim"_a, "value_dim"_a, "window"_a, "chunk"_a, "group"_a);
    program.def(
        "source_cache",
        [](Program &p, const std::string &kv, int heads, int key_dim, int value_dim, int num_blocks) {
            return p.add_source_cache({kv_format(kv), heads, key_dim, value_dim, 0, 0}, num_blocks);
        },
        "format"_a, "num_heads"_a, "key_dim"_a, "value_dim"_a, "num_blocks"_a, "Add a cache of an encoder's output.");
    program.def(
        "latent_cache",
        [](Program &p, const std::string &kv, int dim, int rope_dim) {
            return p.add_cache({kv_format(kv), 1, dim + rope_dim, dim + rope_dim, 0, 0, dim});
        },
        "format"_a, "dim"_a, "rope_dim"_a);
    program.def(
        "multiply_with",
        [](Program &p, const std::string &f, const std::string &name) { p.multiply_with(format(f), variant(name)); },
        "format"_a, "variant"_a, "Compute products of a format with another variant's kernels. They must round alike.");
    bind_instructions(program);
    bind_experts(program);
    bind_recurrence(program);
    bind_blocks(program);
    program.def("launch", &launch, "token_ids"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
                "row_of_token"_a.noconvert(), "starts"_a.noconvert(), "lengths"_a.noconvert(),
                "block_tables"_a.noconvert(), "logits_at"_a.noconvert(), "copies"_a.noconvert(), "groups"_a.noconvert(),
                "num_top"_a.noconvert(), "logits"_a.noconvert(), "top_tokens"_a.noconvert(),
                "top_logits"_a.noconvert(), "fallback"_a = nb::none(),
                nb::arg("windows").noconvert() = std::vector<WindowArrays>(), "states"_a.noconvert() = nb::none(),
                "source"_a.noconvert() = nb::none(),
                "pools"_a.noconvert() = nb::none(),
                "Run one step; see quire.ops.batch.Batch. The arrays of logits and of the likeliest tokens are filled.");
    program.def("store_kv", &store_kv, "cache"_a, "slots"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert(),
                "Put K and V of tokens into a cache from outside.");
    program.def(
        "release_blocks",
        [](Program &p, const Ints &blocks) {
            nb::gil_scoped_release release;  // a step may need it to end
            return p.release_blocks(blocks.data(), size(blocks.shape(0)));
        },
        "blocks"_a.noconvert(), "Return the pages of these KV blocks, ascending, to the system.");
    program.def("rows_of", &rows_of, "columns"_a, "The rows of a buffer, in place.");
    program.def("poke", &poke, "to"_a, "numbers"_a.noconvert(), "Fill the first rows of a buffer.");
    program.def("peek", &peek, "source"_a, "numbers"_a.noconvert(), "Read the first rows of a buffer.");
    program.def_prop_ro("num_bytes", &Program::num_bytes);
}

// The peak rates of the machine, for benchmarks.
void bind_roof(nb::module_ &m) {
    const auto bind = [&m](const char *name, double (*measure)(const char *, Pool &, double), const char *doc) {
        const auto checked = [measure](const std::string &name, const std::shared_ptr<Pool> &pool, double seconds) {
            const Kernels &kernels = variant(name);  // this machine can run them
            nb::gil_scoped_release release;
            return measure(kernels.name, *pool, seconds);
        };
        m.def(name, checked, "variant"_a, "pool"_a, "seconds"_a, doc);
    };
    bind("multiply_adds_per_second", &multiply_adds_per_second, "Of 8-bit numbers in registers, by all threads.");
    bind("read_bytes_per_second", &read_bytes_per_second, "From memory that no cache holds, by all threads.");
}

}  // namespace

}  // namespace quire

NB_MODULE(_native, m) {
    using namespace quire;
    nb::set_leak_warnings(false);  // the pool lives as long as the process
    m.doc() = "Native kernels of the CPU device.";
    m.def("features", &features, "Instruction sets usable on this machine, by their names in /proc/cpuinfo.");
    m.attr("layout") = QUIRE_LAYOUT;  // changes with the memory layout of weights
    m.def("variants", [] {
        std::vector<std::string> names;
        for (const Kernels *kernels : usable_kernels()) names.emplace_back(kernels->name);
        return names;
    }, "Kernels that were compiled and run on this machine, the fastest first.");
    m.def(
        "rounding", [](const std::string &name, const std::string &f) { return std::string(variant(name).rounding(format(f))); },
        "variant"_a, "format"_a, "How a variant rounds products: the same result means the same bits.");
    m.def("needs", [] {
        std::vector<std::pair<std::string, std::vector<std::string>>> all;
        for (const Kernels *kernels : compiled_kernels()) {
            all.push_back({kernels->name, {}});
            for (const char *const *need = kernels->needs; *need; ++need) all.back().second.emplace_back(*need);
        }
        return all;
    }, "Kernels that were compiled, the slowest first, each with the features that it needs.");
    nb::class_<Pool>(m, "Pool", "Threads that stay; the one that calls is one of them.")
        .def(nb::new_([](int num_threads) { return std::make_shared<Pool>(num_threads); }), "num_threads"_a)
        .def_prop_ro("num_threads", &Pool::size);
    bind_program(m);
    bind_roof(m);
}
