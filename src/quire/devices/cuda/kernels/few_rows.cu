// A whole step of few rows in one kernel, for Hopper: from the tokens' numbers to their logits.
//
// Every processor runs one block, to the end. One of its warps orders weights: the copy engine brings them into a ring of
// slots, one product after another, without ever waiting for anything but a free slot. 16 warps multiply and attend, and meet
// the warps of all other blocks after each product, because the next one reads what all of them made. So memory goes on
// reading while results are summed, exchanged and attended with: those moments, which cost a fifth of a step that is made of
// kernels, cost nothing as long as the ring is not full. One more warp orders what the products read, when it is there.
//
// A product: a block owns groups of 16 * TILES rows of the weight (of a gate, as many rows of both halves). A slot holds
// PARTS boxes of 128 bytes by all rows of the group. A warp multiplies one tile with one box; parts are summed at the end
// in shared memory, in their order: a step's numbers are always the same.
//
// What a product reads lies in memory in the order in which lanes need it (place_of). A norm's weight is multiplied in by
// whoever writes, together with the sum of squares of its rows; the root mean square is multiplied in by whoever reads. For
// FP8 weights, which become half precision on their way to the tensor cores, tokens are half precision too, a 16th of their
// size so that large ones fit. They are never rounded to 8 bits.
//
// Defined by whoever compiles: LAYERS WIDTH FFN VOCAB DIM HEADS KV HEAD_DIM PAIRS BLOCK_TOKENS HAS_BIAS TOKENS ROOM_FOR SLOTS
// TOKEN_ROOM RESIDUAL, and TILES of each product.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct alignas(64) TensorMap { u64 opaque[16]; };

enum Kind { QKV, ADD, GATE, LOGITS };

constexpr int WARPS = 16;  // that multiply
constexpr int THREADS = 32 * WARPS;
constexpr int SLOT = 32768;       // bytes of weights
constexpr int TOKEN_SLOT = 16384;  // bytes of tokens, at most
constexpr int TOKEN_SLOTS = 8;
constexpr bool HALF = WIDTH == 1;
constexpr float SIXTEENTH = 0.0625f;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int GROUP = HEADS / KV;
constexpr int QKV_ROWS = (HEADS + 2 * KV) * HEAD_DIM;
constexpr int MAPS = 4;  // of a layer

template <int K_, int N_, int TILES_, int WIDTH_, Kind KIND_, bool NORMED_>
struct Product {
  static constexpr int K = K_, N = N_, TILES = TILES_, WIDTH_OF = WIDTH_;
  static constexpr Kind KIND = KIND_;
  static constexpr bool NORMED = NORMED_, IS_FP8 = WIDTH_ == 1, IS_GATE = KIND_ == GATE;
  static constexpr int BOX = 128 / WIDTH_;  // columns
  static constexpr int BOXES = K / BOX;
  static constexpr __device__ bool fits(int parts) {
    return parts * TILES <= WARPS && BOXES % parts == 0;
  }
  static constexpr int PARTS = fits(8) ? 8 : fits(4) ? 4 : fits(2) ? 2 : 1;
  static constexpr int ROWS = 16 * TILES;
  static constexpr int OUT_ROWS = IS_GATE ? ROWS / 2 : ROWS;
  static constexpr int GROUPS = (N + OUT_ROWS - 1) / OUT_ROWS;
  static constexpr int STEPS = BOXES / PARTS;
  static constexpr int SIZE = PARTS * ROWS * 128;  // of a step's weights
  static constexpr int LANE_ROWS = (OUT_ROWS + 31) / 32;
  static constexpr __device__ bool is_small(int parts) { return parts * BOX * 2 * ROOM_FOR <= TOKEN_SLOT; }
  static constexpr int TOGETHER = is_small(PARTS) ? PARTS : is_small(4) ? 4 : is_small(2) ? 2 : 1;  // parts' tokens
  static constexpr int PORTIONS = PARTS / TOGETHER;
  static constexpr int COLUMNS = TOGETHER * BOX;
  static constexpr int PITCH = COLUMNS * 2 + 64;  // of a token: no two begin in one bank
  static constexpr int ROOM = TOKEN_ROOM / (ROOM_FOR * PITCH);
  static constexpr int AHEAD = ROOM < TOKEN_SLOTS ? ROOM : TOKEN_SLOTS;  // portions that can be there
  static_assert(K % BOX == 0 && SIZE <= SLOT && TILES <= WARPS, "whole boxes, and a slot that holds them");
  static_assert(AHEAD >= 2, "tokens come while others are multiplied");
};

using Qkv = Product<DIM, QKV_ROWS, QKV_TILES, WIDTH, QKV, true>;
using Answer = Product<HEADS * HEAD_DIM, DIM, ANSWER_TILES, WIDTH, ADD, false>;
using Gate = Product<DIM, FFN, GATE_TILES, WIDTH, GATE, true>;
using Down = Product<FFN, DIM, DOWN_TILES, WIDTH, ADD, false>;
using Head = Product<DIM, VOCAB, HEAD_TILES, 2, LOGITS, true>;

static_assert(Answer::OUT_ROWS == Down::OUT_ROWS, "a block keeps the residual of its own rows");

struct Layer {
  const float* attention_norm;  // of the layer behind the last one: the norm before the head
  const float* ffn_norm;
  const float* qkv_scale;
  const float* answer_scale;
  const float* gate_scale;
  const float* down_scale;
  const u16* qkv_bias;
  const void* unused;
};

