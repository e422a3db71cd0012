// A program's memory, the checks of its inputs, and the loop that runs it. See program.h.

#include "program.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quire {

namespace {

constexpr size_t LINE = 64;
constexpr int FEW_TOKENS = 8;  // up to here a step is bound by memory, not by arithmetic

template <class Item>
const Item &at(const std::vector<Item> &items, int id, const char *what) {
    require(id >= 0 && static_cast<size_t>(id) < items.size(), what);
    return items[static_cast<size_t>(id)];
}

int index_of_last(size_t size) { return static_cast<int>(size) - 1; }

// Copies the first `count` tokens of a tile. For keys they are the beginning of every dimension, and of every scale.
void copy_keys(const KvPlane &c, uint8_t *from, uint8_t *to, size_t count) {
    const size_t together = c.format == KvFormat::BF16_PAIRS ? 2 : 1, size = c.number_bytes() * together;
    for (size_t d = 0; d < static_cast<size_t>(c.padded_dim()) / together; ++d)
        std::memcpy(to + size * TILE * d, from + size * TILE * d, size * count);
    for (size_t b = 0; b < static_cast<size_t>(c.scales()); ++b)
        std::memcpy(c.scales_of(to) + TILE * b, c.scales_of(from) + TILE * b, sizeof(uint16_t) * count);
}

// In pairs, the one after the last may be copied too: it is not yet written.
void copy_values(const KvPlane &c, uint8_t *from, uint8_t *to, size_t count) {
    if (c.format == KvFormat::BF16_PAIRS) count = (count + 1) / 2 * 2;
    std::memcpy(to, from, c.number_bytes() * count * c.padded_dim());
    std::memcpy(c.scales_of(to), c.scales_of(from), sizeof(uint16_t) * count * c.scales());
}

}  // namespace

Memory::Memory(size_t bytes) : base_(std::calloc(bytes + LINE, 1)) {
    if (!base_) throw std::bad_alloc();
    data_ = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(base_) + LINE - 1) / LINE * LINE);
}

Arena::~Arena() {
    for (void *chunk : chunks_) std::free(chunk);
}

// The unused end of a chunk is never touched, so it takes no memory.
uint8_t *Arena::take(size_t bytes) {
    constexpr size_t PAGE = size_t{2} << 20, CHUNK = size_t{32} << 20;
    bytes = (bytes + LINE - 1) / LINE * LINE;
    if (bytes > left_) {
        const size_t size = std::max(CHUNK, (bytes + PAGE - 1) / PAGE * PAGE);
        chunks_.push_back(std::calloc(size + PAGE, 1));
        if (!chunks_.back()) throw std::bad_alloc();
        next_ = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(chunks_.back()) + PAGE - 1) / PAGE * PAGE);
        left_ = size;
#if defined(MADV_HUGEPAGE)
        madvise(next_, size, MADV_HUGEPAGE);  // only advice: without it, small pages are used
#endif
    }
    uint8_t *found = next_;
    next_ += bytes, left_ -= bytes;
    return found;
}

Program::Program(const Kernels &kernels, std::shared_ptr<Pool> pool, Bounds bounds)
    : kernels_(kernels), pool_(std::move(pool)), bounds_(bounds) {
    product_kernels_.fill(&kernels_);
    constexpr int MOST = 1 << 24;  // keeps products of sizes inside their types
    for (int size : {bounds.max_tokens, bounds.max_rows, bounds.max_logits, bounds.max_blocks})
        require(size >= 0 && size <= MOST, "a limit is negative or beyond 2 ** 24");
    require(bounds.block_tokens >= 1 && bounds.block_tokens <= 4096, "a block has 1 to 4096 tokens");
    require(bounds.num_blocks >= 0 && static_cast<int64_t>(bounds.num_blocks) * bounds.block_tokens <= INT32_MAX,
            "slots are counted in 32 bits: too many blocks");
}

