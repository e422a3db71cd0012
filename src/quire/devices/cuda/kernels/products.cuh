// Products: loading weights and tokens, multiplying them, and writing the results.
#pragma once

#include "step.cuh"

// Few slots are in flight at once, although more are free: what other warps write and read waits behind them in the
// memory system, and blocks wait for that between products.
template <class P>
__device__ void load_weights(const TensorMap* map, Block& block, u64 policy) {
#pragma unroll 1
  for (int group = blockIdx.x; group < P::GROUPS; group += gridDim.x) {
#pragma unroll 1
    for (int i = 0; i < P::STEPS; ++i, ++block.at) {
      const u32 slot = block.at % SLOTS, full = block.full + 8 * slot, to = block.slots + slot * SLOT;
      if (block.at >= SLOTS) wait(block.empty + 8 * slot, (block.at / SLOTS - 1) & 1);
      if (block.at >= IN_FLIGHT) {
        const u32 earlier = block.at - IN_FLIGHT;
        wait(block.full + 8 * (earlier % SLOTS), (earlier / SLOTS) & 1);
      }
      arrive_expecting(full, P::SIZE);
      copy_boxes(to, map, group * P::OUT_ROWS, i * P::PARTS, full, policy);
      if (P::IS_GATE) copy_boxes(to + P::SIZE / 2, map, P::N + group * P::OUT_ROWS, i * P::PARTS, full, policy);
    }
  }
}

// The warp's tile of a product. A gate's boxes hold the gate's rows of all parts, then those of the other half.
template <class P>
struct WarpTile {
  int part, tile;
  bool is_idle;
  __device__ explicit WarpTile(int warp) : part(warp % P::PARTS), tile(warp / P::PARTS), is_idle(tile >= P::TILES) {}
  __device__ int offset() const {
    constexpr int PER_BOX = P::IS_GATE ? P::TILES / 2 : P::TILES;
    const int half = tile / PER_BOX, inside = tile % PER_BOX;
    return ((half * P::PARTS + part) * PER_BOX + inside) * 2048;
  }
};

// Loads a product's tokens, step by step, as soon as all blocks have written them.
template <class P>
__device__ void load_tokens(const Step& step, Block& block, const u16* tokens) {
  if (blockIdx.x >= P::GROUPS) return;
  if (block.lane == 0) {
    wait_for_signals(step, block.num_signals);
    fence_copies();
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
        const u32 to = block.tokens + (slot * MAX_TOKENS + block.lane) * P::PITCH;
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

// The index of a sum: rows that are read together are in different banks.
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

// Constants for the end of a group, loaded before its product begins.
template <class P>
struct GroupConstants {
  float scale[P::IS_FP8 ? P::LANE_ROWS : 1], up_scale[P::IS_FP8 && P::IS_GATE ? P::LANE_ROWS : 1];
  float norm[P::KIND == ADD ? P::LANE_ROWS : 1], post_norm[P::KIND == ADD && HAS_POST_NORM ? P::LANE_ROWS : 1];

  __device__ void load(const float* scales, const float* norms, const float* post_norms, int group, int lane) {
#pragma unroll
    for (int i = 0; i < P::LANE_ROWS; ++i) {
      const int row = min(group * P::OUT_ROWS + lane + 32 * i, P::N - 1);
      if constexpr (P::IS_FP8) scale[i] = scales[row];
      if constexpr (P::IS_FP8 && P::IS_GATE) up_scale[i] = scales[P::N + row];
      if constexpr (P::KIND == ADD) norm[i] = norms[row];
      if constexpr (P::KIND == ADD && HAS_POST_NORM) post_norm[i] = post_norms[row];
    }
  }
};

enum Activation { SILU, GELU_TANH, GELU, RELU2 };

__device__ float activate(float x) {
  if constexpr (ACTIVATION == GELU_TANH) {
    return x / (1.0f + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
  } else if constexpr (ACTIVATION == GELU) {
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
  } else if constexpr (ACTIVATION == RELU2) {
    return x > 0.0f ? x * x : 0.0f;
  } else {
    return x / (1.0f + __expf(-x));
  }
}

// Writes a group's rows of one token from the sums. NEXT_IS_HALF: an FP8 product reads them.
template <class P, bool NEXT_IS_HALF>
__device__ void finish(const Step& step, const Block& block, const GroupConstants<P>& constants, const u16* bias,
                       float factor, u64* tagged_squares, int group, int own) {
  const int token = block.warp;
  if (token >= step.num_tokens) return;
  float squares = 0.0f, key_squares = 0.0f;
#pragma unroll
  for (int i = 0; i < P::LANE_ROWS; ++i) {
    const int inside = block.lane + 32 * i, row = group * P::OUT_ROWS + inside;
    if (inside >= P::OUT_ROWS || row >= P::N) continue;
    float sum = sum_of_parts<P>(block.scratch, inside, token) * factor;
    if constexpr (P::IS_FP8) sum *= constants.scale[i];
    if constexpr (P::KIND == QKV) {
      if (HAS_BIAS) sum += from_bf16(bias[row]);
      store_tagged(step.qkv + (u64)token * P::N + row, sum, block.tag);
      if constexpr (HEAD_NORM == ALL_HEADS) {
        if (row < HEADS * HEAD_DIM) {
          squares += sum * sum;
        } else if (row < (HEADS + KV) * HEAD_DIM) {
          key_squares += sum * sum;
        }
      }
    } else if constexpr (P::KIND == GATE) {
      float up = sum_of_parts<P>(block.scratch, P::OUT_ROWS + inside, token) * factor;
      if constexpr (P::IS_FP8) up *= constants.up_scale[i];
      write_token<HALF>(step.activated + (u64)token * P::N, row, activate(sum) * up);
    } else if constexpr (P::KIND == LOGITS) {
      if constexpr (HAS_LOGIT_FACTOR) sum *= step.logit_factor;
      if constexpr (HAS_LOGIT_CAP) sum = softcapped(sum, step.logit_cap);
      step.logits[(u64)token * P::N + row] = sum;
    } else if constexpr (HAS_POST_NORM) {
      const int at = (own * P::OUT_ROWS + inside) * TOKENS + token;
      block.product[at] = sum * constants.post_norm[i] * (HAS_RESIDUAL_FACTOR ? step.residual_factor : 1.0f);
      block.next_norm[at] = constants.norm[i];
      squares += sum * sum;
    } else {
      if constexpr (HAS_RESIDUAL_FACTOR) sum *= step.residual_factor;
      float& residual = block.residual[(own * P::OUT_ROWS + inside) * TOKENS + token];
      residual += sum;
      squares += write_normed<NEXT_IS_HALF>(step, token, row, residual, constants.norm[i]);
    }
  }
  if constexpr (P::KIND == ADD) {
    squares = sum_of_warp(squares);
    if constexpr (HAS_POST_NORM) {
      if (block.lane == 0) store_tagged(tagged_squares + token * P::GROUPS + group, squares, block.tag);
    } else {
      if (block.lane == 0) step.squares[token * P::GROUPS + group] = squares;
    }
  } else if constexpr (P::KIND == QKV && HEAD_NORM == ALL_HEADS) {
    squares = sum_of_warp(squares), key_squares = sum_of_warp(key_squares);
    u64* to = tagged_squares + token * 2 * P::GROUPS + group;
    if (block.lane == 0) store_tagged(to, squares, block.tag), store_tagged(to + P::GROUPS, key_squares, block.tag);
  }
}

// Adds the normed product to the residual, as soon as all blocks have stored the squares of their rows.
template <class P, bool NEXT_IS_HALF>
__device__ void add_normed(const Step& step, const Block& block, const u64* tagged_squares) {
  const int token = block.warp;
  if (token >= step.num_tokens || blockIdx.x >= P::GROUPS) return;
  const float sum = load_tagged_share<P::GROUPS>(tagged_squares + token * P::GROUPS, block.tag, block.lane);
  const float factor = rsqrtf(sum_of_warp(sum) / P::N + step.post_eps);
#pragma unroll 1
  for (int group = blockIdx.x, own = 0; group < P::GROUPS; group += gridDim.x, ++own) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < P::LANE_ROWS; ++i) {
      const int inside = block.lane + 32 * i, row = group * P::OUT_ROWS + inside;
      if (inside >= P::OUT_ROWS || row >= P::N) continue;
      const int at = (own * P::OUT_ROWS + inside) * TOKENS + token;
      block.residual[at] += block.product[at] * factor;
      squares += write_normed<NEXT_IS_HALF>(step, token, row, block.residual[at], block.next_norm[at]);
    }
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
      if (group < Down::GROUPS) squares += load_from_l2(step.squares + block.warp * Down::GROUPS + group);
    }
  }
  return squares;
}

