// A lowered model: weights, buffers, KV caches and a list of instructions. `launch` runs the list for one step.
//
// All inputs are checked before they are used as pointers or indices: instructions when they are added, the arrays of a
// step when it is launched. A violation throws std::invalid_argument.

#pragma once

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"
#include "pages.h"
#include "pool.h"

namespace quire {

// Zeroed memory, aligned to a cache line. Untouched pages take no memory.
class Memory {
  public:
    explicit Memory(size_t bytes);
    ~Memory() { std::free(base_); }
    Memory(Memory &&other) noexcept : base_(other.base_), data_(other.data_) { other.base_ = nullptr; }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    Memory &operator=(Memory &&) = delete;

    uint8_t *data() const { return data_; }

  private:
    void *base_;
    uint8_t *data_;
};

// Weights, contiguous in huge pages if the system has them: a step reads all of them, and with small pages it would
// wait for address translation at every 4 KB.
class Arena {
  public:
    Arena() = default;
    ~Arena();
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;

    uint8_t *take(size_t bytes);  // zeroed, aligned to a cache line, valid as long as the arena

  private:
    std::vector<void *> chunks_;
    uint8_t *next_ = nullptr;
    size_t left_ = 0;
};

// Some columns of a buffer, the operand of an instruction. buffer < 0: none.
struct View {
    int buffer = -1, offset = 0, dim = 0;

    bool given() const { return buffer >= 0; }
};

struct CacheSpec {
    KvFormat format;
    int num_heads, key_dim, value_dim, window, chunk;
    int latent_dim = 0;  // see KvCache
    int group = 0;       // 0: blocks of all tokens; SOURCE_GROUP; else what add_window returned
};

constexpr int SOURCE_GROUP = -1;  // of the caches of an encoder's output

// Layers whose queries read no token further back than `window`, their own included. They have block tables of their
// own, and a cache of so many blocks.
struct WindowGroup {
    int window, num_blocks;
};

// Queries, keys and values of one step, and the sizes of bidirectional attention over them.
struct RowOperands {
    View q, k, v;
    int num_heads;  // of keys
    int window;     // a query reads the keys that are less than this far away; 0: all of its row
};

// Whose keys queries read: those of their row's text so far, of their row in this step, or of their row's source.
enum class KeysOf { TEXT, STEP, SOURCE };

// What attention does beside the products: see AttendArgs. Vectors by index; < 0: none.
struct AttendExtras {
    float scale, softcap;
    int sinks, slopes, distances;
};

// How a router chooses; see RouteArgs. Vectors by index; < 0: none.
struct RouteRule {
    int num_experts, top;
    Scoring scoring;
    bool is_scored_after, is_renormalized;
    int num_groups, top_groups, group_top;
    float factor, softcap;
    int correction, expert_scale;
};

// Stacks of one matrix for each expert, see `add_stack`, and their biases; < 0: none. See GateArgs for the activation.
struct ExpertStacks {
    int num_experts, ffn;
    int gate, up, down, gate_bias, up_bias, down_bias;
    MapKind kind;
    float limit, alpha, shift;
};

// What experts read and write. Their activations, and with `scaled` their inputs, have a row for each token and rank:
// row token * top + rank of a buffer that is `top` times as wide.
struct ExpertOperands {
    View x;
    int quants;  // of x
    View weights, chosen;
    View scaled;  // x times weights, if the input is weighted and not the answer
    int scaled_quants;
    View hidden;
    int hidden_quants;
    View out;
    bool is_on_input;
};

// What delta_rule reads. `work`: room for what its tiles share, see DeltaPrepareArgs.
struct DeltaOperands {
    View q, k, v, decay, beta, work;
};

struct DeltaSizes {
    int num_heads;  // of keys
    bool is_unit;   // queries and keys are divided by their lengths
    float scale, eps;
};

// What state_scan reads. `work`: see ScanPrepareArgs.
struct ScanOperands {
    View x, dt, b, c, work;
};

// Vectors of state_scan by index, < 0: none; and the bounds of its time steps.
struct ScanVectors {
    int rate, bias, skip;
    float low, high;
};

struct Bounds {
    int max_tokens, max_rows, max_logits, max_blocks, num_blocks, block_tokens;
};

// Where the caches of a group have the tokens of a step.
struct Tables {
    const int32_t *slots;         // [T]
    const int32_t *block_tables;  // [R][stride] of a window group, entries behind the window are undefined
    const int32_t *copies;        // [C][3]
    int stride, num_copies;
};

// What an encoder has computed of each row's source; see sources.cpp.
struct SourceTables {
    const int32_t *lengths;       // [R]; null: the step has no sources
    const int32_t *block_tables;  // [R][stride]
    int stride;
};

// The arrays of a step: T tokens, R rows, L logits; see Batch in Python.
struct Step {
    int num_tokens, num_rows, num_logits, num_grouped, max_top;
    const int32_t *token_ids, *positions, *row_of_token;           // [T]
    const int32_t *starts;                                         // [R + 1]
    const int32_t *lengths;                                        // [R]
    const int32_t *logits_at;                                      // [L]
    const int32_t *groups;                                         // [M][3]
    const int32_t *num_top;                                        // [L] how many of the likeliest tokens
    float *logits;                                                 // [L][vocab]
    int32_t *top_tokens;                                           // [L][max_top]
    float *top_logits;                                             // [L][max_top]

