// Attention of a step, before keys of the cache are read: its items, and q, k and v of their tokens in shared memory. Keys
// of earlier tokens of a row that this step computes, drafts, are not read from the cache, which may not have them yet.
#pragma once

#include "step.cuh"

constexpr bool IS_SPLIT = HEAD_DIM > 128;    // over two warps
constexpr int WARP_DIM = IS_SPLIT ? HEAD_DIM / 2 : HEAD_DIM;  // dimensions of a warp's outputs
constexpr int QUERY_STEPS = HEAD_DIM / 16;  // products over a key's numbers
constexpr int OUTPUTS = WARP_DIM / 16;      // products that give the output's numbers
constexpr int LOADS = HEAD_DIM / 32;        // of a key, by one of its four lanes
constexpr int LOADS_AT_ONCE = LOADS < 4 ? LOADS : 4;
constexpr int HALF_WARPS = WARPS / 2;
constexpr int KEY_WARPS = IS_SPLIT ? HALF_WARPS : WARPS;  // that take different keys
constexpr int ITEM_NUMBERS = 12, CACHED_BLOCKS = 52;
constexpr int PAIRED = (GROUP + 1) / 2;     // pairs of heads: a lane has one of four
constexpr int PARTIAL_NUMBERS = 4 * OUTPUTS + 4;  // numbers that a lane stores for another warp
static_assert(GROUP <= 8 && BLOCK_TOKENS % 16 == 0, "a warp's keys must be in one block of the cache");
static_assert(WARP_DIM % 64 == 0 && LOADS % LOADS_AT_ONCE == 0, "whole loads of 16 bytes");

// Shared memory of attention, in floats.
constexpr int AT_QUERY = 0, AT_KEY = QUERY_STEPS * 64, AT_VALUE = AT_KEY + HEAD_DIM, AT_SCORE = AT_VALUE + HEAD_DIM;
constexpr int AT_TOP = AT_SCORE + 8, AT_WEIGHT = AT_TOP + 8 * HALF_WARPS, AT_FRESH = AT_WEIGHT + 8 * HALF_WARPS;
constexpr int FRESH_NUMBERS = HEAD_DIM + 8;  // of a key of an earlier token: its value, and its scores
constexpr int AT_PARTIAL = AT_FRESH + (ROW_TOKENS - 1) * FRESH_NUMBERS;
static_assert(ROW_TOKENS - 1 <= WARPS - 8, "a warp for each key of an earlier token");

// What attention of a layer reads that other layers may not.
struct LayerAttention {
  const Layer& layer;
  const Work& work;
  const Rope& rope;
  const int* first_item;
  int window;
  float scale;  // of scores

  __device__ LayerAttention(const Step& step, const Block& block, const Layer& layer)
      : layer(layer),
        work(step.works[WORKS == 1 ? 0 : layer.work]),
        rope(step.ropes[ROPES == 1 ? 0 : layer.rope]),
        first_item(block.first_item + (WORKS == 1 ? 0 : layer.work) * (ITEM_NUMBERS + CACHED_BLOCKS)),
        window(!HAS_WINDOW ? 0 : step.windows[WORKS == 1 ? 0 : layer.work]),
        scale(HAS_LAYER_SCALES ? layer.scale : step.scale) {}

  // A score for a softmax with powers of 2.
  __device__ float score(const Step& step, float product) const {
    if constexpr (HAS_SCORE_CAP) return softcapped(product * scale, step.score_cap) * LOG2_E;
    return product * scale * LOG2_E;
  }
};

// A token's keys, or a part of them, for the heads that share a key head.
struct Item {
  int token, table, begin, end, part, position, head, first, count, num_fresh;  // num_fresh: keys of this step
  const int* cached;  // the first blocks of its table
  int num_cached;

  __device__ void load(const Step& step, const LayerAttention& attention, int index) {
    const bool is_first = index == (int)blockIdx.x;
    const Work& work = attention.work;
    const int* numbers = is_first ? attention.first_item : work.items + 6 * (index / KV);
    head = index % KV;
    num_fresh = ROW_TOKENS == 1 ? 1 : numbers[1];
    token = numbers[0], table = numbers[2], begin = numbers[3], end = numbers[4], part = numbers[5];
    position = is_first ? numbers[6] : step.positions[token];
    first = is_first ? numbers[7] : work.first_part[token], count = is_first ? numbers[8] : work.num_parts[token];
    cached = numbers + ITEM_NUMBERS, num_cached = is_first ? CACHED_BLOCKS : 0;
  }

