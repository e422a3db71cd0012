// Wide items of paged attention (see attention_work.py), for Hopper: prompts, and prefixes that rows share.
//
// Every processor runs one block, which processes pairs of an item and a key head. Its queries are the 128 rows of a
// matrix product: the members' heads that share the key head, member by member. Four warps load: two of them let the
// copy engine bring tiles of 128 keys and of their values into two stages each, and two gather the queries of the next
// items. Two groups of four warps have 64 rows each. A group starts the scores of the next tile before the values of
// this one are summed, so that the tensor cores are busy while it computes weights, and while the other group does.
//
//   scores   Q K^T, in float32; keys that a row may not see are minus infinity. Tiles that all rows see completely need
//            no mask
//   weights  powers of 2 of the scores minus the largest so far, rounded to bf16 for the product with the values
//   items    are sorted, the longest first. Blocks take them in serpentine order, which balances their work
//
// Compile-time definitions: DIM (64, 128) KV GROUP BLOCK_TOKENS.

#include "warpgroup.cuh"

constexpr int ROWS = 128, KEYS = 128, STAGES = 2, GROUPS = 2, LINE = 128;  // LINE: bytes
constexpr int WARPS = 4, GROUP_THREADS = 32 * WARPS, GROUP_ROWS = ROWS / GROUPS;
constexpr int HALVES = 2 * DIM / LINE;  // lines of a key, or of a query
constexpr u32 HALF = KEYS * LINE, TILE = HALVES * HALF;
constexpr int TILE_BLOCKS = KEYS / BLOCK_TOKENS, FIELDS = 6;
constexpr int SUMS = DIM / 2;  // per thread: its part of two rows
constexpr int NOBODY = -1, WHOLE = -1;
constexpr int BUFFERED_ITEMS = 2 * STAGES;  // results are written when queries of later items may already be loaded
static_assert(ROWS == KEYS && TILE_BLOCKS * HALVES <= 32 && KEYS % BLOCK_TOKENS == 0 && BLOCK_TOKENS % 8 == 0);

struct alignas(64) Wide {
  TensorMap cache;  // boxes of half the lines of a block
  const u16* q;
  u16* out;
  const int *items, *num_items, *members, *first_part, *num_parts, *positions, *tables;
  float *partial_out, *partial_lse;
  int keys_at, values_at;  // the lines of the layer's first block
  int q_stride, out_stride;
  float scale;  // of scores, for base 2
};

// The metadata of an item and of its rows, for the computing warps.
struct ItemData {
  int member[ROWS];  // NOBODY: no query
  int position[ROWS];
  int place[ROWS];  // index of its partial result; WHOLE: it has one part
  int head, begin, end, seen;  // keys before `seen` are visible to all rows
};

struct Ring {  // of stages
  u32 at, full, empty;
};

struct Block {
  Ring keys, values, queries;
  ItemData* data;  // of BUFFERED_ITEMS
  int num_pairs;  // of items and heads
};

constexpr u32 BARRIERS = 3 * 2 * STAGES * 8;