void Program::multiply_with(Format format, const Kernels &kernels) {
    require(std::strcmp(kernels.rounding(format), kernels_.rounding(format)) == 0,
            "multiply_with: the variant rounds products of this format differently");
    std::lock_guard<std::mutex> lock(turn_);
    product_kernels_[static_cast<size_t>(format)] = &kernels;
}

Memory Program::take(size_t bytes) {
    Memory memory(bytes);
    num_bytes_ += bytes;
    return memory;
}

// --- operands

int Program::add_matrix(Format format, int rows, int cols, const uint8_t *source) {
    const Matrix m = shape_of(format, rows, cols);
    uint8_t *target = weights_.take(m.num_bytes());
    num_bytes_ += m.num_bytes();
    pack(m, source, target);
    return append(m, target);
}

int Program::add_stack(Format format, int count, int rows, int cols, const std::function<const uint8_t *()> &source) {
    require(count > 0 && count <= INT32_MAX / LANES / std::max(rows, 1), "a stack has matrices");
    const Matrix each = shape_of(format, rows, cols), all = shape_of(format, count * each.num_panels() * LANES, cols);
    uint8_t *target = weights_.take(all.num_bytes());
    num_bytes_ += all.num_bytes();
    for (int i = 0; i < count; ++i) pack(each, source(), target + each.num_bytes() * i);
    return append(all, target);
}

int Program::adopt_matrix(Format format, int rows, int cols, Panels panels) {
    const Matrix m = shape_of(format, rows, cols);
    require(panels.num_bytes == m.num_bytes(), "panels have another size than their matrix");
    require(reinterpret_cast<uintptr_t>(panels.data) % LINE == 0, "panels must be aligned to a cache line");
    owners_.push_back(std::move(panels.owner));
    return append(m, panels.data);
}

Matrix Program::shape_of(Format format, int rows, int cols) const {
    require(rows > 0 && cols > 0, "a matrix has rows and columns");
    require(!is_quantized(format) || cols % block_columns(format) == 0,
            "a quantized matrix has whole blocks in its rows");
    return {format, rows, cols, nullptr, panel_size(format, cols)};
}

int Program::append(Matrix matrix, const uint8_t *data) {
    matrix.data = data;
    matrices_.push_back(matrix);
    return index_of_last(matrices_.size());
}

// Padded with zeros to whole panels, since a bias is read by panels.
int Program::add_vector(const float *numbers, int count) {
    Memory memory = take(sizeof(float) * ((count + LANES - 1) / LANES * LANES));
    if (count > 0) std::memcpy(memory.data(), numbers, sizeof(float) * count);
    vectors_.push_back({count, std::move(memory)});
    return index_of_last(vectors_.size());
}

int Program::add_rows(int dim, bool for_logits) {
    require(dim > 0, "a buffer has columns");
    rows_.push_back({dim, for_logits, take(sizeof(float) * rows_for(for_logits) * dim)});
    return index_of_last(rows_.size());
}

// Values of all rows, then scales, sums, sums of halves.
int Program::add_quants(int dim, bool for_logits) {
    require(dim > 0 && dim % BLOCK == 0, "a quantized buffer has whole blocks of 32");
    const size_t numbers = static_cast<size_t>(rows_for(for_logits)) * dim;
    const size_t of_block = 2 * sizeof(float) + 2 * sizeof(int16_t);
    quants_.push_back({dim, for_logits, take(numbers + of_block * (numbers / BLOCK))});
    return index_of_last(quants_.size());
}

int Program::add_window(WindowGroup group) {
    require(group.window > 0, "a window has positions");
    require(group.num_blocks >= 0 && static_cast<int64_t>(group.num_blocks) * bounds_.block_tokens <= INT32_MAX,
            "slots are counted in 32 bits: too many blocks");
    windows_.push_back(group);
    leaders_.emplace_back();
    return index_of_last(windows_.size()) + 1;
}