    const int32_t *sources, *targets;                              // [R] slots of states; null: none
    const int32_t *saves;                                          // [num_saves][2] token, slot
    int num_saves;

    SourceTables source;
    const int32_t *pools;        // [num_pools][3] first token, token after the last, kind
    int num_pools;
    float *pooled;               // [num_pools][dim] of a program that has logits too
    const int32_t *token_types;  // [T] null: none

    const std::function<void(int)> *fallback;                      // runs a node outside; null: none does
    std::vector<Tables> tables;                                    // [0]: of all tokens; then one for each window group

    int count(bool at_logits) const { return at_logits ? num_logits : num_tokens; }
};

// A packed matrix in memory with another owner, and the object that keeps it alive.
struct Panels {
    const uint8_t *data;
    size_t num_bytes;
    std::shared_ptr<const void> owner;
};

// Query tiles that attention processes together; see AttendItem.
struct Bundle {
    int first, num_tiles, num_shared;
};

// The memory of an item's weights.
struct Weights {
    const uint8_t *pieces[2] = {nullptr, nullptr};
    size_t num_bytes = 0;  // of each piece
};

using TokenBody = std::function<void(const Step &, int begin, int end)>;

// Items of work that any thread may do, in any order. An instruction is finished when all of its items are.
class Instruction {
  public:
    // The work of a late instruction is known only when an earlier instruction of the step has run, and opens it.
    explicit Instruction(bool is_late = false) : is_late_(is_late) {}
    virtual ~Instruction() = default;

    virtual int count(const Step &) const = 0;
    virtual void run(const Step &, int begin, int end, int thread) = 0;  // these items

    // Weights that an item reads; at most two pieces. None by default.
    virtual Weights weights(int) const { return {}; }

    // Prefetches what a thread's items read besides weights, while earlier work is still running.
    virtual void foresee(const Step &, int) const {}

    // Merges a token-wise operation into this instruction's items, if possible.
    virtual bool absorb(bool, const TokenBody &) { return false; }

    // With few tokens every thread has a lane of consecutive items, so that it reads weights in one stream; when its
    // own lane is finished it takes items from others. With many tokens there is one lane for all.
    void open(const Step &step, int num_threads);
    void prepare(const Step &step, int num_threads);  // before the first instruction: opens it, unless it is late
    bool is_pending() const { return is_pending_.load(std::memory_order_acquire); }  // late, and not opened yet
    bool take(int thread, int &begin, int &end);
    int first_of(int thread) const { return lanes_[static_cast<size_t>(thread) % lanes_.size()].begin; }
    int past_of(int thread) const { return lanes_[static_cast<size_t>(thread) % lanes_.size()].end; }

