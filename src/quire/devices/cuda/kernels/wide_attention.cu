// Wide items of paged attention (see attention_work.py), for Hopper: prompts, and prefixes that rows share.
//
// Every processor runs one block, which does one item for one key head after another. Its queries are the 128 rows of a
// matrix product: the members' heads that share the key, one member after another. Four warps order: the copy engine
// brings tiles of 128 keys, and of their values, into two stages each, and one warp gathers the queries of the next
// item. Two groups of four warps have 64 rows each. A group starts the scores of the next tile before the values of
// this one are summed, so that the tensor cores multiply while it makes weights of scores; and the two groups take turns
// to start products, so that one multiplies while the other weighs.
//
//   scores   Q K^T, in float32; keys that a row may not see count as minus infinity. Tiles that all rows see whole are
//            not looked at
//   weights  powers of 2 of the scores less the greatest so far, rounded to bf16 for the product with the values
//   items    are sorted, the longest first. Blocks take them in a snake: none has much more to do than another
//
// Defined by whoever compiles: DIM (64, 128) KV GROUP BLOCK_TOKENS.

#include "warpgroup.cuh"

constexpr int ROWS = 128, KEYS = 128, STAGES = 2, GROUPS = 2, LINE = 128;  // LINE: bytes
constexpr int WARPS = 4, GROUP_THREADS = 32 * WARPS, GROUP_ROWS = ROWS / GROUPS;
constexpr int HALVES = 2 * DIM / LINE;  // lines of a key, or of a query
constexpr u32 HALF = KEYS * LINE, TILE = HALVES * HALF;
constexpr int TILE_BLOCKS = KEYS / BLOCK_TOKENS, FIELDS = 6;
constexpr int SUMS = DIM / 2;  // of a thread: two rows' share
constexpr int NOBODY = -1, WHOLE = -1;
static_assert(ROWS == KEYS && TILE_BLOCKS * HALVES <= 32 && KEYS % BLOCK_TOKENS == 0 && BLOCK_TOKENS % 8 == 0);

struct alignas(64) Wide {
  TensorMap cache;  // in boxes of a block's half lines
  const u16* q;
  u16* out;
  const int *items, *num_items, *members, *first_part, *num_parts, *positions, *tables;
  float *partial_out, *partial_lse;
  int keys_at, values_at;  // the lines of the layer's first block
  int q_stride, out_stride;
  float scale;  // of scores, in powers of 2
};

// What the warps that compute know of an item, and of each row.
struct Facts {
  int member[ROWS];  // NOBODY: no query
  int position[ROWS];
  int place[ROWS];  // of its partial result; WHOLE: it has one part
  int head, begin, end, seen;  // keys before `seen` are visible to all rows
};

struct Ring {  // of stages
  u32 at, full, empty;
};

struct Block {
  Ring keys, values, queries;
  Facts* facts;  // of each stage of queries
  int num_pairs;  // of items and heads
};

constexpr u32 BARRIERS = 3 * 2 * STAGES * 8;

