// The instructions of experts. Which experts a step uses, and for how many tokens, is known only when it runs: `Group`
// sorts the tokens by expert, and opens the two instructions that multiply.
//
// A slot is a token and one of its ranks: token * top + rank.

#include <vector>

#include "items.h"

namespace quire {

namespace {

// Slots of one expert: [begin, end) of the plan's lists.
struct Stretch {
    int expert, begin, end;
};

// The slots of a step, sorted by expert, and for one expert ascending.
struct Plan {
    std::vector<int32_t> slots, tokens;  // and the token of each
    std::vector<int32_t> places;         // slots counted from the first of their range, see Down
    std::vector<Stretch> experts;        // that are used, each once
    std::vector<Stretch> chunks;         // of experts: as many tokens as are multiplied at once
    std::vector<int32_t> ends;           // of each expert's slots while they are sorted
};

// Matrices of one shape, each of whole panels.
struct Stack {
    Matrix each;  // the first

    Matrix matrix(int expert) const {
        Matrix found = each;
        if (found.data) found.data += each.num_bytes() * static_cast<size_t>(expert);
        return found;
    }
    const float *bias(const float *all, int expert) const {
        return all ? all + static_cast<size_t>(expert) * each.num_panels() * LANES : nullptr;
    }
};

// Sorts slots by expert, and opens the instructions that depend on it. One thread does it.
class Group final : public Instruction {
  public:
    // The instructions that it opens, and how many tokens each processes at once.
    struct Dependents {
        Instruction *gate, *down;
        int chunk, range;
    };

    Group(Program &program, std::shared_ptr<Plan> plan, Rows chosen, int top, int num_experts, bool at_logits,
          const Dependents &next)
        : program_(program), plan_(std::move(plan)), chosen_(chosen), top_(top), num_experts_(num_experts),
          at_logits_(at_logits), next_(next) {}

    int count(const Step &step) const override { return step.count(at_logits_) > 0; }

    void run(const Step &step, int, int, int) override {
        if (!sort(step.count(at_logits_))) program_.fail("experts: there is no such expert");
        cut();
        next_.gate->open(step, program_.pool().size());
        next_.down->open(step, program_.pool().size());
    }

  private:
    // False: a number of `chosen` is no expert. Then the plan is empty.
    bool sort(int num_tokens) {
        const size_t num_slots = static_cast<size_t>(num_tokens) * top_;
        plan_->slots.resize(num_slots), plan_->tokens.resize(num_slots), plan_->places.resize(num_slots);
        plan_->experts.clear(), plan_->ends.assign(static_cast<size_t>(num_experts_), 0);
        for (int token = 0; token < num_tokens; ++token)
            for (int rank = 0; rank < top_; ++rank) {
                const float expert = chosen_.row(token)[rank];
                if (!(expert >= 0.0f && expert < static_cast<float>(num_experts_))) return false;
                ++plan_->ends[static_cast<size_t>(expert)];
            }
        int32_t begin = 0;
        for (int expert = 0; expert < num_experts_; ++expert) {
            const int32_t count = plan_->ends[static_cast<size_t>(expert)];
            if (count) plan_->experts.push_back({expert, begin, begin + count});
            plan_->ends[static_cast<size_t>(expert)] = begin;
            begin += count;
        }
        for (int token = 0, slot = 0; token < num_tokens; ++token)
            for (int rank = 0; rank < top_; ++rank, ++slot) {
                const size_t place = static_cast<size_t>(plan_->ends[static_cast<size_t>(chosen_.row(token)[rank])]++);
                plan_->slots[place] = slot, plan_->tokens[place] = token, plan_->places[place] = slot % (next_.range * top_);
            }
        return true;
    }

    // Chunks of one expert are about equal, and whole tiles.
    void cut() {
        constexpr int TILE_TOKENS = 8;
        plan_->chunks.clear();
        for (const Stretch &all : plan_->experts) {
            const int count = all.end - all.begin, each = parts(count, parts(count, next_.chunk));
            const int size = parts(each, TILE_TOKENS) * TILE_TOKENS;
            for (int begin = all.begin; begin < all.end; begin += size)
                plan_->chunks.push_back({all.expert, begin, std::min(begin + size, all.end)});
        }
    }

