// A block computes attention for the heads of one token that share a key head. A warp takes 16 keys at a time: scores
// are a product of keys and queries [16 keys, 8 heads], outputs one of values and weights [dims, 8 heads]. The mapping
// of rows and columns of a product to dimensions lets lanes load 16 bytes at once. Heads of more than 128 dimensions have
// too many outputs for the registers of a warp: two warps take the same keys, and half of the outputs each.
#pragma once

#include "queries.cuh"

// The softmax so far, of a lane's two heads, and the lane's numbers of the output.
struct RunningSoftmax {
  float top[2], weight[2], total[OUTPUTS][4];

  __device__ void fold(const float (&other_top)[2], const float (&other_weight)[2], const float (&other)[OUTPUTS][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float higher = fmaxf(top[h], other_top[h]), base = higher == minus_infinity() ? 0.0f : higher;
      const float mine = power_of_2(top[h] - base), theirs = power_of_2(other_top[h] - base);
      top[h] = higher;
      weight[h] = weight[h] * mine + other_weight[h] * theirs;
#pragma unroll
      for (int j = 0; j < OUTPUTS; ++j) {
        total[j][h] = total[j][h] * mine + other[j][h] * theirs;
        total[j][2 + h] = total[j][2 + h] * mine + other[j][2 + h] * theirs;
      }
    }
  }
};

__device__ uint4 load_16(const u16* from) { return *(const uint4*)from; }

__device__ u32 word_of(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// One number of each of two keys' values.
__device__ u32 pair_of(u32 first, u32 second, int which) { return __byte_perm(first, second, which ? 0x7632 : 0x5410); }

// 16 keys, or a part of their numbers: this lane's of the keys lane / 4 and lane / 4 + 8.
struct Keys {
  uint4 low[LOADS_AT_ONCE], high[LOADS_AT_ONCE];

  __device__ void load(const u16* keys, int lane) {
    const u16* mine = keys + lane / 4 * HEAD_DIM + (lane & 3) * 8;
#pragma unroll
    for (int i = 0; i < LOADS_AT_ONCE; ++i) low[i] = load_16(mine + 32 * i), high[i] = load_16(mine + 8 * HEAD_DIM + 32 * i);
  }

  // For the heads lane % 4 * 2 and lane % 4 * 2 + 1.
  __device__ void score(float (&scores)[4], const Block& block, int part) const {
    const uint2* queries = (const uint2*)(block.scratch + AT_QUERY) + part * LOADS_AT_ONCE * 64;
#pragma unroll
    for (int i = 0; i < LOADS_AT_ONCE; ++i) {
      const uint2 first = queries[(2 * i) * 32 + block.lane], second = queries[(2 * i + 1) * 32 + block.lane];
      multiply<false>(scores, low[i].x, high[i].x, low[i].y, high[i].y, first.x, first.y);
      multiply<false>(scores, low[i].z, high[i].z, low[i].w, high[i].w, second.x, second.y);
    }
  }
};

// Eight numbers of each lane's four values: of the keys 2t, 2t + 1, 2t + 8, 2t + 9, where t is lane % 4.
struct Values {
  uint4 rows[4];

  // Values beyond the last key are not read: they may be NaN.
  __device__ void load(const u16* values, int num_keys, int eighth, int lane) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = (lane & 3) * 2 + (r & 1) + r / 2 * 8;
      const u16* from = values + key * HEAD_DIM + lane / 4 * (2 * OUTPUTS) + 8 * eighth;
      rows[r] = key < num_keys ? load_16(from) : make_uint4(0, 0, 0, 0);
    }
  }

  // Adds the weights of 16 keys times their values to four outputs.
  __device__ void add(float (*total)[4], u32 first_weights, u32 second_weights) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 a0 = pair_of(word_of(rows[0], j / 2), word_of(rows[1], j / 2), j % 2);
      const u32 a1 = pair_of(word_of(rows[0], 2 + j / 2), word_of(rows[1], 2 + j / 2), j % 2);
      const u32 a2 = pair_of(word_of(rows[2], j / 2), word_of(rows[3], j / 2), j % 2);
      const u32 a3 = pair_of(word_of(rows[2], 2 + j / 2), word_of(rows[3], 2 + j / 2), j % 2);
      multiply<false>(total[j], a0, a1, a2, a3, first_weights, second_weights);
    }
  }
};