int Program::add_cache(const CacheSpec &spec) {
    require(spec.num_heads > 0 && spec.key_dim > 0 && spec.value_dim > 0, "a cache has heads and dimensions");
    require(spec.window >= 0 && spec.chunk >= 0, "a window and a chunk have positions");
    require(spec.latent_dim >= 0 && (!spec.latent_dim || (spec.num_heads == 1 && spec.key_dim == spec.value_dim)),
            "latents are the keys of one head, and its values");
    require(spec.latent_dim < spec.key_dim && (spec.format != KvFormat::Q8 || spec.latent_dim % BLOCK == 0),
            "a latent is whole blocks, and shorter than its key");
    require(spec.format != KvFormat::Q8 || (spec.key_dim % BLOCK == 0 && spec.value_dim % BLOCK == 0),
            "the KV cache cannot be q8_0: heads are no whole blocks of 32");
    require(spec.group <= static_cast<int>(windows_.size()), "there is no such window group");
    const int tiles = (bounds_.block_tokens + TILE - 1) / TILE;
    const KvFormat format = spec.format == KvFormat::BF16 && !spec.latent_dim ? KvFormat::BF16_PAIRS : spec.format;
    KvCache c{{format, spec.num_heads, spec.key_dim, tiles, nullptr},
              {format, spec.num_heads, spec.value_dim, tiles, nullptr},
              spec.window, spec.chunk, num_blocks(spec.group), bounds_.block_tokens, spec.latent_dim, spec.group};
    require(spec.group <= 0 || c.reach() <= windows_[spec.group - 1].window,
            "queries of a cache read tokens behind the window of its group");
    for (KvPlane *plane : {&c.values, &c.keys}) {
        if (plane == &c.values || !c.is_latent()) {
            cache_memory_.push_back({Pages(plane->block_bytes() * c.num_blocks), plane->block_bytes(), c.group});
            num_bytes_ += plane->block_bytes() * c.num_blocks;
        }
        plane->data = cache_memory_.back().pages.data();
    }
    caches_.push_back(c);
    return index_of_last(caches_.size());
}

KvCache Program::row_cache(int num_heads, int key_dim, int value_dim, int window) {
    const int num_blocks = (bounds_.max_tokens + TILE - 1) / TILE + bounds_.max_rows;
    KvCache c{{KvFormat::F32, num_heads, key_dim, 1, nullptr}, {KvFormat::F32, num_heads, value_dim, 1, nullptr},
              window, 0, num_blocks, TILE, 0, 0};
    for (const RowCache &r : row_caches_)
        if (r.num_heads == num_heads && r.key_dim == key_dim && r.value_dim == value_dim)
            c.keys.data = r.keys.data(), c.values.data = r.values.data();
    if (!c.keys.data) {
        Memory keys = take(c.keys.block_bytes() * num_blocks), values = take(c.values.block_bytes() * num_blocks);
        c.keys.data = keys.data(), c.values.data = values.data();
        row_caches_.push_back({num_heads, key_dim, value_dim, std::move(keys), std::move(values)});
    }
    return c;
}

Matrix Program::matrix(int id) const { return at(matrices_, id, "there is no such matrix"); }
KvCache Program::cache(int id) const { return at(caches_, id, "there is no such cache"); }

const Program::Vector &Program::at_vector(int id) const { return at(vectors_, id, "there is no such vector"); }

const float *Program::vector(int id, int count) const {
    if (id < 0) return nullptr;
    const Vector &found = at(vectors_, id, "there is no such vector");
    require(found.count == count, "a vector has another length than its op needs");
    return reinterpret_cast<const float *>(found.memory.data());
}

Rows Program::rows(View view) const {
    if (!view.given()) return {};
    const Buffer &found = at(rows_, view.buffer, "there is no such buffer");
    require(view.offset >= 0 && view.dim > 0 && view.offset + view.dim <= found.dim, "a view leaves its buffer");
    return {reinterpret_cast<float *>(found.memory.data()) + view.offset, static_cast<size_t>(found.dim)};
}