// What a product needs beside weights and tokens. Null: its kind does not read it.
struct ProductConstants {
  const float* scales;      // of FP8 rows
  const float* norms;       // the next norm's weight
  const float* post_norms;  // the weight of the norm of the product itself
  const u16* bias;
  u64* squares;             // of the product's rows, where a norm of the whole product reads them
};

// All groups of this block. Its tokens are loaded after the grid barrier; a block without a group only waits there.
template <class P, bool NEXT_IS_HALF>
__device__ void product(const Step& step, Block& block, const ProductConstants& inputs) {
  if (blockIdx.x >= P::GROUPS) return wait_grid(step, block);
  const WarpTile<P> place(block.warp);
  GroupConstants<P> constants;
  float squares = 0.0f;
  int token_slot = 0;
#pragma unroll 1
  for (int group = blockIdx.x, own = 0; group < P::GROUPS; group += gridDim.x, ++own) {
    constants.load(inputs.scales, inputs.norms, inputs.post_norms, group, block.lane);
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
          const int at = token_slot * MAX_TOKENS * P::PITCH + place.part % P::TOGETHER * P::BOX * 2;
          multiply_box<P>(sums, block.slots + slot * SLOT + place.offset(), block.tokens + at, block.lane);
        }
        __syncwarp();
        if (block.lane == 0) arrive(block.tokens_empty + 8 * token_slot);
        block.turns ^= 1 << token_slot;
        token_slot = token_slot + 1 == P::AHEAD ? 0 : token_slot + 1;
      }
      if (block.lane == 0) arrive(block.empty + 8 * slot);
    }
    float factor = P::IS_FP8 ? 1.0f / TOKEN_SCALE : 1.0f;
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
    sync_block();
    finish<P, NEXT_IS_HALF>(step, block, constants, inputs.bias, factor, inputs.squares, group, own);
    if (group + gridDim.x < P::GROUPS) sync_block();
  }
}

// A product that is added to the residual.
template <class P, bool NEXT_IS_HALF>
__device__ void add_product(const Step& step, Block& block, const ProductConstants& inputs) {
  product<P, NEXT_IS_HALF>(step, block, inputs);
  if constexpr (HAS_POST_NORM) add_normed<P, NEXT_IS_HALF>(step, block, inputs.squares);
}