    int num_items = 0;                         // of this step
    alignas(64) std::atomic<int> finished{0};  // in a cache line that is not read to find work

  private:
    struct alignas(64) Lane {
        std::atomic<int> next{0};
        int begin = 0, end = 0;
    };

    void divide(const Step &step, int num_threads, int count);

    const bool is_late_;
    std::atomic<bool> is_pending_{false};
    alignas(64) int shares_ = 1;  // the rest of a lane is divided into this many: one is taken at a time
    std::vector<Lane> lanes_;
};

// What a thread has prefetched: this many bytes of the items of one instruction.
struct Fetched {
    size_t instruction = 0, num_bytes = 0;
};

// The keys of one step's rows in blocks of TILE, a row's blocks one after the other; see Step for the arrays.
struct RowTables {
    std::vector<int32_t> positions, slots, lengths, tables;
    int stride = 0;
};

class Program {
  public:
    Program(const Kernels &kernels, std::shared_ptr<Pool> pool, Bounds bounds);

    // --- operands; each returns an index
    int add_matrix(Format format, int rows, int cols, const uint8_t *source);
    int adopt_matrix(Format format, int rows, int cols, Panels panels);  // already packed; not copied
    // `count` matrices of one shape, one after the other, each padded to whole panels. `source`: the rows of the next.
    int add_stack(Format format, int count, int rows, int cols, const std::function<const uint8_t *()> &source);
    int add_vector(const float *numbers, int count);
    int add_rows(int dim, bool for_logits);
    int add_quants(int dim, bool for_logits);
    int add_window(WindowGroup group);  // before its caches
    int add_source_cache(CacheSpec spec, int num_blocks);  // all have as many blocks
    int add_cache(const CacheSpec &spec);
    int add_states(const StateLayout &layout, int num_states);

    // Use the kernels of another variant for products with matrices of this format. They must round alike.
    void multiply_with(Format format, const Kernels &kernels);

    // --- instructions, in execution order. Each processes the rows of its output: one per token, or one per entry of
    // logits_at; `rms_norm` and `gather` can also convert from the former to the latter.
    void embed(int table, View out);
    void embed_positions(int table, int offset, View out);
    void embed_types(int table, View out);
    void pool(View x, View out);
    void norm(View x, int weight, int bias, float eps, int group, bool is_layer, View out, int quants);
    void map(MapKind kind, View x, View y, int weight, const std::array<float, 4> &numbers, View out, int quants);
    void scale_by_position(View x, double beta, int span, int shift, View out);
    void gather(View x, View out, int quants);
    void rope_table(int frequencies, double scaling, View cos, View sin);
    void rope(View x, View cos, View sin, int head_dim, bool interleaved);
    void write_kv(int cache, View k, View v);
    void attend(int cache, View q, const AttendExtras &extras, View out, int quants);
    void attend_source(int cache, View q, const AttendExtras &extras, View out, int quants);
    void shift(View x, int by, View out);  // the row's token that is `by` further; zeros beyond its ends
    void place_heads(View x, View out, int num_heads, int offset);  // heads of x go to columns of heads of out
    void multiply_heads(int matrix, int num_heads, int columns, View x, View out);
    void attend_bidirectional(const RowOperands &operands, const AttendExtras &extras, View out, int quants);
    void product(const std::vector<int> &matrices, const std::vector<int> &biases, View x, int quants, View out,
                 View residual);
    void gate(MapKind kind, const std::vector<int> &matrices, const std::vector<int> &biases, View x, int quants,
              View out, int out_quants);
    void head(int matrix, int bias, float factor, float cap, View x, int quants);
    void route(const RouteRule &rule, View work, View weights, View chosen);  // logits: the first columns of `work`
    void experts(const ExpertStacks &stacks, const ExpertOperands &operands);
    void short_conv(int states, View x, int weight, int bias, std::optional<MapKind> activation, View out);
    void delta_rule(int states, const DeltaOperands &operands, const DeltaSizes &sizes, View out);
    void log_decay(View x, int rate, int bias, View out);
    void state_scan(int states, const ScanOperands &operands, const ScanVectors &vectors, View out);
    void call(int index, bool at_logits);  // Step::fallback with this index, if the step has such rows
    void output(View x);  // logits that other instructions made