// A buffer may be wider than the value in it: rows are packed by the size of the value.
QuantRows Program::quants(int id, int dim) const {
    if (id < 0) return {};
    const Buffer &found = at(quants_, id, "there is no such quantized buffer");
    require(dim % BLOCK == 0 && dim <= found.dim, "a value does not fit its quantized buffer");
    const size_t numbers = static_cast<size_t>(rows_for(found.for_logits)) * found.dim;
    QuantRows out;
    out.values = reinterpret_cast<int8_t *>(found.memory.data());
    out.scales = reinterpret_cast<float *>(found.memory.data() + numbers);
    out.sums = out.scales + numbers / BLOCK;
    out.halves = reinterpret_cast<int16_t *>(out.sums + numbers / BLOCK);
    out.blocks = dim / BLOCK;
    return out;
}

// Whether the buffer has a row for each of logits_at, and not for each token.
bool Program::at_logits(View rows, int quants) const {
    const bool of_rows = rows.given() && at(rows_, rows.buffer, "there is no such buffer").for_logits;
    const bool of_quants = quants >= 0 && at(quants_, quants, "there is no such quantized buffer").for_logits;
    require(!rows.given() || quants < 0 || of_rows == of_quants, "rows of tokens and of logits in one instruction");
    return of_rows || of_quants;
}

void Program::poke(View to, const float *numbers, int num_rows) {
    const Rows target = rows(to);
    require(to.given(), "a view of nothing");
    require(num_rows <= rows_for(at_logits(to)), "more rows than the buffer has");
    for (int i = 0; i < num_rows; ++i)
        std::memcpy(target.row(i), numbers + static_cast<size_t>(i) * to.dim, sizeof(float) * to.dim);
}

void Program::peek(View from, float *numbers, int num_rows) const {
    const Rows source = rows(from);
    require(from.given(), "a view of nothing");
    require(num_rows <= rows_for(at_logits(from)), "more rows than the buffer has");
    for (int i = 0; i < num_rows; ++i)
        std::memcpy(numbers + static_cast<size_t>(i) * from.dim, source.row(i), sizeof(float) * from.dim);
}

void Program::store_kv(int id, const int32_t *slots, const float *k, const float *v, int num_tokens) {
    const KvCache c = cache(id);
    for (int i = 0; i < num_tokens; ++i)
        require(slots[i] >= 0 && slots[i] < c.num_blocks * c.block_tokens, "a slot is outside the cache");
    const size_t key_width = static_cast<size_t>(c.key_width()), value_width = static_cast<size_t>(c.value_width());
    std::lock_guard<std::mutex> lock(turn_);
    kernels_.write_kv(c, slots, {const_cast<float *>(k), key_width}, {const_cast<float *>(v), value_width}, 0, num_tokens);
}

// Releases blocks that will not be read before they are written, not those of window groups. Neighbours are joined: a
// page may hold parts of two.
size_t Program::release_blocks(const int32_t *blocks, int count) {
    for (int i = 0; i < count; ++i)
        require(blocks[i] >= 0 && blocks[i] < bounds_.num_blocks && (i == 0 || blocks[i - 1] < blocks[i]),
                "release_blocks: there is no such block, or they do not ascend");
    std::lock_guard<std::mutex> lock(turn_);
    size_t released = 0;
    for (int first = 0, past = 0; first < count; first = past) {
        for (past = first + 1; past < count && blocks[past] == blocks[past - 1] + 1;) ++past;
        for (CacheMemory &memory : cache_memory_)
            if (memory.group == 0) released += memory.pages.give_back(memory.block_bytes * static_cast<size_t>(blocks[first]),
                                               memory.block_bytes * (static_cast<size_t>(blocks[past - 1]) + 1));
    }
    return released;
}

// --- a step

void Program::check_row(const Step &s, int row) const {
    const int64_t begin = s.starts[row], end = s.starts[row + 1], length = s.lengths[row];
    require(begin < end && end <= s.num_tokens, "starts: every row must have tokens, in ascending order");
    require(length >= end - begin, "lengths: a row is shorter than its tokens of this step");
    for (int64_t token = begin; token < end; ++token) {
        require(s.positions[token] == length - end + token, "positions: they do not match starts and lengths");
        require(s.row_of_token[token] == row, "row_of_token: it does not match starts");
    }
    for (size_t group = 0; group < s.tables.size() && !caches_.empty(); ++group) check_table(s, row, static_cast<int>(group));
}