// Where 16 keys of an item are in the cache.
__device__ const u16* keys_at(const Step& step, const Item& item, const u16* keys, int begin) {
  const int at = (begin - item.begin) / BLOCK_TOKENS;  // items begin where a block does
  const int block = at < item.num_cached ? item.cached[at] : step.tables[item.table + begin / BLOCK_TOKENS];
  return keys + place_in_cache(block, item.head, begin % BLOCK_TOKENS);
}

// Prefetches keys and values of this block's items into L2 while q, k and v are computed: when they are needed, memory
// is busy with the next weights.
__device__ void prefetch_keys(const Step& step, const Block& block, const LayerAttention& attention, const u16* keys) {
  const int num_items = *attention.work.num_items * KV;
#pragma unroll 1
  for (int i = blockIdx.x; i < num_items; i += gridDim.x) {
    Item item;
    item.load(step, attention, i);
#pragma unroll 1
    for (int begin = item.begin + block.warp * 16; begin < item.last(); begin += WARPS * 16) {
      const u16* from = keys_at(step, item, keys, begin);
      for (int line = block.lane * 64; line < 16 * HEAD_DIM; line += 32 * 64) {
        prefetch_line(from + line);
        prefetch_line(from + attention.work.cache_stride + line);
      }
    }
  }
}

// Processes this warp's keys of an item.
__device__ void walk(const Step& step, const Block& block, const LayerAttention& attention, const Item& item,
                     const u16* keys, RunningSoftmax& running) {
  const int last = item.last(), first = item.position + 1 - attention.window;  // without a window, `first` is not read
  const int first_dim = first_dim_of(block.warp);
#pragma unroll 1
  for (int begin = item.begin + key_warp_of(block.warp) * 16; begin < last; begin += KEY_WARPS * 16) {
    const u16* from = keys_at(step, item, keys, begin);
    float scores[4] = {};
    Values values;
#pragma unroll
    for (int part = 0; part < LOADS / LOADS_AT_ONCE; ++part) {
      Keys some;
      some.load(from + part * LOADS_AT_ONCE * 32, block.lane);
      if (part == 0) values.load(from + attention.work.cache_stride + first_dim, last - begin, 0, block.lane);
      some.score(scores, block, part);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = begin + block.lane / 4 + i / 2 * 8;
      const bool is_there = key < last && (!HAS_WINDOW || key >= first);
      scores[i] = is_there ? attention.score(step, scores[i]) : minus_infinity();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float higher = fmaxf(running.top[h], fmaxf(scores[h], scores[2 + h]));
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        higher = fmaxf(higher, __shfl_xor_sync(0xffffffffu, higher, distance));
      }
      const float top = running.top[h];
      running.top[h] = higher;
      if (HAS_WINDOW && higher == minus_infinity()) higher = 0.0f;  // without a window, the first key is there
      const float factor = power_of_2(top - higher);
      scores[h] = power_of_2(scores[h] - higher), scores[2 + h] = power_of_2(scores[2 + h] - higher);
      running.weight[h] = running.weight[h] * factor + scores[h] + scores[2 + h];
#pragma unroll
      for (int j = 0; j < OUTPUTS; ++j) running.total[j][h] *= factor, running.total[j][2 + h] *= factor;
    }
    const u32 first = transposed(bf16_pair(scores[0], scores[1])), second = transposed(bf16_pair(scores[2], scores[3]));
#pragma unroll
    for (int eighth = 0; eighth < OUTPUTS / 4; ++eighth) {
      if (eighth > 0) values.load(from + attention.work.cache_stride + first_dim, last - begin, eighth, block.lane);
      values.add(running.total + 4 * eighth, first, second);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      running.weight[h] += __shfl_xor_sync(0xffffffffu, running.weight[h], distance);
    }
  }
}