struct Step {
  const TensorMap* maps;  // MAPS of each layer, then the head's
  const Layer* layers;
  const u16* table;        // of embeddings
  const int* ids;          // below 0: the last token of a row
  const int* last_tokens;
  u16* normed;             // [TOKENS, DIM], and its squares [TOKENS, Down::GROUPS]
  float* squares;
  float* qkv;              // [TOKENS, QKV_ROWS]
  u16* attended;           // [TOKENS, HEADS * HEAD_DIM]
  u16* activated;          // [TOKENS, FFN]
  float* logits;           // [num_tokens, VOCAB]
  // attention
  const int* items;        // token, count, place of the block table, begin, end, part
  const int* num_items;
  const int* first_part;
  const int* num_parts;
  const int* positions;
  const int* slots;
  const int* tables;
  const float* cosines;
  const float* sines;
  u16* cache;              // [LAYERS, 2, blocks, KV, BLOCK_TOKENS, HEAD_DIM]
  float* partial_out;
  float* partial_lse;
  int* arrived;            // zeros, before and after
  u32* meeting;            // two zeros, before and after
  u64 cache_stride;        // numbers between K and V of a layer
  int num_tokens;
  float eps;
  float scale;             // of scores
};

// --- words of the machine

__device__ u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

__device__ void init_barrier(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ void arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n again:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @!done bra again;\n}\n" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ void copy_boxes(u32 to, const TensorMap* map, int row, int box, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(box), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ void copy_bytes(u32 to, const void* from, u32 size, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
      "r"(size), "r"(barrier)
      : "memory");
}

__device__ uint4 load_shared(u32 address) {
  uint4 found;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "r"(address)
               : "memory");
  return found;
}

__device__ void load_matrices(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// What other blocks have written is read past the first cache.
__device__ float load_fresh(const float* from) {
  float found;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(found) : "l"(from) : "memory");
  return found;
}

template <bool IS_HALF>
__device__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (IS_HALF) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Four FP8 numbers as two pairs of halves.
__device__ void widen(u32 four, u32& first, u32& second) {
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
      " cvt.rn.f16x2.e4m3x2 %0, low;\n cvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
      : "=r"(first), "=r"(second)
      : "r"(four));
}

__device__ float nothing() { return __int_as_float(0xff800000); }  // the score of no key: minus infinity

__device__ float from_bf16(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ u16 to_bf16(float number) {
  u16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(number));
  return rounded;
}

__device__ u16 to_half(float number) {
  u16 rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(fminf(fmaxf(number, -65504.0f), 65504.0f)));
  return rounded;
}

__device__ float power_of_2(float number) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(number));
  return power;
}

__device__ float sum_of_warp(float number) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) number += __shfl_xor_sync(0xffffffffu, number, distance);
  return number;
}

__device__ void join_block() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// --- the block

struct Block {
  u32 slots, full, empty;                    // the ring of weights, and its barriers
  u32 tokens, tokens_full, tokens_empty;     // what is multiplied with them
  int* first_item;         // of attention, for this block: the same in every layer
  float* scratch;          // sums of products; attention
  float* residual;         // [groups of this block, rows, TOKENS]
  int warp, lane;
  u32 at;                  // slots that were used so far
  u32 turns;               // of each slot of tokens, the parity that is waited for next
  u32 meetings;
};

// All blocks have written what the next product reads. Split in two: something can be asked for in between.
__device__ void announce(const Step& step, Block& block) {
  asm volatile("fence.proxy.async.global;" ::: "memory");  // the copy engine will read what was written
  join_block();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(step.meeting) : "memory");
  ++block.meetings;
}

__device__ void wait_for_all(const Step& step, u32 meetings) {
  const u32 wanted = meetings * gridDim.x;
  u32 seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(step.meeting) : "memory");
  } while (seen < wanted);
}

__device__ void meet(const Step& step, const Block& block) {
  if (threadIdx.x == 0) wait_for_all(step, block.meetings);
  join_block();
}

// --- tokens between products

// Where the column of a token lies, for a product with weights of FP8 (half) or bf16: 16 bytes of each of a token's four
// lanes, then the next 16. A lane's words are in the order of the weights' chunks of 16 bytes.
template <bool IS_HALF>
__device__ int place_of(int column) {
  constexpr int BOX = IS_HALF ? 128 : 64, SPAN = IS_HALF ? 4 : 2;  // columns of a box; that a lane has of a chunk
  const int inside = column % BOX, chunk = inside / (4 * SPAN), lane = inside / SPAN % 4, rest = inside % SPAN;
  const int word = (chunk * SPAN + rest) / 2;
  return column - inside + word / 4 * 32 + lane * 8 + word % 4 * 2 + rest % 2;
}

template <bool IS_HALF>
__device__ void write_token(u16* row, int column, float number) {
  row[place_of<IS_HALF>(column)] = IS_HALF ? to_half(number * SIXTEENTH) : to_bf16(number);
}

// The residual has a new value in this block's rows: leave the norm's product, and the squares.
template <bool IS_HALF>
__device__ float write_normed(const Step& step, int token, int row, float value, float norm) {
  write_token<IS_HALF>(step.normed + (u64)token * DIM, row, value * norm);
  return value * value;
}

__device__ void embed(const Step& step, Block& block) {
  const int token = block.warp;
  if (token < step.num_tokens) {
    int id = step.ids[token];
    if (id < 0) id = step.last_tokens[-1 - id];
    for (int group = blockIdx.x, own = 0; group < Down::GROUPS; group += gridDim.x, ++own) {
      float squares = 0.0f;
      for (int inside = block.lane; inside < Down::OUT_ROWS; inside += 32) {
        const int row = group * Down::OUT_ROWS + inside;
        if (row >= DIM) break;
        const float value = from_bf16(step.table[(u64)id * DIM + row]);
        block.residual[(own * Down::OUT_ROWS + inside) * TOKENS + token] = value;
        squares += write_normed<HALF>(step, token, row, value, step.layers[0].attention_norm[row]);
      }
      squares = sum_of_warp(squares);
      if (block.lane == 0) step.squares[token * Down::GROUPS + group] = squares;
    }
  }
}