    // --- running
    void launch(const Step &step);
    size_t release_blocks(const int32_t *blocks, int count);  // ascending; returns how many bytes were released
    void store_kv(int cache, const int32_t *slots, const float *k, const float *v, int num_tokens);
    // Blocks and states as bytes; see blocks.cpp. `group`: 0, or what add_window returned.
    size_t block_bytes(int group) const;
    void read_blocks(int group, const int32_t *blocks, int count, uint8_t *to);
    void write_blocks(int group, const int32_t *blocks, int count, const uint8_t *from);
    size_t state_bytes() const;
    void read_state(int slot, uint8_t *to);
    void write_state(int slot, const uint8_t *from);
    void store_state(int states, int slot, const float *numbers);
    void load_state(int states, int slot, float *numbers);
    void poke(View to, const float *numbers, int num_rows);
    void peek(View from, float *numbers, int num_rows) const;

    // --- for instructions
    const Kernels &kernels() const { return kernels_; }
    const Kernels &kernels_for(const Matrix &m) const { return *product_kernels_[static_cast<size_t>(m.format)]; }
    Pool &pool() const { return *pool_; }
    const Bounds &bounds() const { return bounds_; }
    const std::vector<Bundle> &bundles() const { return bundles_; }
    int bundle_tokens() const { return bundle_tokens_; }  // at most
    const QueryTile *tiles_of(const Bundle &bundle) const { return query_tiles_.data() + bundle.first; }
    const RowTables &row_tables() const { return row_tables_; }
    // The tile of a bundle in whose table the caches of a group find the bundle's shared blocks; -1: rows share none.
    int leader(int group, size_t bundle) const { return group ? leaders_[group - 1][bundle] : 0; }
    void fall_back(const Step &step, int index);
    void fail(const char *what);  // of a step, by an instruction that runs alone
    float *scratch(int thread) { return reinterpret_cast<float *>(scratch_[thread].data()); }

    int vocab() const { return vocab_; }
    int pooled_dim() const { return pools_are_rows_ ? 0 : pooled_dim_; }  // of Step::pooled
    int num_rows(View view) const { return rows_for(at_logits(view)); }  // of its buffer
    int num_caches() const { return static_cast<int>(caches_.size()); }
    size_t num_bytes() const { return num_bytes_; }

    Matrix matrix(int id) const;
    const float *vector(int id, int count) const;  // null for id < 0
    Rows rows(View view) const;
    QuantRows quants(int id, int dim) const;  // none for id < 0
    KvCache cache(int id) const;
    States states(int id) const;
    RowSpan row_span(const Step &step, int row) const;

  private:
    struct Buffer {
        int dim;
        bool for_logits;
        Memory memory;
    };
    struct Vector {
        int count;
        Memory memory;
    };
    struct CacheMemory {
        Pages pages;
        size_t block_bytes;
        int group;
    };
    // Keys and values of one step. Layers of the same shape use it one after the other.
    struct RowCache {
        int num_heads, key_dim, value_dim;
        Memory keys, values;
    };

