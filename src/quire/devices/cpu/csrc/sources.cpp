// What reads an encoder's output, and what moves values between the tokens of a row.
//
// A source is what an encoder has computed once for a request: keys and values for each layer of the decoder, in blocks.
// The caller stores them with `store_kv`; every token of a row reads all of its row's source.

#include <algorithm>

#include "items.h"

namespace quire {

namespace {

// A token reads another one, so all of the input is finished before the first item, and nothing joins this.
class Shift final : public Instruction {
  public:
    Shift(Rows x, Rows out, int dim, int by) : x_(x), out_(out), dim_(dim), by_(by) {}

    int count(const Step &step) const override { return step.num_tokens; }

    void run(const Step &step, int begin, int end, int) override {
        for (int token = begin; token < end; ++token) {
            const int row = step.row_of_token[token], from = token + by_;
            if (from < step.starts[row] || from >= step.starts[row + 1])
                std::fill_n(out_.row(token), dim_, 0.0f);
            else
                std::copy_n(x_.row(from), dim_, out_.row(token));
        }
    }

  private:
    const Rows x_, out_;
    const int dim_, by_;
};

}  // namespace

int Program::add_source_cache(CacheSpec spec, int num_blocks) {
    require(num_blocks > 0 && (source_blocks_ == 0 || num_blocks == source_blocks_), "sources have the same blocks");
    require(static_cast<int64_t>(num_blocks) * bounds_.block_tokens <= INT32_MAX,
            "slots are counted in 32 bits: too many blocks");
    source_blocks_ = num_blocks;
    spec.group = SOURCE_GROUP;
    return add_cache(spec);
}

void Program::attend_source(int id, View q, const AttendExtras &extras, View out, int out_quants) {
    const KvCache c = cache(id);
    const int kv_dim = c.num_heads() * c.keys.dim;
    require(c.group == SOURCE_GROUP, "attend_source: not a cache of sources");
    require(q.dim % kv_dim == 0, "attend_source: not a whole number of heads");
    const int group = q.dim / kv_dim, width = group * c.num_heads() * c.value_dim();
    require(!out.given() || out.dim == width, "attend_source: the output has another width than the values");
    AttendArgs args{};
    args.cache = c, args.q = rows(q), args.group = group, args.out = {rows(out), quants(out_quants, width)};
    append_attend(args, extras, KeysOf::SOURCE);
}

void Program::shift(View x, int by, View out) {
    const Rows from = rows(x), to = rows(out);
    require(from.data && to.data && from.data != to.data && x.dim == out.dim, "shift: operands of one width, apart");
    require(!at_logits(x) && !at_logits(out), "shift: it takes rows of tokens");
    append(std::make_unique<Shift>(from, to, x.dim, by));
}

void Program::check_sources(const Step &s) const {
    if (source_blocks_ == 0) return;
    require(s.source.lengths, "sources: each row has one");
    for (int row = 0; row < s.num_rows; ++row) {
        const int length = s.source.lengths[row], past = (length + bounds_.block_tokens - 1) / bounds_.block_tokens;
        require(length > 0 && past <= s.source.stride, "sources: a row's source is longer than its block table");
        const int32_t *table = s.source.block_tables + static_cast<size_t>(row) * s.source.stride;
        for (int i = 0; i < past; ++i)
            require(table[i] >= 0 && table[i] < source_blocks_, "sources: there is no such block");
    }
}

}  // namespace quire