  // Keys of this step are not in the cache yet.
  __device__ int last() const { return min(end, position - (num_fresh - 1)); }
  __device__ bool has_newest() const { return end > position; }

  // How far back the keys of earlier tokens are that the item has, those of this step alone.
  __device__ int nearest() const { return max(1, position - end + 1); }
  __device__ int farthest(const LayerAttention& attention) const {
    const int back = min(num_fresh - 1, position - begin);
    return HAS_WINDOW ? min(back, attention.window - 1) : back;
  }
};

// Loads the block's first item, which is the same in all layers with this work.
__device__ void load_first_item(const Step& step, const Work& work, int* first_item, int lane) {
  if ((int)blockIdx.x >= *work.num_items * KV) return;
  const int* item = work.items + blockIdx.x / KV * 6;
  const int token = item[0], first_block = item[3] / BLOCK_TOKENS;
  const int num_blocks = (item[4] - 1) / BLOCK_TOKENS - first_block + 1;
  if (lane < 6) first_item[lane] = item[lane];
  if (lane == 6) first_item[6] = step.positions[token];
  if (lane == 7) first_item[7] = work.first_part[token], first_item[8] = work.num_parts[token];
  for (int i = lane; i < min(num_blocks, CACHED_BLOCKS); i += 32) {
    first_item[ITEM_NUMBERS + i] = step.tables[item[2] + first_block + i];
  }
}

__device__ u64 place_in_cache(int block, int head, int inside) {
  return (((u64)block * KV + head) * BLOCK_TOKENS + inside) * HEAD_DIM;
}

// The warp's place among those that take different keys, and the first dim of its outputs.
__device__ int key_warp_of(int warp) { return IS_SPLIT ? warp % KEY_WARPS : warp; }
__device__ int first_dim_of(int warp) { return IS_SPLIT ? warp / KEY_WARPS * WARP_DIM : 0; }

// The dim of a number of RunningSoftmax::total, among those of the warp.
__device__ int dim_of(int j, int number, int lane) {
  return lane / 4 * (2 * OUTPUTS) + j / 4 * 8 + number / 2 * 4 + j % 4;
}

// The index of a query's number, as bf16: a lane's two words of a product are adjacent.
__device__ int place_of_query(int head, int dim) {
  const int product = dim / 32 * 2 + dim % 8 / 4, lane = head * 4 + dim % 32 / 8;
  return (product * 32 + lane) * 4 + dim % 4;
}

// Queries beyond the group are 0.
__device__ void clear_queries(const Block& block) {
  for (int i = threadIdx.x; i < AT_KEY; i += THREADS) block.scratch[AT_QUERY + i] = 0.0f;
}

// Where the sums of squares of all queries and of all keys are, after the raw numbers.
constexpr int AT_SQUARES = AT_PARTIAL + (GROUP + 2) * HEAD_DIM;

// Loads the raw numbers of q, k and v to where warps store their partial outputs later.
__device__ void load_raw(const Step& step, const Block& block, const Item& item) {
  constexpr int NUMBERS = (GROUP + 2) * HEAD_DIM, ROUNDS = (NUMBERS + THREADS - 1) / THREADS;
  const u64* row = step.qkv + (u64)item.token * QKV_ROWS;
  u64 found[ROUNDS];
  bool are_there;
  do {
    are_there = true;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const int i = min((int)threadIdx.x + r * THREADS, NUMBERS - 1), which = i / HEAD_DIM;
      const int of = which < GROUP ? item.head * GROUP + which : HEADS + (which - GROUP) * KV + item.head;
      found[r] = load_tagged(row + of * HEAD_DIM + i % HEAD_DIM);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) are_there &= has_tag(found[r], block.tag);
    if (!are_there) pause();
  } while (!are_there);
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    block.scratch[AT_PARTIAL + min((int)threadIdx.x + r * THREADS, NUMBERS - 1)] = number_of(found[r]);
  }
  if constexpr (HEAD_NORM == ALL_HEADS) {
    if (block.warp < 2) {
      const u64* squares = step.head_squares + (item.token * 2 + block.warp) * Qkv::GROUPS;
      const float sum = sum_of_warp(load_tagged_share<Qkv::GROUPS>(squares, block.tag, block.lane));
      if (block.lane == 0) block.scratch[AT_SQUARES + block.warp] = sum;
    }
  }
  sync_block();
}