    Memory take(size_t bytes);
    const Vector &at_vector(int id) const;
    Matrix shape_of(Format format, int rows, int cols) const;
    int append(Matrix matrix, const uint8_t *data);
    int rows_for(bool for_logits) const { return for_logits ? bounds_.max_logits : bounds_.max_tokens; }
    void append(std::unique_ptr<Instruction> instruction) { instructions_.push_back(std::move(instruction)); }
    // Token-wise neighbours become one instruction, unless `joins` is false: a body whose rows are not those of tokens
    // would overwrite what other items have yet to read.
    void append_token_wise(bool at_logits, const TokenBody &body, bool joins = true);
    void append_likeliest(Rows maxima);
    void scale_inputs(const ExpertOperands &x, const Output &to);
    bool at_logits(View rows, int quants = -1) const;
    void prepare(const Step &step);
    void work(const Step &step, int thread);
    bool fetch(size_t from, Fetched &done, int thread) const;
    void check(const Step &step) const;
    void check_row(const Step &step, int row) const;
    void check_table(const Step &step, int row, int group) const;
    void check_copies(const Step &step, int group) const;
    void check_sources(const Step &step) const;
    void check_moved(int group, const int32_t *blocks, int count) const;
    int num_blocks(int group) const {
        return group > 0 ? windows_[group - 1].num_blocks : group ? source_blocks_ : bounds_.num_blocks;
    }
    int first_block(const Step &step, int token, int group) const;
    void copy_blocks(const Step &step);
    void check_groups(const Step &step) const;
    void check_states(const Step &step) const;
    void check_pools(const Step &step) const;
    void find_saves(const Step &step);
    float *table(size_t count);
    const float *spread_rates(const StateLayout &layout, const float *rates, int dim);
    KvCache row_cache(int num_heads, int key_dim, int value_dim, int window);
    void append_attend(AttendArgs args, const AttendExtras &extras, KeysOf keys);
    void fill_row_tables(const Step &step);
    void cut_queries(const Step &step);
    int cut_row(const Step &step, int row, int num_shared, int most, int room);
    int find_leader(const Step &step, const Bundle &bundle, int group) const;

    const Kernels &kernels_;
    std::array<const Kernels *, NUM_FORMATS> product_kernels_;
    std::shared_ptr<Pool> pool_;
    const Bounds bounds_;
    std::mutex turn_;
    size_t num_bytes_ = 0;
    int vocab_ = 0, embed_rows_ = 0, position_rows_ = 0, type_rows_ = 0, pooled_dim_ = 0, num_calls_ = 0;
    bool pools_are_rows_ = false;
    size_t scratch_floats_ = 0;
    std::vector<Matrix> matrices_;
    Arena weights_;
    std::vector<std::shared_ptr<const void>> owners_;  // of matrices in memory with another owner
    std::vector<CacheMemory> cache_memory_;  // keys and values of each cache
    std::vector<Memory> scratch_;
    std::vector<Vector> vectors_;
    std::vector<Buffer> rows_, quants_;
    std::vector<WindowGroup> windows_;
    std::vector<KvCache> caches_;
    std::vector<std::unique_ptr<Instruction>> instructions_;
    std::vector<QueryTile> query_tiles_;
    std::vector<Bundle> bundles_;
    std::vector<std::vector<int>> leaders_;  // of each window group: see `leader`
    int bundle_tokens_ = 1, source_blocks_ = 0;
    std::vector<RowCache> row_caches_;
    std::vector<States> states_;
    std::vector<Memory> tables_;    // states, and weights in the layouts of recurrent layers
    std::vector<int> first_saves_;  // of this step's rows
    RowTables row_tables_;
    std::exception_ptr failure_;  // of the step's first call that threw
    Epoch progress_;  // grows whenever an instruction is finished
};

// Packs a weight from the layout of its file into panels. source: rows of a checkpoint, contiguous.
void pack(const Matrix &matrix, const uint8_t *source, uint8_t *target);

// Bytes of a row in the file.
size_t source_row_bytes(Format format, int cols);

// Prefetches into L2.
inline void prefetch(const void *p) {
#if defined(__GNUC__)
    __builtin_prefetch(p, 0, 2);
#else
    static_cast<void>(p);
#endif
}

inline void require(bool holds, const char *what) {
    if (!holds) throw std::invalid_argument(what);
}

}  // namespace quire