// Merges sixteen warps into eight: the upper half stores its partial results, the lower half folds them in.
__device__ void merge_warp_halves(const Block& block, RunningSoftmax& running) {
  const bool has_heads = (block.lane & 3) < PAIRED;
  const int place = block.lane / 4 * PAIRED + (block.lane & 3);
  float* left = block.scratch + AT_PARTIAL + block.warp % HALF_WARPS * (PARTIAL_NUMBERS * 8 * PAIRED) + place;
  if (has_heads && block.warp >= HALF_WARPS) {
#pragma unroll
    for (int h = 0; h < 2; ++h) left[h * 8 * PAIRED] = running.top[h], left[(2 + h) * 8 * PAIRED] = running.weight[h];
#pragma unroll
    for (int i = 0; i < 4 * OUTPUTS; ++i) left[(4 + i) * 8 * PAIRED] = running.total[i / 4][i % 4];
  }
  sync_block();
  if (has_heads && block.warp < HALF_WARPS) {
    float top[2], weight[2], total[OUTPUTS][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = left[h * 8 * PAIRED], weight[h] = left[(2 + h) * 8 * PAIRED];
#pragma unroll
    for (int i = 0; i < 4 * OUTPUTS; ++i) total[i / 4][i % 4] = left[(4 + i) * 8 * PAIRED];
    running.fold(top, weight, total);
  }
  sync_block();
}

// Stores the partial results of eight warps, or of eight pairs of warps, by head and dim.
__device__ void store_partials(const Block& block, const RunningSoftmax& running) {
  if (!IS_SPLIT && block.warp >= HALF_WARPS) return;
  const int warp = key_warp_of(block.warp), first_dim = first_dim_of(block.warp);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int which = (block.lane & 3) * 2 + h;
    if (which >= GROUP) continue;
    float* total = block.scratch + AT_PARTIAL + (warp * GROUP + which) * HEAD_DIM + first_dim;
#pragma unroll
    for (int i = 0; i < 2 * OUTPUTS; ++i) {
      const int number = i % 2 * 2;
      total[dim_of(i / 2, number, block.lane)] = running.total[i / 2][number + h];
    }
    if (block.lane < 4 && first_dim == 0) {
      block.scratch[AT_TOP + warp * 8 + which] = running.top[h];
      block.scratch[AT_WEIGHT + warp * 8 + which] = running.weight[h];
    }
  }
}

// One number of a head, from all warps' keys and those of this step; and the logarithm of their weight.
__device__ float mean_of_warps(const LayerAttention& attention, const Item& item, const float* scratch, int which,
                               int dim, float& lse) {
  const float newest = scratch[AT_SCORE + which];
  const float* fresh = scratch + AT_FRESH - FRESH_NUMBERS;  // of the token 0 before
  const int nearest = ROW_TOKENS == 1 ? 0 : item.nearest(), farthest = ROW_TOKENS == 1 ? -1 : item.farthest(attention);
  float top = newest;
#pragma unroll 1
  for (int back = nearest; back <= farthest; ++back) top = fmaxf(top, fresh[back * FRESH_NUMBERS + HEAD_DIM + which]);
#pragma unroll
  for (int w = 0; w < HALF_WARPS; ++w) top = fmaxf(top, scratch[AT_TOP + w * 8 + which]);
  float weight = power_of_2(newest - top), total = weight * scratch[AT_VALUE + dim];
#pragma unroll 1
  for (int back = nearest; back <= farthest; ++back) {
    const float factor = power_of_2(fresh[back * FRESH_NUMBERS + HEAD_DIM + which] - top);
    weight += factor, total += factor * fresh[back * FRESH_NUMBERS + dim];
  }
#pragma unroll
  for (int w = 0; w < HALF_WARPS; ++w) {
    const float factor = power_of_2(scratch[AT_TOP + w * 8 + which] - top);
    weight += scratch[AT_WEIGHT + w * 8 + which] * factor;
    total += scratch[AT_PARTIAL + (w * GROUP + which) * HEAD_DIM + dim] * factor;
  }
  lse = top + __log2f(weight);
  return total / weight;
}