    Program &program_;
    const std::shared_ptr<Plan> plan_;
    const Rows chosen_;
    const int top_, num_experts_;
    const bool at_logits_;
    const Dependents next_;
};

// Gate, up and activation. An item is a chunk of an expert's tokens, and 32 columns.
class Gate final : public Instruction {
  public:
    Gate(const Program &program, std::shared_ptr<Plan> plan, const GateArgs &args, Stack gate, Stack up, bool of_slots)
        : Instruction(true), program_(program), plan_(std::move(plan)), args_(args), gate_(gate), up_(up),
          of_slots_(of_slots), num_groups_(parts(gate.each.rows, BLOCK)) {}

    int count(const Step &) const override { return static_cast<int>(plan_->chunks.size()) * num_groups_; }

    void run(const Step &, int item, int end, int) override {
        // One variant computes both products, so one that was chosen for a single format serves no mixed pair.
        const bool is_mixed = gate_.each.format != up_.each.format;
        const Kernels &kernels = is_mixed ? program_.kernels() : program_.kernels_for(gate_.each);
        GateArgs args = args_;
        args.order = {of_slots_ ? plan_->slots.data() : plan_->tokens.data(), plan_->slots.data()};
        for (; item < end; ++item) {
            const Stretch &chunk = plan_->chunks[static_cast<size_t>(item / num_groups_)];
            args.gate = gate_.matrix(chunk.expert), args.up = up_.matrix(chunk.expert);
            args.gate_bias = gate_.bias(args_.gate_bias, chunk.expert);
            args.up_bias = up_.bias(args_.up_bias, chunk.expert);
            kernels.gate(args, item % num_groups_, chunk.begin, chunk.end);
        }
    }

    Weights weights(int item) const override {
        const size_t chunk = static_cast<size_t>(item / num_groups_);
        if (chunk >= plan_->chunks.size()) return {};
        const int expert = plan_->chunks[chunk].expert, first = item % num_groups_ * PANELS;
        const Matrix gate = gate_.matrix(expert), up = up_.matrix(expert);
        return {{gate.panel(first), up.data ? up.panel(first) : nullptr},
                gate.panel_bytes * std::min(PANELS, gate.num_panels() - first)};
    }

  private:
    const Program &program_;
    const std::shared_ptr<Plan> plan_;
    const GateArgs args_;
    const Stack gate_, up_;
    const bool of_slots_;  // inputs have a row for each slot, not for each token
    const int num_groups_;
};

// The last product, and the sum of a token's answers. An item is up to 32 columns, and a range of tokens whose answers
// stay in L2; all experts of these tokens.
class Down final : public Instruction {
  public:
    Down(Program &program, std::shared_ptr<Plan> plan, const ProductArgs &args, Stack down, const CombineArgs &sum,
         bool at_logits)
        : Instruction(true), program_(program), plan_(std::move(plan)), args_(args), down_(down), sum_(sum),
          at_logits_(at_logits), range_(range_of(sum.top)), chunk_(tokens_at_once(program.kernels().chunks, down.each)),
          panels_(panels_of(down.each, program.pool().size())) {}

    // Tokens of a range.
    static int range_of(int top) { return std::max(1, 2048 / top); }
    static size_t scratch(int top) { return static_cast<size_t>(range_of(top)) * top * BLOCK; }

    int count(const Step &step) const override {
        return parts(down_.each.num_panels(), panels_) * parts(step.count(at_logits_), range_);
    }

    void run(const Step &step, int item, int end, int thread) override {
        const int num_ranges = parts(step.count(at_logits_), range_);
        for (; item < end; ++item) {
            const int begin = item % num_ranges * range_, past = std::min(begin + range_, step.count(at_logits_));
            answer(begin, past, item / num_ranges * panels_, program_.scratch(thread));
        }
    }

    // Of the first experts.
    Weights weights(int item) const override {
        if (plan_->experts.empty()) return {};
        const int num_groups = parts(down_.each.num_panels(), panels_), first = std::min(item, num_groups - 1) * panels_;
        const Matrix m = down_.matrix(plan_->experts.front().expert), n = down_.matrix(plan_->experts.back().expert);
        return {{m.panel(first), n.panel(first)}, m.panel_bytes * std::min(panels_, m.num_panels() - first)};
    }