// --- products

template <class P>
__device__ void order(const TensorMap* map, Block& block, u64 policy) {
#pragma unroll 1
  for (int group = blockIdx.x; group < P::GROUPS; group += gridDim.x) {
#pragma unroll 1
    for (int i = 0; i < P::STEPS; ++i, ++block.at) {
      const u32 slot = block.at % SLOTS, full = block.full + 8 * slot, to = block.slots + slot * SLOT;
      if (block.at >= SLOTS) wait(block.empty + 8 * slot, (block.at / SLOTS - 1) & 1);
      arrive_expecting(full, P::SIZE);
      copy_boxes(to, map, group * P::OUT_ROWS, i * P::PARTS, full, policy);
      if (P::IS_GATE) copy_boxes(to + P::SIZE / 2, map, P::N + group * P::OUT_ROWS, i * P::PARTS, full, policy);
    }
  }
}

// The warp's place in a product. A gate's boxes hold the gate's rows of all parts, then the other half's.
template <class P>
struct Place {
  int part, tile;
  bool is_idle;
  __device__ explicit Place(int warp) : part(warp % P::PARTS), tile(warp / P::PARTS), is_idle(tile >= P::TILES) {}
  __device__ int offset() const {
    constexpr int PER_BOX = P::IS_GATE ? P::TILES / 2 : P::TILES;
    const int half = tile / PER_BOX, inside = tile % PER_BOX;
    return ((half * P::PARTS + part) * PER_BOX + inside) * 2048;
  }
};

// A product's tokens, step by step, as soon as all blocks have written them.
template <class P>
__device__ void order_tokens(const Step& step, Block& block, const u16* tokens) {
  if (blockIdx.x >= P::GROUPS) return;
  if (block.lane == 0) {
    wait_for_all(step, block.meetings);
    asm volatile("fence.proxy.async.global;" ::: "memory");
  }
  __syncwarp();
  int slot = 0;
#pragma unroll 1
  for (int group = blockIdx.x; group < P::GROUPS; group += gridDim.x) {
#pragma unroll 1
    for (int i = 0; i < P::STEPS * P::PORTIONS; ++i) {
      const u32 full = block.tokens_full + 8 * slot;
      wait(block.tokens_empty + 8 * slot, (block.turns >> slot) & 1);
      block.turns ^= 1 << slot;
      if (block.lane == 0) arrive_expecting(full, step.num_tokens * P::COLUMNS * 2);
      __syncwarp();
      if (block.lane < step.num_tokens) {
        const u32 to = block.tokens + (slot * ROOM_FOR + block.lane) * P::PITCH;
        copy_bytes(to, tokens + (u64)block.lane * P::K + i * P::COLUMNS, P::COLUMNS * 2, full);
      }
      slot = slot + 1 == P::AHEAD ? 0 : slot + 1;
    }
  }
}

template <class P>
__device__ void multiply_box(float (&sums)[TOKENS / 8][4], u32 weights, u32 tokens, int lane) {
  const int row = lane & 15;
  weights += row * 128;
  tokens += lane / 4 * P::PITCH + (lane & 3) * 16;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {  // of the weights' chunks
    u32 a[4];
    load_matrices(a, weights + (((2 * pair + lane / 16) ^ (row & 7)) << 4));
    if constexpr (P::IS_FP8) {
      u32 halves[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        widen(a[2 * half], halves[half][0], halves[half][2]);
        widen(a[2 * half + 1], halves[half][1], halves[half][3]);
      }
#pragma unroll
      for (int n = 0; n < TOKENS / 8; ++n) {
        const uint4 b = load_shared(tokens + 8 * n * P::PITCH + pair * 64);
        multiply<true>(sums[n], halves[0][0], halves[0][1], halves[0][2], halves[0][3], b.x, b.y);
        multiply<true>(sums[n], halves[1][0], halves[1][1], halves[1][2], halves[1][3], b.z, b.w);
      }
    } else {
      u32 following[4];
      if (pair % 2) continue;
      load_matrices(following, weights + (((2 * pair + 2 + lane / 16) ^ (row & 7)) << 4));
#pragma unroll
      for (int n = 0; n < TOKENS / 8; ++n) {
        const uint4 b = load_shared(tokens + 8 * n * P::PITCH + pair / 2 * 64);
        multiply<false>(sums[n], a[0], a[1], a[2], a[3], b.x, b.y);
        multiply<false>(sums[n], following[0], following[1], following[2], following[3], b.z, b.w);
      }
    }
  }
}

// Where a sum lies: rows that are read together lie in different banks.
template <class P>
__device__ int place_of_sum(int part, int row, int token) {
  return (part * P::ROWS + row) * TOKENS + (token ^ (row % TOKENS));
}

template <class P>
__device__ float sum_of_parts(const float* sums, int row, int token) {
  float sum = 0.0f;
#pragma unroll
  for (int part = 0; part < P::PARTS; ++part) sum += sums[place_of_sum<P>(part, row, token)];
  return sum;
}

// Constants that a group's end needs, asked for before its product begins.
template <class P>
struct Late {
  float scale[P::IS_FP8 ? P::LANE_ROWS : 1], up_scale[P::IS_FP8 && P::IS_GATE ? P::LANE_ROWS : 1];
  float norm[P::KIND == ADD ? P::LANE_ROWS : 1];

