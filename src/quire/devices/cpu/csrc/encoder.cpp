// Instructions of models that turn a text into one vector: types of tokens, and pooling.

#include <algorithm>

#include "items.h"

namespace quire {

namespace {

enum PoolKind { SUM, MEAN, WEIGHTED_SUM, WEIGHTED_MEAN, NUM_POOL_KINDS };  // see ops/pool.py

// An item is the tokens of one pool, added in their order: the vector does not depend on other rows.
class Pooling final : public Instruction {
  public:
    Pooling(Rows from, Rows to, int dim) : from_(from), to_(to), dim_(dim) {}

    int count(const Step &step) const override { return step.num_pools; }

    void run(const Step &step, int begin, int end, int) override {
        for (int i = begin; i < end; ++i) {
            const int32_t *pool = step.pools + 3 * static_cast<size_t>(i);
            float *out = to_.data ? to_.row(i) : step.pooled + static_cast<size_t>(i) * dim_;
            const bool is_weighted = pool[2] == WEIGHTED_SUM || pool[2] == WEIGHTED_MEAN;
            float total = 0.0f;
            std::fill_n(out, dim_, 0.0f);
            for (int token = pool[0]; token < pool[1]; ++token) {
                const float weight = is_weighted ? static_cast<float>(step.positions[token] + 1) : 1.0f;
                const float *x = from_.row(token);
                for (int k = 0; k < dim_; ++k) out[k] += x[k] * weight;
                total += weight;
            }
            if (pool[2] != MEAN && pool[2] != WEIGHTED_MEAN) continue;
            for (int k = 0; k < dim_; ++k) out[k] *= 1.0f / total;
        }
    }

  private:
    const Rows from_, to_;
    const int dim_;
};

}  // namespace

// Types beyond the table are refused when the step is launched.
void Program::embed_types(int table, View out) {
    const Matrix m = matrix(table);
    const Rows to = rows(out);
    require(to.data && out.dim == m.cols, "embed_types: the output has another width than the table");
    type_rows_ = type_rows_ ? std::min(type_rows_, m.rows) : m.rows;
    append_token_wise(false, [this, m, to](const Step &step, int begin, int end) {
        kernels_.embed(m, step.token_types, to, begin, end);
    });
}

// To rows of logits_at, of which the step then has one for each pool; or, if the program has logits too, to the
// caller's array.
void Program::pool(View x, View out) {
    const Rows from = rows(x), to = rows(out);
    require(from.data && !at_logits(x) && pooled_dim_ == 0, "pool: it takes rows of tokens, once");
    require(!out.given() || (at_logits(out) && out.dim == x.dim), "pool: the output has other rows or columns");
    pooled_dim_ = x.dim, pools_are_rows_ = out.given();
    append(std::make_unique<Pooling>(from, to, x.dim));
}

void Program::check_pools(const Step &s) const {
    for (int i = 0; i < s.num_tokens && type_rows_; ++i)
        require(s.token_types && s.token_types[i] >= 0 && s.token_types[i] < type_rows_, "token_types: no such type");
    require(s.num_pools == 0 || pooled_dim_, "pools: the program does not pool");
    require(!pools_are_rows_ || s.num_pools == s.num_logits, "pools: one for each of logits_at");
    for (const int32_t *p = s.pools; p < s.pools + 3 * static_cast<size_t>(s.num_pools); p += 3) {
        require(p[0] >= 0 && p[0] < p[1] && p[1] <= s.num_tokens, "pools: there are no such tokens");
        require(p[2] >= 0 && p[2] < NUM_POOL_KINDS, "pools: there is no such kind");
    }
}

}  // namespace quire