// The round's pair of item and head; num_pairs or more: there is none.
__device__ int pair_of(int round) {
  return round * (int)gridDim.x + (int)(round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// Barriers, stage and parity of a turn of a ring.
__device__ u32 full_at(const Ring& ring, u32 turn) { return ring.full + 8 * (turn % STAGES); }
__device__ u32 empty_at(const Ring& ring, u32 turn) { return ring.empty + 8 * (turn % STAGES); }
__device__ u32 stage_at(const Ring& ring, u32 turn) { return ring.at + TILE * (turn % STAGES); }
__device__ u32 parity_of(u32 turn) { return turn / STAGES & 1; }

// The blocks that an item reads for one head.
struct Span {
  const int* table;
  int num_blocks, line;  // the line of a block 0
};

__device__ Span span_of(const Wide& wide, const Block& block, int round, int first_line) {
  const int pair = pair_of(round);
  if (pair >= block.num_pairs) return {nullptr, 0, 0};
  const int *item = wide.items + pair / KV * FIELDS, begin = item[3];
  const int num_blocks = (item[4] - begin + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  return {wide.tables + item[2] + begin / BLOCK_TOKENS, num_blocks, first_line + pair % KV * BLOCK_TOKENS};
}

// One warp loads all keys, another all values: a lane has one half of one block in each tile. It loads the number of
// its next block before the stage is empty, also at the end of an item.
__device__ void load_tiles(const Wide& wide, const Block& block, const Ring& ring, int first_line) {
  const int lane = threadIdx.x & 31, place = lane / HALVES, half = lane % HALVES;
  const u32 to = half * HALF + place * BLOCK_TOKENS * LINE;
  const u64 policy = evict_normal_policy();
  const bool is_mine = place < TILE_BLOCKS;
  Span span = span_of(wide, block, 0, first_line);
  int known = is_mine && place < span.num_blocks ? span.table[place] : 0;
  u32 turn = 0;
#pragma unroll 1
  for (int round = 0; span.num_blocks; ++round) {
    const Span next = span_of(wide, block, round + 1, first_line);
#pragma unroll 1
    for (int at = 0; at < span.num_blocks; at += TILE_BLOCKS, ++turn) {
      const int left = span.num_blocks - at;
      wait(empty_at(ring, turn), parity_of(turn) ^ 1);
      const u32 full = full_at(ring, turn);
      if (lane == 0) arrive_expecting(full, min(left, TILE_BLOCKS) * BLOCK_TOKENS * LINE * HALVES);
      __syncwarp();
      const int line = span.line + known * (KV * BLOCK_TOKENS);
      if (is_mine && place < left) copy_boxes(stage_at(ring, turn) + to, &wide.cache, line, half, full, policy);
      const bool is_last = left <= TILE_BLOCKS;
      const int* table = is_last ? next.table : span.table + at + TILE_BLOCKS;
      if (is_mine && place < (is_last ? next.num_blocks : left - TILE_BLOCKS)) known = table[place];
    }
    span = next;
  }
}

// One lane's rows of an item, in registers until the buffer is free.
struct LaneRows {
  static constexpr int COUNT = ROWS / 32;
  int member[COUNT], position[COUNT], place[COUNT];
  int begin, end, seen;

  __device__ LaneRows(const Wide& wide, const int* item) : begin(item[3]), end(item[4]), seen(item[4]) {
    const int first = item[0], num_rows = item[1] * GROUP, part = item[5];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int row = (threadIdx.x & 31) + 32 * i;
      member[i] = row < num_rows ? wide.members[first + row / GROUP] : NOBODY;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const bool is_query = member[i] != NOBODY;
      position[i] = is_query ? wide.positions[member[i]] : -1;
      place[i] = !is_query || wide.num_parts[member[i]] == 1 ? WHOLE : wide.first_part[member[i]] + part;
      if (is_query) seen = min(seen, position[i] + 1);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      seen = min(seen, __shfl_xor_sync(0xffffffffu, seen, distance));
    }
  }

  __device__ void store(ItemData& data, int head) const {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int row = lane + 32 * i;
      data.member[row] = member[i], data.position[row] = position[i], data.place[row] = place[i];
    }
    if (lane == 0) data.head = head, data.begin = begin, data.end = end, data.seen = seen;
    __syncwarp();
  }
};

// Loads queries. Members need not be neighbours, so their queries are copied in chunks of 16 bytes, to the layout of
// boxes. Each stage has its own warp.
__device__ void load_queries(const Wide& wide, const Block& block, int stage) {
  constexpr int CHUNKS = DIM / 8, ROWS_AT_ONCE = 32 / CHUNKS;
  const int lane = threadIdx.x & 31, chunk = lane % CHUNKS;
#pragma unroll 1
  for (int round = stage, pair; (pair = pair_of(round)) < block.num_pairs; round += STAGES) {
    const int head = pair % KV;
    const LaneRows known(wide, wide.items + pair / KV * FIELDS);
    ItemData& data = block.data[round % BUFFERED_ITEMS];
    wait(empty_at(block.queries, round), parity_of(round) ^ 1);
    known.store(data, head);
    const u32 to = stage_at(block.queries, round) + chunk / 8 * HALF;
#pragma unroll 8
    for (int row = lane / CHUNKS; row < ROWS; row += ROWS_AT_ONCE) {
      const int member = data.member[row];
      const u16* from = wide.q + (long long)max(member, 0) * wide.q_stride + (head * GROUP + row % GROUP) * DIM;
      copy_chunk(to + row * LINE + ((chunk % 8 ^ row % 8) << 4), from + chunk * 8, member != NOBODY);
    }
    wait_for_chunks();
    fence_products();
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

// A thread has two rows, 8 apart, and two of each 8 columns, from `column` on.
struct Softmax {
  float scale;
  float top[2], weight[2], decay[2];
  int last[2];  // the last key that a row may see
  int column;

  // Resets the state for a new item.
  __device__ void begin(const ItemData& data, int row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = minus_infinity(), weight[i] = 0.0f;
      last[i] = min(data.position[row + 8 * i], data.end - 1);
    }
  }

  __device__ void mask(float (&scores)[KEYS / 2], int tile) const {
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      const int seen = last[i / 2 % 2] - tile - column;
      scores[i] = i / 4 * 8 + i % 2 <= seen ? scores[i] : minus_infinity();
    }
  }

  // Turns scores into weights. Earlier sums must be multiplied by `decay`.
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
      base[row] = higher == minus_infinity() ? 0.0f : higher;
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

  __device__ void rescale(float (&sums)[SUMS]) const {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] *= decay[i / 2 % 2];
  }
};