  private:
    // With one token an item is only its columns: fewer of them, if there are many threads.
    static int panels_of(const Matrix &m, int num_threads) {
        int panels = PANELS;
        while (panels > 1 && parts(m.num_panels(), panels) < 4 * num_threads) panels /= 2;
        return panels;
    }

    void answer(int begin, int past, int panel, float *scratch) const {
        const Kernels &kernels = program_.kernels_for(down_.each);
        const Rows answers{scratch, static_cast<size_t>(BLOCK)};
        const int column = panel * LANES, width = std::min(panels_ * LANES, down_.each.rows - column);
        for (const Stretch &all : plan_->experts) {
            const Stretch some = within(all, begin * sum_.top, past * sum_.top);
            if (some.begin == some.end) continue;
            ProductArgs args = args_;
            args.matrix = down_.matrix(all.expert);
            args.matrix.data = args.matrix.panel(panel), args.matrix.rows = width;
            args.bias = down_.bias(args_.bias, all.expert);
            if (args.bias) args.bias += column;
            args.out = answers;
            args.order = {plan_->slots.data(), plan_->places.data()};
            for (int at = some.begin; at < some.end; at += chunk_)
                kernels.product(args, 0, args.matrix.num_panels(), at, std::min(at + chunk_, some.end));
        }
        CombineArgs sum = sum_;
        sum.answers = answers, sum.width = width, sum.out.data += column;
        kernels.combine(sum, begin, past);
    }

    // The slots of an expert from `first` up to `past`.
    Stretch within(const Stretch &all, int first, int past) const {
        const int32_t *from = plan_->slots.data() + all.begin, *to = plan_->slots.data() + all.end;
        const int32_t *begin = std::lower_bound(from, to, first), *end = std::lower_bound(begin, to, past);
        return {all.expert, all.begin + static_cast<int>(begin - from), all.begin + static_cast<int>(end - from)};
    }