  __device__ void load(const float* scales, const float* norms, int group, int lane) {
#pragma unroll
    for (int i = 0; i < P::LANE_ROWS; ++i) {
      const int row = min(group * P::OUT_ROWS + lane + 32 * i, P::N - 1);
      if constexpr (P::IS_FP8) scale[i] = scales[row];
      if constexpr (P::IS_FP8 && P::IS_GATE) up_scale[i] = scales[P::N + row];
      if constexpr (P::KIND == ADD) norm[i] = norms[row];
    }
  }
};

// A group's rows of one token, from the sums to what others read. NEXT_IS_HALF: what an FP8 product reads.
template <class P, bool NEXT_IS_HALF>
__device__ void finish(const Step& step, const Block& block, const Late<P>& late, const u16* bias, float factor, int group,
                       int own) {
  const int token = block.warp;
  if (token >= step.num_tokens) return;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < P::LANE_ROWS; ++i) {
    const int inside = block.lane + 32 * i, row = group * P::OUT_ROWS + inside;
    if (inside >= P::OUT_ROWS || row >= P::N) continue;
    float sum = sum_of_parts<P>(block.scratch, inside, token) * factor;
    if constexpr (P::IS_FP8) sum *= late.scale[i];
    if constexpr (P::KIND == QKV) {
      if (HAS_BIAS) sum += from_bf16(bias[row]);
      step.qkv[(u64)token * P::N + row] = sum;
    } else if constexpr (P::KIND == GATE) {
      float up = sum_of_parts<P>(block.scratch, P::OUT_ROWS + inside, token) * factor;
      if constexpr (P::IS_FP8) up *= late.up_scale[i];
      write_token<HALF>(step.activated + (u64)token * P::N, row, sum / (1.0f + __expf(-sum)) * up);
    } else if constexpr (P::KIND == LOGITS) {
      step.logits[(u64)token * P::N + row] = sum;
    } else {
      float& residual = block.residual[(own * P::OUT_ROWS + inside) * TOKENS + token];
      residual += sum;
      squares += write_normed<NEXT_IS_HALF>(step, token, row, residual, late.norm[i]);
    }
  }
  if constexpr (P::KIND == ADD) {
    squares = sum_of_warp(squares);
    if (block.lane == 0) step.squares[token * P::GROUPS + group] = squares;
  }
}

// This lane's share of the sum of a token's squares.
__device__ float load_squares(const Step& step, const Block& block) {
  float squares = 0.0f;
  if (block.warp < step.num_tokens) {
#pragma unroll
    for (int i = 0; i < (Down::GROUPS + 31) / 32; ++i) {
      const int group = block.lane + 32 * i;
      if (group < Down::GROUPS) squares += load_fresh(step.squares + block.warp * Down::GROUPS + group);
    }
  }
  return squares;
}

// All groups of this block. Its tokens come when all blocks have met; a block without a group waits for that by itself.
template <class P, bool NEXT_IS_HALF>
__device__ void product(const Step& step, Block& block, const float* scales, const float* norms, const u16* bias) {
  if (blockIdx.x >= P::GROUPS) return meet(step, block);
  const Place<P> place(block.warp);
  Late<P> late;
  float squares = 0.0f;
  int token_slot = 0;
#pragma unroll 1
  for (int group = blockIdx.x, own = 0; group < P::GROUPS; group += gridDim.x, ++own) {
    late.load(scales, norms, group, block.lane);
    float sums[TOKENS / 8][4] = {};
#pragma unroll 1
    for (int i = 0; i < P::STEPS; ++i, ++block.at) {
      const u32 slot = block.at % SLOTS;
      if (P::NORMED && i == 0 && own == 0) {
        wait(block.tokens_full, block.turns & 1);
        squares = load_squares(step, block);
      }
      wait(block.full + 8 * slot, (block.at / SLOTS) & 1);
#pragma unroll
      for (int portion = 0; portion < P::PORTIONS; ++portion) {
        wait(block.tokens_full + 8 * token_slot, (block.turns >> token_slot) & 1);
        if (!place.is_idle && place.part / P::TOGETHER == portion) {
          const int at = token_slot * ROOM_FOR * P::PITCH + place.part % P::TOGETHER * P::BOX * 2;
          multiply_box<P>(sums, block.slots + slot * SLOT + place.offset(), block.tokens + at, block.lane);
        }
        __syncwarp();
        if (block.lane == 0) arrive(block.tokens_empty + 8 * token_slot);
        block.turns ^= 1 << token_slot;
        token_slot = token_slot + 1 == P::AHEAD ? 0 : token_slot + 1;
      }
      if (block.lane == 0) arrive(block.empty + 8 * slot);
    }
    float factor = P::IS_FP8 ? 1.0f / SIXTEENTH : 1.0f;
    if (P::NORMED) factor *= rsqrtf(sum_of_warp(squares) / P::K + step.eps);
    if (!place.is_idle) {
#pragma unroll
      for (int n = 0; n < TOKENS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = place.tile * 16 + block.lane / 4 + i / 2 * 8, token = 8 * n + (block.lane & 3) * 2 + (i & 1);
          block.scratch[place_of_sum<P>(place.part, row, token)] = sums[n][i];
        }
      }
    }
    join_block();
    finish<P, NEXT_IS_HALF>(step, block, late, bias, factor, group, own);
    if (group + gridDim.x < P::GROUPS) join_block();
  }
}

// --- attention

// A block attends for the heads of one token that share a key head. A warp takes 16 keys at a time: scores are a product of
// keys and queries [16 keys, 8 heads], answers one of values and weights [dims, 8 heads]. Which of a product's rows or columns
// a number stands for is chosen such that lanes load 16 bytes at once.