__device__ void round_weights(u32 (&weights)[KEYS / 16][4], const float (&scores)[KEYS / 2]) {
#pragma unroll
  for (int i = 0; i < KEYS / 4; ++i) weights[i / 4][i % 4] = bf16_pair(scores[2 * i], scores[2 * i + 1]);
}

// Clears values beyond the end: they may be NaN, and 0 times NaN is NaN. Every group clears its own view.
__device__ void clear_values(u32 values, int first, int group) {
  const int thread = threadIdx.x % GROUP_THREADS;
  for (int i = thread; i < (KEYS - first) * HALVES * 8; i += GROUP_THREADS) {
    clear_chunk(values + i / 8 % HALVES * HALF + (first + i / (8 * HALVES)) * LINE + i % 8 * 16);
  }
  fence_products();
  sync_threads(1 + group, GROUP_THREADS);
}

__device__ void release(u32 barrier) {
  if ((threadIdx.x & 31) == 0) arrive(barrier);
}

// Transposes words among four neighbouring lanes: each has a word of four chunks before, a whole chunk afterwards.
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

struct alignas(8) Pair {
  float first, second;
};

// Writes the results of an item's rows, or their parts.
__device__ void write(
    const Wide& wide, const ItemData& data, const Softmax& softmax, const float (&sums)[SUMS], int first_row) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + 8 * i;
    float weight = softmax.weight[i];
    weight += __shfl_xor_sync(0xffffffffu, weight, 1);
    weight += __shfl_xor_sync(0xffffffffu, weight, 2);
    const float divisor = weight == 0.0f ? 1.0f : weight, share = 1.0f / divisor;
    const int member = data.member[row], place = data.place[row], head = data.head * GROUP + row % GROUP;
    const bool is_whole = member != NOBODY && place == WHOLE;
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
      if (is_whole) *(uint4*)(out + 2 * k) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (is_whole || member == NOBODY) continue;
    const long long part = (long long)place * (KV * GROUP) + head;
    if (softmax.column == 0) wide.partial_lse[part] = softmax.top[i] + __log2f(divisor);
    float* partial = wide.partial_out + part * DIM + softmax.column;
#pragma unroll
    for (int k = 2 * i; k < SUMS; k += 4) *(Pair*)(partial + 2 * k - 4 * i) = {sums[k] * share, sums[k + 1] * share};
  }
}

template <int COUNT>
__device__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] = 0.0f;
}

// The state of a group of warps while it processes the tiles of all items.
struct Walk {
  const Wide& wide;
  const Block& block;
  const int group;
  const int row;  // the thread's first row
  Softmax softmax;
  int round, tile, end, seen;
  u32 turn;  // of keys; values are one turn behind
  float scores[KEYS / 2], sums[SUMS];
  u32 weights[KEYS / 16][4];