// The round's item and head; none: num_pairs or more.
__device__ int pair_of(int round) {
  return round * (int)gridDim.x + (int)(round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// Where a ring's turn waits, and for what.
__device__ u32 full_at(const Ring& ring, u32 turn) { return ring.full + 8 * (turn % STAGES); }
__device__ u32 empty_at(const Ring& ring, u32 turn) { return ring.empty + 8 * (turn % STAGES); }
__device__ u32 stage_at(const Ring& ring, u32 turn) { return ring.at + TILE * (turn % STAGES); }
__device__ u32 parity_of(u32 turn) { return turn / STAGES & 1; }

// One warp brings all keys, another all values: a lane has one half of one block in each tile.
__device__ void order_tiles(const Wide& wide, const Block& block, const Ring& ring, int first_line) {
  const int lane = threadIdx.x & 31, place = lane % TILE_BLOCKS, half = lane / TILE_BLOCKS;
  const u32 to = half * HALF + place * BLOCK_TOKENS * LINE;
  const u64 policy = read_often();
  u32 turn = 0;
#pragma unroll 1
  for (int round = 0, pair; (pair = pair_of(round)) < block.num_pairs; ++round) {
    const int* item = wide.items + pair / KV * FIELDS;
    const int begin = item[3], num_blocks = (item[4] - begin + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const int* table = wide.tables + item[2] + begin / BLOCK_TOKENS;
    const int head_line = first_line + pair % KV * BLOCK_TOKENS;
    int known = half < HALVES && place < num_blocks ? table[place] : 0;
#pragma unroll 1
    for (int at = 0; at < num_blocks; at += TILE_BLOCKS, ++turn) {
      const bool is_there = half < HALVES && at + place < num_blocks;
      const int coming = half < HALVES && at + TILE_BLOCKS + place < num_blocks ? table[at + TILE_BLOCKS + place] : 0;
      wait(empty_at(ring, turn), parity_of(turn) ^ 1);
      const u32 full = full_at(ring, turn);
      if (lane == 0) arrive_expecting(full, min(num_blocks - at, TILE_BLOCKS) * BLOCK_TOKENS * LINE * HALVES);
      __syncwarp();
      const int line = head_line + known * (KV * BLOCK_TOKENS);
      if (is_there) copy_boxes(stage_at(ring, turn) + to, &wide.cache, line, half, full, policy);
      known = coming;
    }
  }
}

__device__ void note_rows(const Wide& wide, Facts& facts, const int* item, int head) {
  const int lane = threadIdx.x & 31, first = item[0], num_rows = item[1] * GROUP, begin = item[3], end = item[4];
  int lowest = end;
#pragma unroll
  for (int row = lane; row < ROWS; row += 32) {
    const bool is_query = row < num_rows;
    const int member = is_query ? wide.members[first + row / GROUP] : NOBODY;
    const int position = is_query ? wide.positions[member] : -1;
    const bool is_whole = !is_query || wide.num_parts[member] == 1;
    facts.member[row] = member;
    facts.position[row] = position;
    facts.place[row] = is_whole ? WHOLE : wide.first_part[member] + item[5];
    if (is_query) lowest = min(lowest, position + 1);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    lowest = min(lowest, __shfl_xor_sync(0xffffffffu, lowest, distance));
  }
  if (lane == 0) facts.head = head, facts.begin = begin, facts.end = end, facts.seen = lowest;
  __syncwarp();
}

// Members need not be neighbours: their queries come in chunks of 16 bytes, to where boxes would have brought them.
__device__ void order_queries(const Wide& wide, const Block& block) {
  constexpr int CHUNKS = DIM / 8, ROWS_AT_ONCE = 32 / CHUNKS;
  const int lane = threadIdx.x & 31, chunk = lane % CHUNKS;
#pragma unroll 1
  for (int round = 0, pair; (pair = pair_of(round)) < block.num_pairs; ++round) {
    const int head = pair % KV;
    Facts& facts = block.facts[round % STAGES];
    wait(empty_at(block.queries, round), parity_of(round) ^ 1);
    note_rows(wide, facts, wide.items + pair / KV * FIELDS, head);
    const u32 to = stage_at(block.queries, round) + chunk / 8 * HALF;
#pragma unroll 8
    for (int row = lane / CHUNKS; row < ROWS; row += ROWS_AT_ONCE) {
      const int member = facts.member[row];
      const u16* from = wide.q + (long long)max(member, 0) * wide.q_stride + (head * GROUP + row % GROUP) * DIM;
      copy_chunk(to + row * LINE + ((chunk % 8 ^ row % 8) << 4), from + chunk * 8, member != NOBODY);
    }
    wait_for_chunks();
    show_to_products();
    arrive(full_at(block.queries, round));
  }
}

// The scores of a group's rows for a tile of keys.
__device__ void start_scores(float (&scores)[KEYS / 2], u32 queries, u32 keys) {
  begin_products();
#pragma unroll
  for (int k = 0; k < DIM / 16; ++k) {
    const u32 at = k / 4 * HALF + k % 4 * 32;
    start_product(scores, matrix_at(queries + at, HALF), matrix_at(keys + at, HALF), k > 0);
  }
  end_products();
}

__device__ void start_values(float (&sums)[SUMS], const u32 (&weights)[KEYS / 16][4], u32 values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) start_product(sums, weights[k], matrix_at(values + k * 16 * LINE, HALF));
  end_products();
}

// A thread has two rows, 8 apart, and of each 8 neighbours the two that begin at `column`.
struct Softmax {
  float scale;
  float top[2], weight[2], decay[2];
  int last[2];  // the last key that a row may see
  int column;

  __device__ void hide(float (&scores)[KEYS / 2], int tile) const {
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      const int seen = last[i / 2 % 2] - tile - column;
      scores[i] = i / 4 * 8 + i % 2 <= seen ? scores[i] : nothing();
    }
  }

  // Scores become weights. What was summed so far is to be multiplied by `decay`.
  __device__ void weigh(float (&scores)[KEYS / 2]) {
    float most[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
    for (int i = 4; i < KEYS / 2; ++i) most[i % 4] = fmaxf(most[i % 4], scores[i]);
    float base[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float found = fmaxf(most[2 * row], most[2 * row + 1]);
      found = fmaxf(found, __shfl_xor_sync(0xffffffffu, found, 1));
      found = fmaxf(found, __shfl_xor_sync(0xffffffffu, found, 2));
      const float higher = fmaxf(top[row], found * scale);
      base[row] = higher == nothing() ? 0.0f : higher;
      decay[row] = power_of_2(top[row] - base[row]);
      top[row] = higher;
    }
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      scores[i] = power_of_2(scores[i] * scale - base[i / 2 % 2]);
      sums[i % 4] += scores[i];
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) weight[row] = weight[row] * decay[row] + (sums[2 * row] + sums[2 * row + 1]);
  }

  __device__ void lower(float (&sums)[SUMS]) const {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] *= decay[i / 2 % 2];
  }
};