constexpr int QUERY_STEPS = HEAD_DIM / 16;  // products over a key's numbers
constexpr int ANSWERS = HEAD_DIM / 16;      // products that make an answer's numbers
constexpr int LOADS = HEAD_DIM / 32;        // of a key, by one of its four lanes
constexpr int HALF_WARPS = WARPS / 2;
constexpr int ITEM_NUMBERS = 12, KNOWN_BLOCKS = 52;
constexpr int PAIRED = (GROUP + 1) / 2;     // pairs of heads: a lane has one of four
constexpr int LEFT = 4 * ANSWERS + 4;       // numbers that a lane leaves for another warp
static_assert(GROUP <= 8 && BLOCK_TOKENS % 16 == 0, "a warp's keys lie in one block of the cache");

// Shared memory of attention, in floats.
constexpr int AT_QUERY = 0, AT_KEY = QUERY_STEPS * 64, AT_VALUE = AT_KEY + HEAD_DIM, AT_SCORE = AT_VALUE + HEAD_DIM;
constexpr int AT_TOP = AT_SCORE + 8, AT_WEIGHT = AT_TOP + 8 * HALF_WARPS, AT_LAST = AT_WEIGHT + 8 * HALF_WARPS;
constexpr int AT_LEFT = AT_LAST + 8;

// A token's keys, or a part of them, for the heads that share a key head.
struct Item {
  int token, table, begin, end, part, position, head, first, count;
  const int* known;  // the first blocks of its table
  int num_known;

  __device__ void load(const Step& step, const Block& block, int index) {
    const bool is_first = index == (int)blockIdx.x;
    const int* numbers = is_first ? block.first_item : step.items + 6 * (index / KV);
    head = index % KV;
    token = numbers[0], table = numbers[2], begin = numbers[3], end = numbers[4], part = numbers[5];
    position = is_first ? numbers[6] : step.positions[token];
    first = is_first ? numbers[7] : step.first_part[token], count = is_first ? numbers[8] : step.num_parts[token];
    known = numbers + ITEM_NUMBERS, num_known = is_first ? KNOWN_BLOCKS : 0;
  }

  // The newest key is in no cache yet.
  __device__ int last() const { return min(end, position); }
  __device__ bool has_newest() const { return end > position; }
};

// What all layers need of the block's first item.
__device__ void note_first_item(const Step& step, const Block& block) {
  if ((int)blockIdx.x >= *step.num_items * KV) return;
  const int* item = step.items + blockIdx.x / KV * 6;
  const int token = item[0], first_block = item[3] / BLOCK_TOKENS, num_blocks = (item[4] - 1) / BLOCK_TOKENS - first_block + 1;
  if (block.lane < 6) block.first_item[block.lane] = item[block.lane];
  if (block.lane == 6) block.first_item[6] = step.positions[token];
  if (block.lane == 7) block.first_item[7] = step.first_part[token], block.first_item[8] = step.num_parts[token];
  for (int i = block.lane; i < min(num_blocks, KNOWN_BLOCKS); i += 32) {
    block.first_item[ITEM_NUMBERS + i] = step.tables[item[2] + first_block + i];
  }
}

// The softmax so far, of a lane's two heads; and the answer's numbers that it has of them.
struct Running {
  float top[2], weight[2], total[ANSWERS][4];

  __device__ void fold(const float (&other_top)[2], const float (&other_weight)[2], const float (&other)[ANSWERS][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float higher = fmaxf(top[h], other_top[h]), base = higher == nothing() ? 0.0f : higher;
      const float mine = power_of_2(top[h] - base), theirs = power_of_2(other_top[h] - base);
      top[h] = higher;
      weight[h] = weight[h] * mine + other_weight[h] * theirs;
#pragma unroll
      for (int j = 0; j < ANSWERS; ++j) {
        total[j][h] = total[j][h] * mine + other[j][h] * theirs;
        total[j][2 + h] = total[j][2 + h] * mine + other[j][2 + h] * theirs;
      }
    }
  }
};

__device__ u64 place_in_cache(int block, int head, int inside) {
  return (((u64)block * KV + head) * BLOCK_TOKENS + inside) * HEAD_DIM;
}

// The dim of a number of Running::total.
__device__ int dim_of(int j, int number, int lane) {
  return lane / 4 * (2 * ANSWERS) + j / 4 * 8 + number / 2 * 4 + j % 4;
}

// The place of a query's number, as bf16: a lane's two words of a product lie together.
__device__ int place_of_query(int head, int dim) {
  const int product = dim / 32 * 2 + dim % 8 / 4, lane = head * 4 + dim % 32 / 8;
  return (product * 32 + lane) * 4 + dim % 4;
}

// Queries that nobody has score nothing.
__device__ void clear_queries(const Block& block) {
  for (int i = threadIdx.x; i < AT_KEY; i += THREADS) block.scratch[AT_QUERY + i] = 0.0f;
}

