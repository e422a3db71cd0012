// The parts of a step: its products and their tiling, its arguments, its blocks and the grid barrier, and the tokens
// between products.
#pragma once

#include "machine.cuh"

enum Kind { QKV, ADD, GATE, LOGITS };

constexpr int WARPS = 16;  // that multiply
constexpr int THREADS = 32 * WARPS;
constexpr int SLOT = 32768;        // bytes of weights
constexpr int IN_FLIGHT = 2;       // slots that are loaded at once: enough for the whole bandwidth
constexpr int TOKEN_SLOT = 16384;  // bytes of tokens, at most
constexpr int TOKEN_SLOTS = 8;
constexpr bool HALF = WIDTH == 1;
// Of tokens in half precision, so that large ones fit. The residual of models that scale their embeddings is larger.
constexpr float TOKEN_SCALE = HAS_EMBEDDING_FACTOR ? 0.00390625f : 0.0625f;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int GROUP = HEADS / KV;
constexpr int QKV_ROWS = (HEADS + 2 * KV) * HEAD_DIM;
constexpr int MAPS = 4;  // of a layer
enum HeadNormKind { NO_HEAD_NORM, EACH_HEAD, ALL_HEADS };  // HEAD_NORM: of each head, or of all heads together

template <int K_, int N_, int TILES_, int WIDTH_, Kind KIND_, bool NORMED_>
struct Product {
  static constexpr int K = K_, N = N_, TILES = TILES_;
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
  static constexpr __device__ bool is_small(int parts) { return parts * BOX * 2 * MAX_TOKENS <= TOKEN_SLOT; }
  static constexpr int TOGETHER = is_small(PARTS) ? PARTS : is_small(4) ? 4 : is_small(2) ? 2 : 1;  // parts' tokens
  static constexpr int PORTIONS = PARTS / TOGETHER;
  static constexpr int COLUMNS = TOGETHER * BOX;
  static constexpr int PITCH = COLUMNS * 2 + 64;  // bytes of a token: no two begin in the same bank
  static constexpr int MAX_PORTIONS = TOKEN_BYTES / (MAX_TOKENS * PITCH);
  static constexpr int AHEAD = MAX_PORTIONS < TOKEN_SLOTS ? MAX_PORTIONS : TOKEN_SLOTS;  // portions that fit at once
  static_assert(K % BOX == 0 && SIZE <= SLOT && TILES <= WARPS, "whole boxes that fit a slot");
  static_assert(AHEAD >= 2, "tokens are loaded while others are multiplied");
};

using Qkv = Product<DIM, QKV_ROWS, QKV_TILES, WIDTH, QKV, HAS_PRE_NORM>;
using OutProj = Product<HEADS * HEAD_DIM, DIM, OUT_PROJ_TILES, WIDTH, ADD, false>;
using Gate = Product<DIM, FFN, GATE_TILES, WIDTH, GATE, HAS_PRE_NORM>;
using Down = Product<FFN, DIM, DOWN_TILES, WIDTH, ADD, false>;
using Head = Product<DIM, VOCAB, HEAD_TILES, 2, LOGITS, true>;

static_assert(OutProj::OUT_ROWS == Down::OUT_ROWS, "a block keeps the residual of its own rows");

struct Layer {
  const float* attention_norm;  // of the entry after the last layer: the norm before the head
  const float* ffn_norm;
  const float* qkv_scale;
  const float* out_proj_scale;
  const float* gate_scale;
  const float* down_scale;
  const u16* qkv_bias;
  const float* q_norm;          // with HEAD_NORM
  const float* k_norm;
  const float* out_proj_norm;   // with HAS_POST_NORM: of the product, before it is added
  const float* down_norm;
  u32 work, rope;               // indices into the step's; with one, not read
  float scale;                  // of scores; with HAS_LAYER_SCALES
  u32 cache;                    // its index in the cache of its work; with one work, that of the layer
};

// How attention of a step is split, and where keys are: the same for all layers with one window.
struct Work {
  const int* items;        // token, number of the row's tokens up to it, offset of the block table, begin, end, part
  const int* num_items;
  const int* first_part;
  const int* num_parts;
  const int* slots;        // of the tokens
  u16* cache;              // [layers, 2, blocks, KV, BLOCK_TOKENS, HEAD_DIM]; works may have the same
  u64 cache_stride;        // numbers between K and V of a layer
};

struct Rope {
  const float* cosines;    // [positions, PAIRS]
  const float* sines;
};