__device__ void round_weights(u32 (&weights)[KEYS / 16][4], const float (&scores)[KEYS / 2]) {
#pragma unroll
  for (int i = 0; i < KEYS / 4; ++i) weights[i / 4][i % 4] = bf16_pair(scores[2 * i], scores[2 * i + 1]);
}

// Beyond the end there may be no numbers, and 0 times that is none either. Every group clears for itself.
__device__ void clear_values(u32 values, int first, int group) {
  const int thread = threadIdx.x % GROUP_THREADS;
  for (int i = thread; i < (KEYS - first) * HALVES * 8; i += GROUP_THREADS) {
    clear_chunk(values + i / 8 % HALVES * HALF + (first + i / (8 * HALVES)) * LINE + i % 8 * 16);
  }
  show_to_products();
  join(3 + group, GROUP_THREADS);
}

__device__ void release(u32 barrier) {
  if ((threadIdx.x & 31) == 0) arrive(barrier);
}

// The groups take turns: each waits until the other has started its products.
__device__ void await_turn(int group) { join(1 + group, GROUPS * GROUP_THREADS); }
__device__ void pass_turn(int group) { pass(2 - group, GROUPS * GROUP_THREADS); }

// Of four neighbours in a warp, each has one number of four chunks; then each has a chunk.
__device__ void exchange(u32 (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool is_high = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      const u32 sent = is_high ? words[i] : words[i + distance];
      const u32 found = __shfl_xor_sync(0xffffffffu, sent, distance);
      words[i] = is_high ? found : words[i], words[i + distance] = is_high ? words[i + distance] : found;
    }
  }
}

__device__ void write(const Wide& wide, const Facts& facts, const Softmax& softmax, const float (&sums)[SUMS], int row) {
#pragma unroll
  for (int i = 0; i < 2; ++i, row += 8) {
    float weight = softmax.weight[i];
    weight += __shfl_xor_sync(0xffffffffu, weight, 1);
    weight += __shfl_xor_sync(0xffffffffu, weight, 2);
    const float divisor = weight == 0.0f ? 1.0f : weight, share = 1.0f / divisor;
    const int member = facts.member[row], place = facts.place[row], head = facts.head * GROUP + row % GROUP;
    u16* out = wide.out + (long long)member * wide.out_stride + head * DIM + softmax.column * 4;
#pragma unroll
    for (int k = 0; k < SUMS; k += 16) {
      u32 words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int first = k + 4 * j + 2 * i;
        words[j] = bf16_pair(sums[first] * share, sums[first + 1] * share);
      }
      exchange(words);
      if (member != NOBODY && place == WHOLE) *(uint4*)(out + 2 * k) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (member == NOBODY || place == WHOLE) continue;
    const long long part = (long long)place * (KV * GROUP) + head;
    if (softmax.column == 0) wide.partial_lse[part] = softmax.top[i] + __log2f(divisor);
    float* partial = wide.partial_out + part * DIM + softmax.column;
#pragma unroll
    for (int k = 0; k < SUMS / 4; ++k) {
      partial[8 * k] = sums[4 * k + 2 * i] * share, partial[8 * k + 1] = sums[4 * k + 2 * i + 1] * share;
    }
  }
}