// Two dims that rope turns together are PAIRS apart, or adjacent.
__device__ bool is_first_of_pair(int dim) { return IS_INTERLEAVED ? dim % 2 == 0 : dim < PAIRS; }
__device__ int other_of_pair(int dim) {
  return IS_INTERLEAVED ? dim ^ 1 : dim < PAIRS ? dim + PAIRS : dim - PAIRS;
}

// The weights of the norms of heads, for a number of the item's q and k.
__device__ float head_norm_of(const Layer& layer, const Item& item, int which, int dim) {
  if (which > GROUP) return 1.0f;
  const float* norm = which < GROUP ? layer.q_norm : layer.k_norm;
  const int head = HEAD_NORM == EACH_HEAD ? 0 : which < GROUP ? item.head * GROUP + which : item.head;
  return norm[head * HEAD_DIM + dim];
}

// The factor of the norm of a head. All lanes of a warp have the same head.
__device__ float head_factor_of(const Step& step, const Block& block, int which) {
  if (which > GROUP) return 1.0f;
  if constexpr (HEAD_NORM == ALL_HEADS) {
    const int count = (which < GROUP ? HEADS : KV) * HEAD_DIM;
    return rsqrtf(block.scratch[AT_SQUARES + (which < GROUP ? 0 : 1)] / count + step.head_eps);
  }
  const float* raw = block.scratch + AT_PARTIAL + which * HEAD_DIM;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 32; ++i) squares += raw[block.lane + 32 * i] * raw[block.lane + 32 * i];
  return rsqrtf(sum_of_warp(squares) / HEAD_DIM + step.head_eps);
}

// A warp computes the key of the token `back` before the item's: its scores, and its value in shared memory.
__device__ void add_fresh_key(const Step& step, const Block& block, const LayerAttention& attention, const Item& item,
                              int back) {
  constexpr int NUMBERS = HEAD_DIM / 32;
  const int token = item.token - back, position = item.position - back;
  const u64* row = step.qkv + (u64)token * QKV_ROWS + (HEADS + item.head) * HEAD_DIM + block.lane;
  float* fresh = block.scratch + AT_FRESH + (back - 1) * FRESH_NUMBERS;
  const u16* queries = (const u16*)(block.scratch + AT_QUERY);
  u64 key[NUMBERS], value[NUMBERS];
  bool are_there;
  do {
    are_there = true;
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
      key[i] = load_tagged(row + 32 * i), value[i] = load_tagged(row + KV * HEAD_DIM + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) are_there &= has_tag(key[i], block.tag) && has_tag(value[i], block.tag);
    if (!are_there) pause();
  } while (!are_there);
  float squares = 0.0f, turned[NUMBERS];
#pragma unroll
  for (int i = 0; i < NUMBERS; ++i) {
    fresh[block.lane + 32 * i] = number_of(key[i]);
    squares += number_of(key[i]) * number_of(key[i]);
  }
  float factor = 1.0f;
  if constexpr (HEAD_NORM == EACH_HEAD) factor = rsqrtf(sum_of_warp(squares) / HEAD_DIM + step.head_eps);
  if constexpr (HEAD_NORM == ALL_HEADS) {
    const u64* of_keys = step.head_squares + (token * 2 + 1) * Qkv::GROUPS;
    const float sum = sum_of_warp(load_tagged_share<Qkv::GROUPS>(of_keys, block.tag, block.lane));
    factor = rsqrtf(sum / (KV * HEAD_DIM) + step.head_eps);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < NUMBERS; ++i) {
    const int dim = block.lane + 32 * i, other = dim < 2 * PAIRS ? other_of_pair(dim) : dim;
    const int pair = position * PAIRS + (IS_INTERLEAVED ? dim / 2 % PAIRS : dim % PAIRS);
    float cosine = dim < 2 * PAIRS ? attention.rope.cosines[pair] : 1.0f;
    float sine = dim < 2 * PAIRS ? attention.rope.sines[pair] : 0.0f;
    if (is_first_of_pair(dim)) sine = -sine;
    if constexpr (HEAD_NORM) {
      cosine *= head_norm_of(attention.layer, item, GROUP, dim);
      sine *= head_norm_of(attention.layer, item, GROUP, other);
    }
    turned[i] = from_bf16(to_bf16((fresh[dim] * cosine + fresh[other] * sine) * factor));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < NUMBERS; ++i) fresh[block.lane + 32 * i] = from_bf16(to_bf16(number_of(value[i])));
#pragma unroll
  for (int which = 0; which < GROUP; ++which) {
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
      score += from_bf16(queries[place_of_query(which, block.lane + 32 * i)]) * turned[i];
    }
    score = attention.score(step, sum_of_warp(score));
    if (block.lane == 0) fresh[HEAD_DIM + which] = score;
  }
}