// The first place in a row's table that queries from `token` on read.
int Program::first_block(const Step &s, int token, int group) const {
    if (group == 0) return 0;
    return std::max(0, s.positions[token] + 1 - windows_[group - 1].window) / bounds_.block_tokens;
}

// Of a window group only the entries that this step reads or writes are looked at.
void Program::check_table(const Step &s, int row, int group) const {
    const Tables &t = s.tables[group];
    const int64_t block_tokens = bounds_.block_tokens, past = (s.lengths[row] + block_tokens - 1) / block_tokens;
    require(past <= t.stride, "lengths: a row is longer than its block table");
    const int32_t *table = t.block_tables + static_cast<size_t>(row) * t.stride;
    for (int64_t i = first_block(s, s.starts[row], group); i < past; ++i)
        require(table[i] >= 0 && table[i] < num_blocks(group), "block_tables: there is no such block");
    for (int token = s.starts[row]; token < s.starts[row + 1]; ++token) {
        const int64_t position = s.positions[token];
        require(t.slots[token] == table[position / block_tokens] * block_tokens + position % block_tokens,
                "slots: not those of the block table");
    }
}

void Program::check_copies(const Step &s, int group) const {
    const Tables &t = s.tables[group];
    for (const int32_t *c = t.copies; c < t.copies + 3 * static_cast<size_t>(t.num_copies); c += 3) {
        require(c[0] >= 0 && c[0] < num_blocks(group) && c[1] >= 0 && c[1] < num_blocks(group),
                "copies: there is no such block");
        require(c[2] >= 0 && c[2] <= bounds_.block_tokens, "copies: more tokens than a block has");
    }
}

void Program::check(const Step &s) const {
    require(s.num_tokens <= bounds_.max_tokens, "more tokens than the program was lowered for");
    require(s.num_rows <= bounds_.max_rows, "more rows than the program was lowered for");
    require(s.num_logits <= bounds_.max_logits, "more logits than the program was lowered for");
    require(s.tables.size() == windows_.size() + 1, "windows: other groups than the program was lowered for");
    for (const Tables &t : s.tables)
        require(t.stride <= bounds_.max_blocks, "block_tables: more blocks per row than the program was lowered for");
    require(s.starts[0] == 0 && s.starts[s.num_rows] == s.num_tokens, "starts: they do not cover the tokens");
    for (int row = 0; row < s.num_rows; ++row) check_row(s, row);
    for (int row = 0; row < s.num_rows && !row_caches_.empty(); ++row)
        require(s.lengths[row] == s.starts[row + 1] - s.starts[row], "lengths: bidirectional attention needs whole rows");
    require(num_calls_ == 0 || s.fallback, "fallback: some nodes run outside of the program");
    for (int i = 0; i < s.num_tokens && embed_rows_; ++i)
        require(s.token_ids[i] >= 0 && s.token_ids[i] < embed_rows_, "token_ids: there is no such token");
    for (int i = 0; i < s.num_tokens && position_rows_; ++i)
        require(s.positions[i] < position_rows_, "positions: beyond the table of learned positions");
    for (int i = 0; i < s.num_logits; ++i) {
        require(s.logits_at[i] >= 0 && s.logits_at[i] < s.num_tokens, "logits_at: there is no such token");
        require(i == 0 || s.logits_at[i] > s.logits_at[i - 1], "logits_at: they must ascend");
    }
    for (size_t group = 0; group < s.tables.size(); ++group) check_copies(s, static_cast<int>(group));
    check_groups(s);
    check_states(s), check_pools(s), check_sources(s);
    for (int i = 0; i < s.num_logits; ++i)
        require(s.num_top[i] >= 0 && s.num_top[i] <= std::min(s.max_top, vocab_),
                "num_top: more than the vocabulary or the output arrays hold");
}

