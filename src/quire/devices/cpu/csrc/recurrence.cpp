// The instructions of recurrent layers, and the slots of their states. See states.h.

#include <algorithm>
#include <cstring>

#include "items.h"

namespace quire {

namespace {

constexpr int CONV_COLS = 256;  // of an item
constexpr int MAX_TAPS = 16;

// An item is a unit of the layer, such as a tile of its state, over all tokens of one row. Neighbouring items are those
// of all rows, so that threads have equal shares of the long ones.
class Recur final : public Instruction {
  public:
    using Body = std::function<void(const RowSpan &, int unit)>;

    Recur(const Program &program, int num_units, Body body)
        : program_(program), num_units_(num_units), body_(std::move(body)) {}

    int count(const Step &step) const override { return num_units_ * step.num_rows; }

    void run(const Step &step, int begin, int end, int) override {
        for (int item = begin; item < end; ++item)
            body_(program_.row_span(step, item % step.num_rows), item / step.num_rows);
    }

  private:
    const Program &program_;
    const int num_units_;
    const Body body_;
};

}  // namespace

int Program::add_states(const StateLayout &layout, int num_states) {
    require(layout.matrices > 0 && layout.rows >= 0 && layout.cols > 0 && layout.width > 0 && num_states >= 0,
            "a state has matrices with columns");
    Memory memory = take(sizeof(float) * layout.size() * num_states);
    states_.push_back({layout, num_states, reinterpret_cast<float *>(memory.data())});
    tables_.push_back(std::move(memory));
    return static_cast<int>(states_.size()) - 1;
}

States Program::states(int id) const {
    require(id >= 0 && static_cast<size_t>(id) < states_.size(), "there are no such states");
    return states_[static_cast<size_t>(id)];
}

void Program::store_state(int id, int slot, const float *numbers) {
    const States s = states(id);
    require(slot >= 0 && slot < s.num_states, "there is no such slot");
    std::lock_guard<std::mutex> lock(turn_);
    float *to = s.tile(slot, 0, 0);
    std::fill_n(to, s.layout.size(), s.layout.has_scales ? 1.0f : 0.0f);
    for (size_t i = 0; i < s.layout.outer_size(); ++i) to[s.layout.place(i)] = numbers[i];
}

void Program::load_state(int id, int slot, float *numbers) {
    const States s = states(id);
    require(slot >= 0 && slot < s.num_states, "there is no such slot");
    std::lock_guard<std::mutex> lock(turn_);
    const float *from = s.tile(slot, 0, 0);
    for (size_t i = 0; i < s.layout.outer_size(); ++i) {
        const size_t at = s.layout.place(i);
        numbers[i] = s.layout.has_scales ? from[at] * from[s.layout.scale_of(at)] : from[at];
    }
}

// No slot is written twice, and none is read that another row writes: rows run in any order.
void Program::check_states(const Step &s) const {
    if (states_.empty()) return;
    require(s.sources && s.targets, "states: recurrent layers need the slots of their rows");
    int num_states = states_[0].num_states;
    for (const States &each : states_) num_states = std::min(num_states, each.num_states);
    std::vector<int> writer(static_cast<size_t>(num_states), -1);
    const auto write = [&](int slot, int row) {
        require(slot >= 0 && slot < num_states, "states: there is no such slot");
        require(writer[static_cast<size_t>(slot)] < 0, "states: two states would be written to one slot");
        writer[static_cast<size_t>(slot)] = row;
    };
    for (int row = 0; row < s.num_rows; ++row) write(s.targets[row], row);
    for (int i = 0; i < s.num_saves; ++i) {
        const int token = s.saves[2 * i];
        require(token >= 0 && token < s.num_tokens && (i == 0 || s.saves[2 * i - 2] <= token),
                "saves: there is no such token, or they do not ascend");
        write(s.saves[2 * i + 1], s.num_rows);
    }
    for (int row = 0; row < s.num_rows; ++row) {
        const int slot = s.sources[row];
        require(slot >= -1 && slot < num_states, "states: there is no such slot");
        require(slot < 0 || writer[static_cast<size_t>(slot)] < 0 || writer[static_cast<size_t>(slot)] == row,
                "states: a row reads a slot that another row writes");
    }
}

// The saves of a row are between two entries.
void Program::find_saves(const Step &s) {
    first_saves_.assign(static_cast<size_t>(s.num_rows) + 1, s.num_saves);
    for (int row = 0, next = 0; row < s.num_rows; ++row) {
        while (next < s.num_saves && s.saves[2 * next] < s.starts[row]) ++next;
        first_saves_[static_cast<size_t>(row)] = next;
    }
}

RowSpan Program::row_span(const Step &s, int row) const {
    const int first = first_saves_[static_cast<size_t>(row)], past = first_saves_[static_cast<size_t>(row) + 1];
    return {s.starts[row], s.starts[row + 1], s.sources[row], s.targets[row],
            s.saves + 2 * static_cast<size_t>(first), past - first};
}

// Memory of zeros that lasts as long as the program.
float *Program::table(size_t count) {
    tables_.push_back(take(sizeof(float) * count));
    return reinterpret_cast<float *>(tables_.back().data());
}

// Weights [dim][taps] become [dim / 8][taps][8]: taps of a column lie together, since rows whose distance is a multiple
// of a page are in the same few lines of the first cache.
void Program::short_conv(int id, View x, int weight, int bias, std::optional<MapKind> activation, View out) {
    const States s = states(id);
    const int dim = s.layout.cols, taps = s.layout.rows + 1, width = s.layout.width;
    require(s.layout.matrices == 1 && s.layout.tiles() == 1 && !s.layout.has_scales && taps <= MAX_TAPS,
            "short_conv: the state has one tile");
    require(x.dim == dim && out.dim == dim && !at_logits(x) && !at_logits(out), "short_conv: other columns or rows");
    const float *given = vector(weight, dim * taps), *shift = vector(bias, dim);
    const Rows from = rows(x), to = rows(out);
    require(given && from.data && to.data, "short_conv: an operand is missing");
    require(!activation || *activation <= MapKind::TANH, "short_conv: not an activation");
    float *weights = table(static_cast<size_t>(taps + 2) * width), *shifts = weights + static_cast<size_t>(taps) * width;
    for (int column = 0; column < dim; ++column)
        for (int i = 0; i < taps; ++i)
            weights[(column / LANES * taps + i) * LANES + column % LANES] = given[column * taps + i];
    if (shift) std::copy_n(shift, dim, shifts);
    const MapKind kind = activation.value_or(MapKind::SILU);
    const ConvArgs args{from, weights, shift ? shifts : nullptr, shifts + width, s, activation.has_value(), kind, to};
    append(std::make_unique<Recur>(*this, parts(dim, CONV_COLS), [this, args, dim](const RowSpan &row, int unit) {
        kernels_.short_conv(args, row, unit * CONV_COLS, std::min(CONV_COLS, dim - unit * CONV_COLS));
    }));
}

void Program::delta_rule(int id, const DeltaOperands &x, const DeltaSizes &sizes, View out) {
    const States s = states(id);
    const int heads = s.layout.matrices, key_dim = s.layout.rows, num_heads = sizes.num_heads;
    require(s.layout.width == STATE_COLS && !s.layout.is_transposed && s.layout.has_scales == (x.decay.dim == heads),
            "delta_rule: the state has another layout");
    require(num_heads > 0 && heads % num_heads == 0, "delta_rule: not a whole number of heads for each key head");
    const bool is_by_channel = x.decay.dim != heads;
    require(x.q.dim == num_heads * key_dim && x.k.dim == x.q.dim && x.v.dim == heads * s.layout.cols &&
                x.beta.dim == heads && x.decay.dim == heads * (is_by_channel ? key_dim : 1) && out.dim == x.v.dim,
            "delta_rule: an operand has another width");
    require(x.work.dim == delta_width(num_heads, heads, key_dim, is_by_channel), "delta_rule: no room to work");
    for (const View &each : {x.q, x.k, x.v, x.decay, x.beta, x.work, out})
        require(each.given() && !at_logits(each), "delta_rule: it takes rows of tokens");
    const DeltaPrepareArgs first{rows(x.q), rows(x.k), rows(x.decay), rows(x.work), num_heads,  heads,
                                 key_dim,   is_by_channel, sizes.is_unit, sizes.scale, sizes.eps};
    append_token_wise(false, [this, first](const Step &, int begin, int end) {
        kernels_.delta_prepare(first, begin, end);
    });
    const DeltaArgs args{rows(x.work), rows(x.v), rows(x.beta), num_heads, is_by_channel, s, rows(out)};
    const int tiles = s.layout.tiles();
    append(std::make_unique<Recur>(*this, heads * tiles, [this, args, tiles](const RowSpan &row, int unit) {
        kernels_.delta_rule(args, row, unit / tiles, unit % tiles);
    }));
}

// A rate is that of several neighbours.
void Program::log_decay(View x, int rate, int bias, View out) {
    const int heads = at_vector(rate).count;
    require(heads > 0 && x.dim % heads == 0 && out.dim == x.dim, "log_decay: not a whole number of columns for a rate");
    const Rows from = rows(x), to = rows(out);
    const float *given = vector(rate, heads), *shift = vector(bias, x.dim);
    require(given && shift && from.data && to.data, "log_decay: an operand is missing");
    require(at_logits(x) == at_logits(out), "log_decay: rows of tokens and of logits");
    float *rates = table(static_cast<size_t>(x.dim));
    for (int i = 0; i < x.dim; ++i) rates[i] = given[i / (x.dim / heads)];
    const DecayArgs args{from, rates, shift, x.dim, to};
    append_token_wise(at_logits(x), [this, args](const Step &, int begin, int end) {
        kernels_.log_decay(args, begin, end);
    });
}

// Rates of rows of the state, [heads][size], in the layout of the state.
const float *Program::spread_rates(const StateLayout &layout, const float *rates, int dim) {
    float *out = table(layout.size());
    for (size_t i = 0; i < layout.outer_size(); ++i) {
        const size_t row = i % layout.rows, channel = i / layout.rows;
        out[layout.place(i)] = rates[channel / dim * layout.rows + row];
    }
    return out;
}

void Program::state_scan(int id, const ScanOperands &x, const ScanVectors &given, View out) {
    const States s = states(id);
    const int groups = s.layout.matrices, size = s.layout.rows, heads = x.dt.dim, channels = groups * s.layout.cols;
    require(s.layout.width == STATE_COLS && s.layout.is_transposed, "state_scan: the state has another layout");
    require(heads > 0 && channels % heads == 0 && s.layout.cols % (channels / heads) == 0,
            "state_scan: not a whole number of channels for each head");
    const int dim = channels / heads, num_rates = at_vector(given.rate).count;
    require(x.x.dim == channels && x.b.dim == groups * size && x.c.dim == x.b.dim && out.dim == channels,
            "state_scan: an operand has another width");
    require(num_rates == heads || num_rates == heads * size, "state_scan: a rate for each head, or for each row");
    const bool is_by_row = num_rates != heads;
    require(s.layout.has_scales != is_by_row, "state_scan: the state has another layout");
    require(x.work.dim == (is_by_row ? heads : 2 * heads), "state_scan: no room to work");
    for (const View &each : {x.x, x.dt, x.b, x.c, x.work, out})
        require(each.given() && !at_logits(each), "state_scan: it takes rows of tokens");
    const float *rate = vector(given.rate, num_rates);
    const ScanPrepareArgs first{rows(x.dt), rows(x.work), vector(given.bias, heads), is_by_row ? nullptr : rate,
                                heads,      given.low,    given.high};
    append_token_wise(false, [this, first](const Step &, int begin, int end) {
        kernels_.scan_prepare(first, begin, end);
    });
    const ScanArgs args{rows(x.work), rows(x.x), rows(x.b), rows(x.c), is_by_row ? spread_rates(s.layout, rate, dim) : nullptr,
                        vector(given.skip, heads), heads, dim, s, rows(out)};
    const int tiles = s.layout.tiles();
    append(std::make_unique<Recur>(*this, groups * tiles, [this, args, tiles](const RowSpan &row, int unit) {
        kernels_.state_scan(args, row, unit / tiles, unit % tiles);
    }));
}

}  // namespace quire