// q and k, turned by the token's position, and v, in shared memory. All is asked for before anything is waited for.
__device__ void prepare_queries(const Step& step, const Block& block, const Item& item, u16* keys) {
  constexpr int NUMBERS = (GROUP + 2) * HEAD_DIM, ROUNDS = (NUMBERS + THREADS - 1) / THREADS;
  const float* row = step.qkv + (u64)item.token * QKV_ROWS;
  const int head = item.head;
  float number[ROUNDS], other[ROUNDS], cosine[ROUNDS], sine[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int i = min((int)threadIdx.x + r * THREADS, NUMBERS - 1), which = i / HEAD_DIM, dim = i % HEAD_DIM;
    const int of = which < GROUP ? head * GROUP + which : HEADS + (which - GROUP) * KV + head;
    const bool is_turned = which <= GROUP && dim < 2 * PAIRS;
    const int pair = item.position * PAIRS + dim % PAIRS;
    number[r] = load_fresh(row + of * HEAD_DIM + dim);
    other[r] = load_fresh(row + of * HEAD_DIM + (is_turned ? (dim < PAIRS ? dim + PAIRS : dim - PAIRS) : dim));
    cosine[r] = is_turned ? step.cosines[pair] : 1.0f;
    sine[r] = is_turned ? (dim < PAIRS ? -step.sines[pair] : step.sines[pair]) : 0.0f;
  }
  u16* queries = (u16*)(block.scratch + AT_QUERY);
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int i = min((int)threadIdx.x + r * THREADS, NUMBERS - 1), which = i / HEAD_DIM, dim = i % HEAD_DIM;
    const u16 rounded = to_bf16(number[r] * cosine[r] + other[r] * sine[r]);
    if (which < GROUP) {
      queries[place_of_query(which, dim)] = rounded;
    } else {
      block.scratch[(which == GROUP ? AT_KEY : AT_VALUE) + dim] = from_bf16(rounded);
    }
  }
  join_block();
  const bool is_newest = item.has_newest();
  if (is_newest && threadIdx.x < HEAD_DIM) {
    const int slot = step.slots[item.token];
    const u64 at = place_in_cache(slot / BLOCK_TOKENS, head, slot % BLOCK_TOKENS) + threadIdx.x;
    keys[at] = to_bf16(block.scratch[AT_KEY + threadIdx.x]);
    keys[at + step.cache_stride] = to_bf16(block.scratch[AT_VALUE + threadIdx.x]);
  }
  if (block.warp >= WARPS - 8) {  // the newest key is not read from the cache
    const int which = block.warp - (WARPS - 8);
    float score = 0.0f;
    for (int dim = block.lane; dim < HEAD_DIM; dim += 32) {
      score += from_bf16(queries[place_of_query(which, dim)]) * block.scratch[AT_KEY + dim];
    }
    score = sum_of_warp(score) * step.scale * LOG2_E;
    if (block.lane == 0) block.scratch[AT_SCORE + which] = is_newest ? score : nothing();
  }
}

__device__ uint4 load_16(const u16* from) { return *(const uint4*)from; }

__device__ u32 word_of(const uint4& four, int i) { return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w; }

// One number of each of two keys' values.
__device__ u32 pair_of(u32 first, u32 second, int which) { return __byte_perm(first, second, which ? 0x7632 : 0x5410); }

__device__ u32 transposed(u32 pair) {
  u32 found;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(pair));
  return found;
}

__device__ u32 bf16_pair(float first, float second) {
  u32 found;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
  return found;
}

// 16 keys: of the keys lane / 4 and that + 8, this lane's numbers.
struct Keys {
  uint4 low[LOADS], high[LOADS];

  __device__ void load(const u16* keys, int lane) {
    const u16* mine = keys + lane / 4 * HEAD_DIM + (lane & 3) * 8;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) low[i] = load_16(mine + 32 * i), high[i] = load_16(mine + 8 * HEAD_DIM + 32 * i);
  }

  // For the heads lane % 4 * 2 and that + 1.
  __device__ void score(float (&scores)[4], const Block& block) const {
    const uint2* queries = (const uint2*)(block.scratch + AT_QUERY);
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const uint2 first = queries[(2 * i) * 32 + block.lane], second = queries[(2 * i + 1) * 32 + block.lane];
      multiply<false>(scores, low[i].x, high[i].x, low[i].y, high[i].y, first.x, first.y);
      multiply<false>(scores, low[i].z, high[i].z, low[i].w, high[i].w, second.x, second.y);
    }
  }
};

// Eight numbers of each lane's four values: of the keys 2t, 2t + 1, 2t + 8, 2t + 9, where t is lane % 4.
struct Values {
  uint4 rows[4];

  __device__ void load(const u16* values, int eighth, int lane) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = (lane & 3) * 2 + (r & 1) + r / 2 * 8;
      rows[r] = load_16(values + key * HEAD_DIM + lane / 4 * (2 * ANSWERS) + 8 * eighth);
    }
  }

  // Four answers += weights of 16 keys times their values.
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

// 16 keys of an item.
__device__ const u16* keys_at(const Step& step, const Item& item, const u16* keys, int begin) {
  const int at = (begin - item.begin) / BLOCK_TOKENS;  // items begin where a block does
  const int block = at < item.num_known ? item.known[at] : step.tables[item.table + begin / BLOCK_TOKENS];
  return keys + place_in_cache(block, item.head, begin % BLOCK_TOKENS);
}

// Keys and values of this block's items come into the second cache while q, k and v are made: when they are needed, memory
// is busy with the next weights.
__device__ void fetch_keys(const Step& step, const Block& block, const u16* keys) {
  const int num_items = *step.num_items * KV;
#pragma unroll 1
  for (int i = blockIdx.x; i < num_items; i += gridDim.x) {
    Item item;
    item.load(step, block, i);
#pragma unroll 1
    for (int begin = item.begin + block.warp * 16; begin < item.last(); begin += WARPS * 16) {
      const u16* from = keys_at(step, item, keys, begin);
      for (int line = block.lane * 64; line < 16 * HEAD_DIM; line += 32 * 64) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + line));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + step.cache_stride + line));
      }
    }
  }
}