// Rows of a group must be adjacent in the list, and have the blocks that they share.
void Program::check_groups(const Step &s) const {
    std::vector<bool> is_member(static_cast<size_t>(s.num_rows));
    const int32_t *first = s.groups;
    for (const int32_t *m = s.groups; m < s.groups + 3 * static_cast<size_t>(s.num_grouped); m += 3) {
        const int row = m[1], num_blocks = m[2];
        require(row >= 0 && row < s.num_rows && !is_member[row], "groups: no such row, or a row twice");
        is_member[row] = true;
        const int held = (s.lengths[row] + bounds_.block_tokens - 1) / bounds_.block_tokens;
        require(num_blocks >= 1 && num_blocks <= held, "groups: more blocks than a row has");
        if (m[0] != first[0]) first = m;
        require(num_blocks == first[2], "groups: rows of one group share the same number of blocks");
        const size_t stride = static_cast<size_t>(s.tables[0].stride);
        const int32_t *tables = s.tables[0].block_tables, *own = tables + stride * row;
        require(std::equal(own, own + num_blocks, tables + stride * first[1]),
                "groups: tables of one group begin with the same blocks");
    }
}

// Copies the beginning of one block to another, in order: a later copy may read what an earlier one wrote.
void Program::copy_blocks(const Step &s) {
    for (const KvCache &c : caches_) {
        if (c.group < 0) continue;  // a source is never copied
        const Tables &t = s.tables[c.group];
        for (const int32_t *copy = t.copies; copy < t.copies + 3 * static_cast<size_t>(t.num_copies); copy += 3) {
            if (copy[0] == copy[1]) continue;
            for (int head = 0; head < c.num_heads(); ++head)
                for (int tile = 0; tile * TILE < copy[2]; ++tile) {
                    const size_t count = static_cast<size_t>(std::min(TILE, copy[2] - tile * TILE));
                    const KvPlane &k = c.keys, &v = c.values;
                    if (!c.is_latent())
                        copy_keys(k, k.tile_at(copy[0], head, tile), k.tile_at(copy[1], head, tile), count);
                    copy_values(v, v.tile_at(copy[0], head, tile), v.tile_at(copy[1], head, tile), count);
                }
        }
    }
}

// Bundles tokens for attention: of one row, or of rows of a group, which then read their common blocks once; see
// attention.h. Bundles are small enough to leave several items for every thread: sharing saves nothing if threads idle.
void Program::cut_queries(const Step &s) {
    constexpr int ITEMS_OF_THREAD = 6;
    query_tiles_.clear(), bundles_.clear();
    const int num_heads = caches_.empty() ? 1 : caches_[0].num_heads();
    const int whole = caches_.empty() ? 1 : caches_[0].stretch_blocks();
    const int64_t share = static_cast<int64_t>(s.num_tokens) * num_heads / (ITEMS_OF_THREAD * pool_->size());
    const int most = bundle_tokens_ = static_cast<int>(std::clamp<int64_t>(share, 1, MAX_ITEM_TOKENS));
    std::vector<bool> is_cut(static_cast<size_t>(s.num_rows));
    for (int i = 0, room = 0; i < s.num_grouped; ++i) {
        const int32_t *m = s.groups + 3 * static_cast<size_t>(i);
        if (m[2] < whole) continue;  // too few blocks to be worth sharing
        if (i > 0 && m[0] != m[-3]) room = 0;
        room = cut_row(s, m[1], m[2] / whole * whole, most, room);
        is_cut[static_cast<size_t>(m[1])] = true;
    }
    for (int row = 0; row < s.num_rows; ++row)
        if (!is_cut[static_cast<size_t>(row)]) cut_row(s, row, 0, most, 0);
    for (size_t i = 0; i < windows_.size(); ++i) {
        leaders_[i].clear();
        for (const Bundle &bundle : bundles_) leaders_[i].push_back(find_leader(s, bundle, static_cast<int>(i) + 1));
    }
}