struct Step {
  const TensorMap* maps;  // MAPS of each layer, then the head's
  const Layer* layers;
  const u16* table;        // of embeddings
  const int* ids;          // below 0: the last token of a row
  const int* last_tokens;
  u16* normed;             // [TOKENS, DIM], and its squares [TOKENS, Down::GROUPS]
  float* squares;
  u64* qkv;                // [TOKENS, QKV_ROWS], with tags
  u16* attended;           // [TOKENS, HEADS * HEAD_DIM]
  u16* activated;          // [TOKENS, FFN]
  float* logits;           // [num_tokens, VOCAB]
  // attention
  Work works[2];           // the first WORKS are used
  const int* positions;
  const int* tables;       // of all works
  Rope ropes[2];           // the first ROPES are used
  u64* partial_out;        // [parts, HEADS, HEAD_DIM], with tags
  u64* partial_lse;        // [parts, HEADS], with tags
  u64* product_squares;    // with HAS_POST_NORM: [2, TOKENS, Down::GROUPS], with tags
  u64* head_squares;       // with ALL_HEADS: [TOKENS, 2, Qkv::GROUPS] of q and of k, with tags
  u32* grid_barrier;       // two zeros, before and after the step; and the number of steps so far
  int num_tokens;
  int windows[2];          // of works; with HAS_WINDOW
  float eps;
  float head_eps;
  float post_eps;
  float scale;             // of scores
  float score_cap;
  float embedding_factor;
  float residual_factor;   // of products, before they are added
  float logit_factor;
  float logit_cap;
};

__device__ void sync_block() { sync_threads(1, THREADS); }

struct Block {
  u32 slots, full, empty;                    // the ring of weights, and its barriers
  u32 tokens, tokens_full, tokens_empty;     // the ring of tokens, and its barriers
  int* first_item;         // of attention, for this block, of each of WORKS: the same in every layer
  float* scratch;          // sums of products; attention
  float* residual;         // [groups of this block, rows, TOKENS]
  float* product;          // with HAS_POST_NORM, in the same shape: times the weight of its norm
  float* next_norm;        // with HAS_POST_NORM, in the same shape: the weight of the norm after the sum
  int warp, lane;
  u32 at;                  // slots used so far
  u32 turns;               // for each slot of tokens, the parity to wait for next
  u32 num_signals;
  u32 tag;                 // of numbers written by this layer in this step: unique among steps and layers
};

// Grid barrier after all blocks have written the inputs of the next product. Split into signal and wait, so that loads
// can be issued in between.
__device__ void signal_grid(const Step& step, Block& block) {
  fence_copies();
  sync_block();
  if (threadIdx.x == 0) add_release(step.grid_barrier);
  ++block.num_signals;
}

__device__ void wait_for_signals(const Step& step, u32 num_signals) {
  const u32 expected = num_signals * gridDim.x;
  while (load_acquire(step.grid_barrier) < expected) continue;
}

__device__ void wait_grid(const Step& step, const Block& block) {
  if (threadIdx.x == 0) wait_for_signals(step, block.num_signals);
  sync_block();
}

// --- tokens between products

// The index of a token's column, for a product with weights of FP8 (half) or bf16: 16 bytes of each of a token's four
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
  row[place_of<IS_HALF>(column)] = IS_HALF ? to_half(number * TOKEN_SCALE) : to_bf16(number);
}

// This lane's share of the sum of `COUNT` numbers, as soon as all have the tag.
template <int COUNT>
__device__ float load_tagged_share(const u64* from, u32 tag, int lane) {
  constexpr int ROUNDS = (COUNT + 31) / 32;
  u64 found[ROUNDS];
  bool are_there;
  do {
    are_there = true;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) found[r] = load_tagged(from + min(lane + 32 * r, COUNT - 1));
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) are_there &= has_tag(found[r], tag);
    if (!are_there) pause();
  } while (!are_there);
  float sum = 0.0f;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) sum += lane + 32 * r < COUNT ? number_of(found[r]) : 0.0f;
  return sum;
}

// Writes the new residual times the norm's weight; returns its square.
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
        float value = from_bf16(step.table[(u64)id * DIM + row]);
        if constexpr (HAS_EMBEDDING_FACTOR) value *= step.embedding_factor;
        block.residual[(own * Down::OUT_ROWS + inside) * TOKENS + token] = value;
        squares += write_normed<HALF>(step, token, row, value, step.layers[0].attention_norm[row]);
      }
      squares = sum_of_warp(squares);
      if (block.lane == 0) step.squares[token * Down::GROUPS + group] = squares;
    }
  }
}