// This warp's keys of an item.
__device__ void walk(const Step& step, const Block& block, const Item& item, const u16* keys, Running& running) {
  const int last = item.last();
#pragma unroll 1
  for (int begin = item.begin + block.warp * 16; begin < last; begin += WARPS * 16) {
    const u16* from = keys_at(step, item, keys, begin);
    float scores[4] = {};
    Values values;
    {
      Keys some;
      some.load(from, block.lane);
      values.load(from + step.cache_stride, 0, block.lane);
      some.score(scores, block);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_there = begin + block.lane / 4 + i / 2 * 8 < last;
      scores[i] = is_there ? scores[i] * step.scale * LOG2_E : nothing();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float higher = fmaxf(running.top[h], fmaxf(scores[h], scores[2 + h]));
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        higher = fmaxf(higher, __shfl_xor_sync(0xffffffffu, higher, distance));
      }
      const float factor = power_of_2(running.top[h] - higher);  // the first key is there: higher is a number
      running.top[h] = higher;
      scores[h] = power_of_2(scores[h] - higher), scores[2 + h] = power_of_2(scores[2 + h] - higher);
      running.weight[h] = running.weight[h] * factor + scores[h] + scores[2 + h];
#pragma unroll
      for (int j = 0; j < ANSWERS; ++j) running.total[j][h] *= factor, running.total[j][2 + h] *= factor;
    }
    const u32 first = transposed(bf16_pair(scores[0], scores[1])), second = transposed(bf16_pair(scores[2], scores[3]));
#pragma unroll
    for (int eighth = 0; eighth < ANSWERS / 4; ++eighth) {
      if (eighth > 0) values.load(from + step.cache_stride, eighth, block.lane);
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

// Sixteen warps' keys in eight: the upper half leaves what it has, the lower half takes it up.
__device__ void halve(const Block& block, Running& running) {
  const bool has_heads = (block.lane & 3) < PAIRED;
  float* left = block.scratch + AT_LEFT + block.warp % HALF_WARPS * (LEFT * 8 * PAIRED) + block.lane / 4 * PAIRED + (block.lane & 3);
  if (has_heads && block.warp >= HALF_WARPS) {
#pragma unroll
    for (int h = 0; h < 2; ++h) left[h * 8 * PAIRED] = running.top[h], left[(2 + h) * 8 * PAIRED] = running.weight[h];
#pragma unroll
    for (int i = 0; i < 4 * ANSWERS; ++i) left[(4 + i) * 8 * PAIRED] = running.total[i / 4][i % 4];
  }
  join_block();
  if (has_heads && block.warp < HALF_WARPS) {
    float top[2], weight[2], total[ANSWERS][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = left[h * 8 * PAIRED], weight[h] = left[(2 + h) * 8 * PAIRED];
#pragma unroll
    for (int i = 0; i < 4 * ANSWERS; ++i) total[i / 4][i % 4] = left[(4 + i) * 8 * PAIRED];
    running.fold(top, weight, total);
  }
  join_block();
}

// What eight warps have, by head and dim.
__device__ void leave(const Block& block, const Running& running) {
  if (block.warp >= HALF_WARPS) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int which = (block.lane & 3) * 2 + h;
    if (which >= GROUP) continue;
    float* total = block.scratch + AT_LEFT + (block.warp * GROUP + which) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < 2 * ANSWERS; ++i) total[dim_of(i / 2, i % 2 * 2, block.lane)] = running.total[i / 2][i % 2 * 2 + h];
    if (block.lane < 4) {
      block.scratch[AT_TOP + block.warp * 8 + which] = running.top[h];
      block.scratch[AT_WEIGHT + block.warp * 8 + which] = running.weight[h];
    }
  }
}

// One number of a head, from all warps' keys and the newest; and the logarithm of their weight.
__device__ float mean_of_warps(const float* scratch, int which, int dim, float& lse) {
  const float newest = scratch[AT_SCORE + which];
  float top = newest;
#pragma unroll
  for (int w = 0; w < HALF_WARPS; ++w) top = fmaxf(top, scratch[AT_TOP + w * 8 + which]);
  float weight = power_of_2(newest - top), total = weight * scratch[AT_VALUE + dim];
#pragma unroll
  for (int w = 0; w < HALF_WARPS; ++w) {
    const float factor = power_of_2(scratch[AT_TOP + w * 8 + which] - top);
    weight += scratch[AT_WEIGHT + w * 8 + which] * factor;
    total += scratch[AT_LEFT + (w * GROUP + which) * HEAD_DIM + dim] * factor;
  }
  lse = top + __log2f(weight);
  return total / weight;
}

__device__ void merge_parts(const Step& step, const Item& item, int first, int count) {
#pragma unroll 1
  for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
    const int query = item.head * GROUP + i / HEAD_DIM, dim = i % HEAD_DIM;
    float top = nothing(), weight = 0.0f, total = 0.0f;
#pragma unroll 4
    for (int part = 0; part < count; ++part) {
      const u64 at = (u64)(first + part) * HEADS + query;
      const float lse = load_fresh(step.partial_lse + at), mean = load_fresh(step.partial_out + at * HEAD_DIM + dim);
      const float higher = fmaxf(top, lse), mine = power_of_2(top - higher), theirs = power_of_2(lse - higher);
      weight = weight * mine + theirs, total = total * mine + mean * theirs, top = higher;
    }
    write_token<HALF>(step.attended + (u64)item.token * (HEADS * HEAD_DIM), query * HEAD_DIM + dim, total / weight);
  }
}