// Rows that share blocks of all tokens need not share those of a window: each may have released other ones, and a row
// may have computed its own. The tile that reads furthest back leads, if all others have the same blocks from where
// they begin to read. -1: they have not.
int Program::find_leader(const Step &s, const Bundle &bundle, int group) const {
    const QueryTile *tiles = tiles_of(bundle);
    const Tables &t = s.tables[group];
    int leader = 0;
    for (int i = 1; i < bundle.num_tiles; ++i)
        if (s.positions[tiles[i].begin] < s.positions[tiles[leader].begin]) leader = i;
    const int32_t *first = t.block_tables + static_cast<size_t>(tiles[leader].row) * t.stride;
    for (int i = 0; i < bundle.num_tiles; ++i) {
        const int32_t *own = t.block_tables + static_cast<size_t>(tiles[i].row) * t.stride;
        for (int at = first_block(s, tiles[i].begin, group); at < bundle.num_shared; ++at)
            if (own[at] != first[at]) return -1;
    }
    return leader;
}

// Fills the last bundle, which has room for `room` more tokens, then new ones of `most`. Returns the remaining room.
int Program::cut_row(const Step &s, int row, int num_shared, int most, int room) {
    for (int begin = s.starts[row]; begin < s.starts[row + 1];) {
        if (room == 0) bundles_.push_back({static_cast<int>(query_tiles_.size()), 0, num_shared}), room = most;
        const int end = std::min(begin + room, s.starts[row + 1]);
        query_tiles_.push_back({row, begin, end});
        ++bundles_.back().num_tiles;
        room -= end - begin, begin = end;
    }
    return room;
}

void Program::fill_row_tables(const Step &s) {
    RowTables &t = row_tables_;
    t.positions.resize(s.num_tokens), t.slots.resize(s.num_tokens), t.lengths.resize(s.num_rows), t.stride = 0;
    for (int row = 0; row < s.num_rows; ++row) {
        t.lengths[row] = s.starts[row + 1] - s.starts[row];
        t.stride = std::max(t.stride, (t.lengths[row] + TILE - 1) / TILE);
    }
    t.tables.assign(static_cast<size_t>(s.num_rows) * t.stride, 0);
    int block = 0;
    for (int row = 0; row < s.num_rows; ++row) {
        for (int i = 0; i < t.lengths[row]; ++i)
            t.positions[s.starts[row] + i] = i, t.slots[s.starts[row] + i] = block * TILE + i;
        for (int i = 0; i * TILE < t.lengths[row]; ++i) t.tables[static_cast<size_t>(row) * t.stride + i] = block++;
    }
}

void Program::prepare(const Step &step) {
    cut_queries(step);
    if (!row_caches_.empty()) fill_row_tables(step);
    if (!states_.empty()) find_saves(step);
    for (int i = static_cast<int>(scratch_.size()); i < pool_->size(); ++i)
        scratch_.push_back(take(sizeof(float) * scratch_floats_));
    for (auto &instruction : instructions_) instruction->prepare(step, pool_->size());
}

void Instruction::prepare(const Step &step, int num_threads) {
    is_pending_.store(is_late_, std::memory_order_relaxed);
    divide(step, num_threads, is_late_ ? 0 : count(step));
}

void Instruction::open(const Step &step, int num_threads) {
    divide(step, num_threads, count(step));
    is_pending_.store(false, std::memory_order_release);
}

void Instruction::divide(const Step &step, int num_threads, int count) {
    // A lane of its own for each thread: threads write neighbouring blocks of a row, often in one cache line, if they
    // take turns. With 32 rows, quantization took 7 instead of 3 % of a step.
    constexpr int SHARES_OF_THREAD = 8, TOKENS_IN_LANES = 64;
    int num_lanes = num_threads;
    if (step.num_tokens > TOKENS_IN_LANES) num_lanes = 1;  // then threads share panels in the last-level cache
    if (static_cast<int>(lanes_.size()) != num_lanes) lanes_ = std::vector<Lane>(static_cast<size_t>(num_lanes));
    num_items = count;
    shares_ = SHARES_OF_THREAD * num_threads / num_lanes;
    for (int64_t i = 0; i < num_lanes; ++i) {
        lanes_[i].begin = static_cast<int>(num_items * i / num_lanes);
        lanes_[i].next.store(lanes_[i].begin, std::memory_order_relaxed);
        lanes_[i].end = static_cast<int>(num_items * (i + 1) / num_lanes);
    }
    finished.store(0, std::memory_order_relaxed);
}