__device__ void attend(const Wide& wide, const Block& block, int group) {
  const int lane = threadIdx.x & 31, row = GROUP_ROWS * group + threadIdx.x / 32 % WARPS * 16 + lane / 4;
  float scores[KEYS / 2], sums[SUMS];
  u32 weights[KEYS / 16][4];
  u32 turn = 0;
  if (group == 1) pass_turn(group);
#pragma unroll 1
  for (int round = 0; pair_of(round) < block.num_pairs; ++round) {
    const u32 queries = stage_at(block.queries, round) + group * GROUP_ROWS * LINE;
    const Facts& facts = block.facts[round % STAGES];
    wait(full_at(block.queries, round), parity_of(round));
    const int end = facts.end, seen = facts.seen;
    Softmax softmax = {wide.scale, {nothing(), nothing()}, {0.0f, 0.0f}, {0.0f, 0.0f}, {0, 0}, lane % 4 * 2};
    for (int i = 0; i < 2; ++i) softmax.last[i] = min(facts.position[row + 8 * i], end - 1);
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;

    int tile = facts.begin;
    wait(full_at(block.keys, turn), parity_of(turn));
    start_scores(scores, queries, stage_at(block.keys, turn));
    wait_for_products<0>(scores);
    release(empty_at(block.keys, turn));
    if (tile + KEYS > seen) softmax.hide(scores, tile);
    softmax.weigh(scores);
    round_weights(weights, scores);
#pragma unroll 1
    for (tile += KEYS; tile < end; tile += KEYS, ++turn) {
      wait(full_at(block.keys, turn + 1), parity_of(turn + 1));
      await_turn(group);
      start_scores(scores, queries, stage_at(block.keys, turn + 1));
      wait(full_at(block.values, turn), parity_of(turn));
      start_values(sums, weights, stage_at(block.values, turn));
      pass_turn(group);
      wait_for_products<1>(scores);
      release(empty_at(block.keys, turn + 1));
      if (tile + KEYS > seen) softmax.hide(scores, tile);
      softmax.weigh(scores);
      settle(fminf(softmax.weight[0], softmax.weight[1]), queries);
      wait_for_products<0>(sums);
      release(empty_at(block.values, turn));
      softmax.lower(sums);
      round_weights(weights, scores);
    }
    const u32 values = stage_at(block.values, turn);
    wait(full_at(block.values, turn), parity_of(turn));
    if (tile > end) clear_values(values, end - tile + KEYS, group);
    start_values(sums, weights, values);
    wait_for_products<0>(sums);
    release(empty_at(block.values, turn));
    ++turn;
    write(wide, facts, softmax, sums, row);
    __syncwarp();
    release(empty_at(block.queries, round));
  }
}

__device__ Ring ring_of(u32 barriers, u32 at, u32 num_arrivals) {
  const Ring ring = {at, barriers, barriers + 8 * STAGES};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(ring.full + 8 * i, num_arrivals);
      init_barrier(ring.empty + 8 * i, GROUPS * WARPS);
    }
  }
  return ring;
}

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1)
    wide_attention(const __grid_constant__ Wide wide) {
  DYNAMIC_SHARED(memory);
  const u32 skipped = -shared_address(memory) & (ATOM - 1), at = shared_address(memory) + skipped;
  const u32 barriers = at + 3 * STAGES * TILE;
  Block block;
  block.keys = ring_of(barriers, at, 1);
  block.values = ring_of(barriers + 16 * STAGES, at + STAGES * TILE, 1);
  block.queries = ring_of(barriers + 32 * STAGES, at + 2 * STAGES * TILE, 32);
  block.facts = (Facts*)(memory + skipped + 3 * STAGES * TILE + BARRIERS);
  if (threadIdx.x == 0) show_barriers();
  __syncthreads();
  follow();
  block.num_pairs = *wide.num_items * KV;
  const int warp = threadIdx.x / 32;
  if (warp < WARPS) {
    give_registers<40>();
    if (warp == 0) order_tiles(wide, block, block.keys, wide.keys_at);
    if (warp == 1) order_tiles(wide, block, block.values, wide.values_at);
    if (warp == 2) order_queries(wide, block);
  } else {
    take_registers<232>();
    attend(wide, block, warp / WARPS - 1);
  }
}