// Writes the item's output; or its part, for all blocks that have a part of the same token and heads.
__device__ void write_output(const Step& step, const Block& block, const LayerAttention& attention, const Item& item) {
#pragma unroll 1
  for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
    const int query = item.head * GROUP + i / HEAD_DIM, dim = i % HEAD_DIM;
    float lse;
    const float mean = mean_of_warps(attention, item, block.scratch, i / HEAD_DIM, dim, lse);
    if (item.count == 1) {
      write_token<HALF>(step.attended + (u64)item.token * (HEADS * HEAD_DIM), query * HEAD_DIM + dim, mean);
    } else {
      const u64 at = (u64)(item.first + item.part) * HEADS + query;
      store_tagged(step.partial_out + at * HEAD_DIM + dim, mean, block.tag);
      if (dim == 0) store_tagged(step.partial_lse + at, lse, block.tag);
    }
  }
  sync_block();
}

// Merges all parts of an output, in order. Every block that computed a part merges an equal share of the numbers.
__device__ void merge(const Step& step, const Block& block, const Item& item) {
  constexpr int NUMBERS = GROUP * HEAD_DIM, TOGETHER = 8;
  const int share = (NUMBERS + item.count - 1) / item.count, i = item.part * share + threadIdx.x;
  static_assert(NUMBERS <= 2 * THREADS, "with two parts, a thread merges at most one number");
  if ((int)threadIdx.x >= share || i >= NUMBERS) return;
  const int query = item.head * GROUP + i / HEAD_DIM, dim = i % HEAD_DIM;
  float top = minus_infinity(), weight = 0.0f, total = 0.0f;
#pragma unroll 1
  for (int begin = 0; begin < item.count; begin += TOGETHER) {
    u64 lse[TOGETHER], mean[TOGETHER];
    bool are_there;
    do {
      are_there = true;
#pragma unroll
      for (int part = 0; part < TOGETHER; ++part) {
        const u64 at = (u64)(item.first + min(begin + part, item.count - 1)) * HEADS + query;
        lse[part] = load_tagged(step.partial_lse + at), mean[part] = load_tagged(step.partial_out + at * HEAD_DIM + dim);
      }
#pragma unroll
      for (int part = 0; part < TOGETHER; ++part) {
        are_there &= has_tag(lse[part], block.tag) && has_tag(mean[part], block.tag);
      }
      if (!are_there) pause();
    } while (!are_there);
#pragma unroll
    for (int part = 0; part < TOGETHER; ++part) {
      if (begin + part >= item.count) continue;
      const float higher = fmaxf(top, number_of(lse[part]));
      const float mine = power_of_2(top - higher), theirs = power_of_2(number_of(lse[part]) - higher);
      weight = weight * mine + theirs, total = total * mine + number_of(mean[part]) * theirs, top = higher;
    }
  }
  write_token<HALF>(step.attended + (u64)item.token * (HEADS * HEAD_DIM), query * HEAD_DIM + dim, total / weight);
}

// All items of this block. A block stores all its own parts before it waits for others: no deadlock.
__device__ void attend(const Step& step, Block& block, const LayerAttention& attention, u16* keys) {
  const int num_items = *attention.work.num_items * KV;
  sync_block();
  clear_queries(block);
#pragma unroll 1
  for (int i = blockIdx.x; i < num_items; i += gridDim.x) {
    Item item;
    item.load(step, attention, i);
    prepare_queries(step, block, attention, item, keys);
    RunningSoftmax running;
#pragma unroll
    for (int h = 0; h < 2; ++h) running.top[h] = minus_infinity(), running.weight[h] = 0.0f;
#pragma unroll
    for (int n = 0; n < 4 * OUTPUTS; ++n) running.total[n / 4][n % 4] = 0.0f;
    walk(step, block, attention, item, keys, running);
    if constexpr (IS_SPLIT) {
      sync_block();  // the raw numbers were where partial results are stored
    } else {
      merge_warp_halves(block, running);
    }
    store_partials(block, running);
    sync_block();
    write_output(step, block, attention, item);
  }
#pragma unroll 1
  for (int i = blockIdx.x; i < num_items; i += gridDim.x) {
    Item item;
    item.load(step, attention, i);
    if (item.count > 1) merge(step, block, item);
  }
}