// Puts q and k, normed and rotated by the token's position, and v into shared memory.
__device__ void prepare_queries(const Step& step, const Block& block, const LayerAttention& attention, const Item& item,
                                u16* keys) {
  constexpr int NUMBERS = (GROUP + 2) * HEAD_DIM, ROUNDS = (NUMBERS + THREADS - 1) / THREADS;
  const int head = item.head;
  float cosine[ROUNDS], sine[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int i = min((int)threadIdx.x + r * THREADS, NUMBERS - 1), which = i / HEAD_DIM, dim = i % HEAD_DIM;
    const bool is_turned = which <= GROUP && dim < 2 * PAIRS;
    const int pair = item.position * PAIRS + (IS_INTERLEAVED ? dim / 2 % PAIRS : dim % PAIRS);
    cosine[r] = is_turned ? attention.rope.cosines[pair] : 1.0f;
    sine[r] = is_turned ? (is_first_of_pair(dim) ? -attention.rope.sines[pair] : attention.rope.sines[pair]) : 0.0f;
    if constexpr (HEAD_NORM) {
      const int other = is_turned ? other_of_pair(dim) : dim;
      cosine[r] *= head_norm_of(attention.layer, item, which, dim);
      sine[r] *= head_norm_of(attention.layer, item, which, other);
    }
  }
  load_raw(step, block, item);
  u16* queries = (u16*)(block.scratch + AT_QUERY);
  const float* raw = block.scratch + AT_PARTIAL;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int i = min((int)threadIdx.x + r * THREADS, NUMBERS - 1), which = i / HEAD_DIM, dim = i % HEAD_DIM;
    const bool is_turned = which <= GROUP && dim < 2 * PAIRS;
    const int other = is_turned ? i - dim + other_of_pair(dim) : i;
    float turned = raw[i] * cosine[r] + raw[other] * sine[r];
    if constexpr (HEAD_NORM) turned *= head_factor_of(step, block, which);
    const u16 rounded = to_bf16(turned);
    if (which < GROUP) {
      queries[place_of_query(which, dim)] = rounded;
    } else {
      block.scratch[(which == GROUP ? AT_KEY : AT_VALUE) + dim] = from_bf16(rounded);
    }
  }
  sync_block();
  const bool is_newest = item.has_newest();
  if (is_newest && threadIdx.x < HEAD_DIM) {
    const int slot = attention.work.slots[item.token];
    const u64 at = place_in_cache(slot / BLOCK_TOKENS, head, slot % BLOCK_TOKENS) + threadIdx.x;
    keys[at] = to_bf16(block.scratch[AT_KEY + threadIdx.x]);
    keys[at + attention.work.cache_stride] = to_bf16(block.scratch[AT_VALUE + threadIdx.x]);
  }
  if (block.warp >= WARPS - 8) {  // the newest key is not read from the cache
    const int which = block.warp - (WARPS - 8);
    float score = 0.0f;
    for (int dim = block.lane; dim < HEAD_DIM; dim += 32) {
      score += from_bf16(queries[place_of_query(which, dim)]) * block.scratch[AT_KEY + dim];
    }
    score = attention.score(step, sum_of_warp(score));
    if (block.lane == 0) block.scratch[AT_SCORE + which] = is_newest ? score : minus_infinity();
  } else if (ROW_TOKENS > 1) {
    const int back = item.nearest() + block.warp;
    if (back <= item.farthest(attention)) add_fresh_key(step, block, attention, item, back);
  }
}