  __device__ Walk(const Wide& wide, const Block& block, int group)
      : wide(wide), block(block), group(group),
        row(GROUP_ROWS * group + threadIdx.x / 32 % WARPS * 16 + (threadIdx.x & 31) / 4), round(-1), turn(~0u) {
    softmax.scale = wide.scale, softmax.column = threadIdx.x % 4 * 2;
    clear(sums);
  }

  __device__ const ItemData& data() const { return block.data[round % BUFFERED_ITEMS]; }
  __device__ bool is_over() const { return pair_of(round + 1) >= block.num_pairs; }

  __device__ void open() {
    ++round;
    wait(full_at(block.queries, round), parity_of(round));
    tile = data().begin, end = data().end, seen = data().seen;
    softmax.begin(data(), row);
  }

  __device__ void start_next_scores() {
    ++turn;
    wait(full_at(block.keys, turn), parity_of(turn));
    const u32 queries = stage_at(block.queries, round) + group * GROUP_ROWS * LINE;
    start_scores(scores, queries, stage_at(block.keys, turn));
  }

  // For the previous tile, which has `num_keys` keys.
  __device__ void start_last_values(int num_keys = KEYS) {
    const u32 values = stage_at(block.values, turn - 1);
    wait(full_at(block.values, turn - 1), parity_of(turn - 1));
    if (num_keys < KEYS) clear_values(values, num_keys, group);
    start_values(sums, weights, values);
  }

  __device__ void await_values() {
    wait_for_products<0>(sums);
    release(empty_at(block.values, turn - 1));
  }

  template <int LATER>
  __device__ void weigh() {
    wait_for_products<LATER>(scores);
    release(empty_at(block.keys, turn));
    if (tile + KEYS >= end) release(empty_at(block.queries, round));
    if (tile + KEYS > seen) softmax.mask(scores, tile);
    softmax.weigh(scores);
    settle(fminf(softmax.weight[0], softmax.weight[1]), block.keys.at);
  }
};

// No gap between items: the first scores of one are computed while the last values of the previous one are summed.
__device__ void attend(const Wide& wide, const Block& block, int group) {
  Walk walk(wide, block, group);
  if (walk.is_over()) return;
  walk.open();
  walk.start_next_scores();
  walk.weigh<0>();
  round_weights(walk.weights, walk.scores);
  while (true) {
#pragma unroll 1
    for (walk.tile += KEYS; walk.tile < walk.end; walk.tile += KEYS) {
      walk.start_next_scores();
      walk.start_last_values();
      walk.weigh<1>();
      walk.await_values();
      walk.softmax.rescale(walk.sums);
      round_weights(walk.weights, walk.scores);
    }
    const ItemData& data = walk.data();
    const Softmax softmax = walk.softmax;
    const int visible = walk.end - walk.tile + KEYS;
    if (walk.is_over()) break;
    walk.open();
    walk.start_next_scores();
    walk.start_last_values(visible);
    walk.weigh<1>();
    walk.await_values();
    write(wide, data, softmax, walk.sums, walk.row);
    clear(walk.sums);
    round_weights(walk.weights, walk.scores);
  }
  ++walk.turn;
  walk.start_last_values(walk.end - walk.tile + KEYS);
  walk.await_values();
  write(wide, walk.data(), walk.softmax, walk.sums, walk.row);
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
  block.data = (ItemData*)(memory + skipped + 3 * STAGES * TILE + BARRIERS);
  if (threadIdx.x == 0) fence_barrier_init();
  __syncthreads();
  follow();
  block.num_pairs = *wide.num_items * KV;
  const int warp = threadIdx.x / 32;
  if (warp < WARPS) {
    give_registers<40>();
    if (warp == 0) load_tiles(wide, block, block.keys, wide.keys_at);
    if (warp == 1) load_tiles(wide, block, block.values, wide.values_at);
    if (warp >= 2) load_queries(wide, block, warp - 2);
  } else {
    take_registers<232>();
    attend(wide, block, warp / WARPS - 1);
  }
}