// Takes the next items for this thread, fewer towards the end, so that all threads end together. False: none is left.
bool Instruction::take(int thread, int &begin, int &end) {
    for (size_t i = 0, num_lanes = lanes_.size(); i < num_lanes; ++i) {
        Lane &lane = lanes_[(static_cast<size_t>(thread) + i) % num_lanes];
        const int left = lane.end - lane.next.load(std::memory_order_relaxed);
        if (left <= 0) continue;
        const int grain = std::max(1, left / shares_);
        begin = lane.next.fetch_add(grain, std::memory_order_relaxed);
        end = std::min(begin + grain, lane.end);
        if (begin < end) return true;
    }
    return false;
}

// Takes items until none is left, then waits for those of other threads. A thread that joins late skips finished
// instructions without waiting. With few tokens a step is bound by memory, so a waiting thread prefetches what it will
// need next: memory stays busy.
void Program::work(const Step &step, int thread) {
    Fetched fetched;
    for (size_t i = 0; i < instructions_.size(); ++i) {
        Instruction &now = *instructions_[i];
        int done = 0;
        if (step.num_tokens <= FEW_TOKENS && now.weights(0).num_bytes)
            for (size_t next = i + 1; next < instructions_.size(); ++next) {
                if (instructions_[next]->is_pending() || instructions_[next]->weights(0).num_bytes) break;
                instructions_[next]->foresee(step, thread);
            }
        for (int begin, end; now.take(thread, begin, end); done += end - begin) now.run(step, begin, end, thread);
        const bool is_last = done && now.finished.fetch_add(done, std::memory_order_acq_rel) + done == now.num_items;
        if (is_last) progress_.advance();
        for (;;) {
            const uint32_t seen = progress_.now();
            if (now.finished.load(std::memory_order_acquire) == now.num_items) break;
            if (step.num_tokens <= FEW_TOKENS && fetch(i + 1, fetched, thread)) continue;
            progress_.wait_beyond(seen, SPINS_IN_STEP);
        }
    }
}

// Prefetches some of the weights that this thread reads next, while it waits. False: enough are prefetched.
bool Program::fetch(size_t from, Fetched &done, int thread) const {
    constexpr size_t ENOUGH = 96 * 1024, AT_ONCE = 1024;  // of L2, and between two checks for work
    if (done.instruction < from) {
        size_t next = from;
        while (next < instructions_.size() && !instructions_[next]->is_pending() && !instructions_[next]->weights(0).num_bytes)
            ++next;
        if (next < instructions_.size() && instructions_[next]->is_pending()) return false;  // its weights are not known
        done = {next, 0};
    }
    if (done.instruction == instructions_.size() || done.num_bytes >= ENOUGH) return false;
    const Instruction &next = *instructions_[done.instruction];
    const size_t size = next.weights(0).num_bytes, at = done.num_bytes % size, end = std::min(at + AT_ONCE, size);
    const int item = next.first_of(thread) + static_cast<int>(done.num_bytes / size);
    if (item >= next.num_items) return false;
    for (const uint8_t *piece : next.weights(item).pieces)
        for (size_t b = at; piece && b < end; b += LINE) prefetch(piece + b);
    done.num_bytes += end - at;
    return true;
}

void Program::launch(const Step &step) {
    std::lock_guard<std::mutex> lock(turn_);
    check(step);
    copy_blocks(step);
    if (step.num_tokens == 0) return;
    prepare(step);
    pool_->run([&](int thread) { work(step, thread); });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Such instructions run one after the other, so no lock is needed. After a failure the step's numbers are meaningless.
void Program::fall_back(const Step &step, int index) {
    if (failure_) return;
    try {
        (*step.fallback)(index);
    } catch (...) {
        failure_ = std::current_exception();
    }
}

void Program::fail(const char *what) {
    if (!failure_) failure_ = std::make_exception_ptr(std::invalid_argument(what));
}

}  // namespace quire