    Program &program_;
    const std::shared_ptr<Plan> plan_;
    const ProductArgs args_;
    const Stack down_;
    const CombineArgs sum_;
    const bool at_logits_;
    const int range_, chunk_;
    const int panels_;  // of an item
};

Stack stack_of(const Matrix &all, int num_matrices, int rows) {
    Stack stack{all};
    stack.each.rows = rows;
    require(num_matrices * stack.each.num_panels() == all.num_panels(), "experts: a stack of another size");
    return stack;
}

// Of a value that is `top` times as wide, rows for each slot.
QuantRows by_slot(QuantRows rows, int top) {
    rows.blocks /= top;
    return rows;
}

Rows by_slot(Rows rows, View view, int top) {
    require(!rows.data || view.offset == 0, "experts: rows of slots are whole buffers");
    return {rows.data, static_cast<size_t>(view.dim / top)};
}

}  // namespace

void Program::route(const RouteRule &rule, View work, View weights, View chosen) {
    const int count = rule.num_experts, groups = rule.num_groups, top = rule.top;
    require(count > 0 && groups > 0 && count % groups == 0, "route: not a whole number of groups");
    require(rule.top_groups > 0 && rule.group_top > 0 && rule.group_top <= count / groups, "route: groups are smaller");
    require(top > 0 && top <= count / groups * std::min(groups, rule.top_groups), "route: fewer experts than are chosen");
    require(work.dim >= route_width(count, groups, rule.group_top), "route: too little working memory");
    const RouteArgs args{rows(work), count, top, rule.scoring, rule.is_scored_after, rule.is_renormalized,
                         groups, rule.top_groups, rule.group_top, rule.factor, rule.softcap,
                         vector(rule.correction, count), vector(rule.expert_scale, count), rows(weights), rows(chosen)};
    const bool narrow = at_logits(work);
    require(args.work.data && args.weights.data && args.chosen.data, "route: an operand is missing");
    require(weights.dim == top && chosen.dim == top, "route: outputs do not fit");
    require(at_logits(weights) == narrow && at_logits(chosen) == narrow, "route: rows of tokens and of logits");
    append_token_wise(narrow, [this, args](const Step &, int begin, int end) { kernels_.route(args, begin, end); });
}

// Inputs that are weighted: a row for each slot. The buffer may be one that tokens had rows in just before.
void Program::scale_inputs(const ExpertOperands &x, const Output &to) {
    const Rows from = rows(x.x), weights = rows(x.weights);
    require(from.data, "experts: an input that is weighted is float");
    const TokenBody body = [=](const Step &, int begin, int end) {
        const int top = x.weights.dim;
        for (int slot = begin * top; slot < end * top; ++slot) {
            const float factor = weights.row(slot / top)[slot % top];
            const Rows token{from.row(slot / top), 0};
            kernels_.map({MapKind::SCALE, token, {}, nullptr, factor, 0, 0, 0, x.x.dim, to}, slot, slot + 1);
        }
    };
    append_token_wise(at_logits(x.x), body, false);
}

void Program::experts(const ExpertStacks &s, const ExpertOperands &x) {
    const int top = x.weights.dim, dim = x.x.dim, count = s.num_experts, ffn = s.ffn;
    require(count > 0 && ffn > 0 && s.kind <= MapKind::TANH, "experts: no experts, or not an activation");
    require(x.chosen.dim == top && x.out.dim == dim, "experts: operands do not fit");
    const Stack up = stack_of(matrix(s.up), count, ffn), down = stack_of(matrix(s.down), count, dim);
    const bool has_gate = s.gate >= 0;
    const Stack first = has_gate ? stack_of(matrix(s.gate), count, ffn) : up;
    Stack second = up;
    if (!has_gate) second.each.data = nullptr;
    const auto bias = [&](int id, const Stack &stack) { return vector(id, count * stack.each.num_panels() * LANES); };
    const Output hidden{by_slot(rows(x.hidden), x.hidden, top), by_slot(quants(x.hidden_quants, top * ffn), top)};
    Rows from = rows(x.x);
    QuantRows from_quants = quants(x.quants, dim);
    if (x.is_on_input) {
        from = by_slot(rows(x.scaled), x.scaled, top), from_quants = by_slot(quants(x.scaled_quants, top * dim), top);
        scale_inputs(x, {from, from_quants});
    }
    for (const Stack *stack : {&first, &up}) check_operand(stack->each, from, from_quants, dim);
    check_operand(down.each, hidden.rows, hidden.quants, ffn);
    const bool narrow = at_logits(x.out);
    for (const View &view : {x.x, x.weights, x.chosen, x.scaled, x.hidden})
        require(!view.given() || at_logits(view) == narrow, "experts: rows of tokens and of logits");
    require(rows(x.chosen).data && rows(x.weights).data && rows(x.out).data, "experts: an operand is missing");

    GateArgs gate{first.each, second.each, s.kind, bias(has_gate ? s.gate_bias : s.up_bias, up),
                  bias(has_gate ? s.up_bias : -1, up), from, from_quants, hidden};
    gate.limit = s.limit, gate.alpha = s.alpha, gate.shift = s.shift;
    const ProductArgs product{down.each, bias(s.down_bias, down), hidden.rows, hidden.quants, {}, {}};
    const CombineArgs sum{{}, x.is_on_input ? Rows{} : rows(x.weights), top, 0, rows(x.out)};
    const auto plan = std::make_shared<Plan>();
    auto multiply = std::make_unique<Gate>(*this, plan, gate, first, second, x.is_on_input);
    auto answer = std::make_unique<Down>(*this, plan, product, down, sum, narrow);
    const int chunk = std::min(tokens_at_once(kernels_.chunks, first.each), tokens_at_once(kernels_.chunks, up.each));
    const Group::Dependents dependents{multiply.get(), answer.get(), chunk, Down::range_of(top)};
    append(std::make_unique<Group>(*this, plan, rows(x.chosen), top, count, narrow, dependents));
    append(std::move(multiply));
    append(std::move(answer));
    scratch_floats_ = std::max(scratch_floats_, Down::scratch(top));
}

}  // namespace quire