// The item's answer, or its part: whoever brings the last part merges all of them, in their order.
__device__ void answer(const Step& step, const Block& block, const Item& item) {
  const int first = item.first, count = item.count;
#pragma unroll 1
  for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
    const int query = item.head * GROUP + i / HEAD_DIM, dim = i % HEAD_DIM;
    float lse;
    const float mean = mean_of_warps(block.scratch, i / HEAD_DIM, dim, lse);
    if (count == 1) {
      write_token<HALF>(step.attended + (u64)item.token * (HEADS * HEAD_DIM), query * HEAD_DIM + dim, mean);
    } else {
      const u64 at = (u64)(first + item.part) * HEADS + query;
      step.partial_out[at * HEAD_DIM + dim] = mean;
      if (dim == 0) step.partial_lse[at] = lse;
    }
  }
  join_block();
  if (count == 1) return;
  int* last = (int*)(block.scratch + AT_LAST);
  if (threadIdx.x == 0) {
    int* counter = step.arrived + item.token * KV + item.head;
    __threadfence();
    *last = atomicAdd(counter, 1) == count - 1;
    if (*last) *counter = 0;
    __threadfence();
  }
  join_block();
  if (*last) merge_parts(step, item, first, count);
  join_block();
}

// All items of this block.
__device__ void attend(const Step& step, Block& block, u16* keys) {
  const int num_items = *step.num_items * KV;
  clear_queries(block);
  meet(step, block);
#pragma unroll 1
  for (int i = blockIdx.x; i < num_items; i += gridDim.x) {
    Item item;
    item.load(step, block, i);
    prepare_queries(step, block, item, keys);
    Running running;
#pragma unroll
    for (int h = 0; h < 2; ++h) running.top[h] = nothing(), running.weight[h] = 0.0f;
#pragma unroll
    for (int n = 0; n < 4 * ANSWERS; ++n) running.total[n / 4][n % 4] = 0.0f;
    walk(step, block, item, keys, running);
    halve(block, running);
    leave(block, running);
    join_block();
    answer(step, block, item);
  }
}

// --- the step

__device__ void order_all(const Step& step, Block& block) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; ++layer) {
    const TensorMap* maps = step.maps + MAPS * layer;
    order<Qkv>(maps, block, policy);
    order<Answer>(maps + 1, block, policy);
    order<Gate>(maps + 2, block, policy);
    order<Down>(maps + 3, block, policy);
  }
  order<Head>(step.maps + MAPS * LAYERS, block, policy);
}

__device__ void order_all_tokens(const Step& step, Block& block) {
  block.turns = ~0u;  // all slots are empty
  block.meetings = 1;  // after the embedding
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; ++layer) {
    order_tokens<Qkv>(step, block, step.normed);
    block.meetings += 2;  // attention stands between
    order_tokens<Answer>(step, block, step.attended);
    ++block.meetings;
    order_tokens<Gate>(step, block, step.normed);
    ++block.meetings;
    order_tokens<Down>(step, block, step.activated);
    ++block.meetings;
  }
  order_tokens<Head>(step, block, step.normed);
}

__device__ void compute_all(const Step& step, Block& block) {
  embed(step, block);
  announce(step, block);
#pragma unroll 1
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = step.layers[i];
    u16* keys = step.cache + 2 * i * step.cache_stride;
    fetch_keys(step, block, keys);
    product<Qkv, HALF>(step, block, layer.qkv_scale, nullptr, layer.qkv_bias);
    announce(step, block);
    attend(step, block, keys);
    announce(step, block);
    product<Answer, HALF>(step, block, layer.answer_scale, layer.ffn_norm, nullptr);
    announce(step, block);
    product<Gate, HALF>(step, block, layer.gate_scale, nullptr, nullptr);
    announce(step, block);
    if (i + 1 < LAYERS) {
      product<Down, HALF>(step, block, layer.down_scale, step.layers[i + 1].attention_norm, nullptr);
    } else {
      product<Down, false>(step, block, layer.down_scale, step.layers[i + 1].attention_norm, nullptr);
    }
    announce(step, block);
  }
  product<Head, false>(step, block, nullptr, nullptr, nullptr);
  if (threadIdx.x == 0 && atomicAdd(step.meeting + 1, 1) == gridDim.x - 1) {
    step.meeting[0] = 0, step.meeting[1] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + 64, 1) few_rows(const __grid_constant__ Step step) {
  extern __shared__ unsigned char memory[];
  const u32 skipped = -shared_address(memory) & 1023;
  Block block;
  block.slots = shared_address(memory) + skipped;
  block.full = block.slots + SLOTS * SLOT;
  block.empty = block.full + 8 * SLOTS;
  block.tokens_full = block.empty + 8 * SLOTS;
  block.tokens_empty = block.tokens_full + 8 * TOKEN_SLOTS;
  block.tokens = block.tokens_empty + 8 * TOKEN_SLOTS;
  block.first_item = (int*)(memory + (block.tokens + TOKEN_ROOM - shared_address(memory)));
  block.residual = (float*)(block.first_item + ITEM_NUMBERS + KNOWN_BLOCKS);
  block.scratch = block.residual + RESIDUAL;
  block.warp = threadIdx.x / 32, block.lane = threadIdx.x & 31;
  block.at = block.turns = block.meetings = 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      init_barrier(block.full + 8 * i, 1);
      init_barrier(block.empty + 8 * i, WARPS);
    }
    for (int i = 0; i < TOKEN_SLOTS; ++i) {
      init_barrier(block.tokens_full + 8 * i, 1);
      init_barrier(block.tokens_empty + 8 * i, WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (block.warp == 0) note_first_item(step, block);
  __syncthreads();
  if (block.warp < WARPS) {
    compute_all(step, block);
  } else if (block.warp == WARPS) {
    if (block.lane == 0) order_all(step, block);
  } else {
    order_all_tokens(step, block);
  }
}
