// A whole step of few rows in one kernel, for Hopper: from token ids to logits.
//
// Every processor runs one persistent block. One of its warps loads weights: the copy engine brings them into a ring of
// slots, one product after another, and only ever waits for a free slot. 16 warps multiply and compute attention; a
// grid barrier precedes each product that reads results of other blocks. So weights keep streaming from memory while
// results are summed and exchanged and attention runs: these phases, a fifth of a step in separate kernels, cost
// nothing as long as the ring is not full. One more warp loads the inputs of products as soon as they are complete. The
// inputs of attention carry tags instead of a barrier: a block waits only for its own numbers, each of which is valid
// when its tag matches.
//
// A product: a block owns groups of 16 * TILES rows of the weight (for a gate, as many rows of both halves). A slot
// holds PARTS boxes of 128 bytes by all rows of the group. A warp multiplies one tile with one box; parts are summed at
// the end in shared memory, in order: a step's numbers are always the same.
//
// The inputs of a product are stored in the order in which lanes need them (place_of). The writer multiplies the norm's
// weight in and stores the sum of squares of its rows; the reader multiplies with the root mean square. FP8 weights are
// widened to half precision for the tensor cores, so tokens are half precision too, scaled by 1/16 so that large ones
// fit. They are never rounded to 8 bits.
//
// A norm after a block needs the squares of all rows of a product before the sum: blocks exchange them, with tags.
//
// Compile-time definitions: LAYERS WIDTH FFN VOCAB DIM HEADS KV HEAD_DIM PAIRS BLOCK_TOKENS HAS_BIAS TOKENS MAX_TOKENS
// ROW_TOKENS SLOTS TOKEN_BYTES RESIDUAL, and TILES of each product; and what a model may have: HAS_PRE_NORM and HAS_POST_NORM (of
// blocks), HEAD_NORM, WORKS (different windows), HAS_WINDOW, ROPES, IS_INTERLEAVED, ACTIVATION,
// HAS_LAYER_SCALES, HAS_SCORE_CAP, HAS_EMBEDDING_FACTOR, HAS_RESIDUAL_FACTOR, HAS_LOGIT_FACTOR, HAS_LOGIT_CAP.

#include "attention.cuh"
#include "products.cuh"

__device__ void load_all_weights(const Step& step, Block& block) {
  const u64 policy = evict_first_policy();
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; ++layer) {
    const TensorMap* maps = step.maps + MAPS * layer;
    load_weights<Qkv>(maps, block, policy);
    load_weights<OutProj>(maps + 1, block, policy);
    load_weights<Gate>(maps + 2, block, policy);
    load_weights<Down>(maps + 3, block, policy);
  }
  load_weights<Head>(step.maps + MAPS * LAYERS, block, policy);
}

__device__ void load_all_tokens(const Step& step, Block& block) {
  block.turns = ~0u;  // all slots are empty
  block.num_signals = 1;  // after the embedding
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; ++layer) {
    load_tokens<Qkv>(step, block, step.normed);
    ++block.num_signals;  // after attention
    load_tokens<OutProj>(step, block, step.attended);
    ++block.num_signals;
    load_tokens<Gate>(step, block, step.normed);
    ++block.num_signals;
    load_tokens<Down>(step, block, step.activated);
    ++block.num_signals;
  }
  load_tokens<Head>(step, block, step.normed);
}

__device__ void compute_all(const Step& step, Block& block) {
  embed(step, block);
  signal_grid(step, block);
#pragma unroll 1
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = step.layers[i];
    const LayerAttention attention(step, block, layer);
    u16* keys = attention.work.cache + 2 * (WORKS == 1 ? i : layer.cache) * attention.work.cache_stride;
    prefetch_keys(step, block, attention, keys);
    ++block.tag;
    product<Qkv, HALF>(step, block, {layer.qkv_scale, nullptr, nullptr, layer.qkv_bias, step.head_squares});
    attend(step, block, attention, keys);
    signal_grid(step, block);
    const float* scale = layer.out_proj_scale;
    add_product<OutProj, HALF>(step, block, {scale, layer.ffn_norm, layer.out_proj_norm, nullptr, step.product_squares});
    signal_grid(step, block);
    product<Gate, HALF>(step, block, {layer.gate_scale});
    signal_grid(step, block);
    u64* squares = step.product_squares + TOKENS * Down::GROUPS;
    const ProductConstants down = {layer.down_scale, step.layers[i + 1].attention_norm, layer.down_norm, nullptr, squares};
    if (i + 1 < LAYERS) {
      add_product<Down, HALF>(step, block, down);
    } else {
      add_product<Down, false>(step, block, down);
    }
    signal_grid(step, block);
  }
  product<Head, false>(step, block, {});
  if (threadIdx.x == 0 && atomicAdd(step.grid_barrier + 1, 1) == gridDim.x - 1) {
    step.grid_barrier[0] = 0, step.grid_barrier[1] = 0, ++step.grid_barrier[2];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + 64, 1) few_rows(const __grid_constant__ Step step) {
  DYNAMIC_SHARED(memory);
  const u32 skipped = -shared_address(memory) & 1023;
  Block block;
  block.slots = shared_address(memory) + skipped;
  block.full = block.slots + SLOTS * SLOT;
  block.empty = block.full + 8 * SLOTS;
  block.tokens_full = block.empty + 8 * SLOTS;
  block.tokens_empty = block.tokens_full + 8 * TOKEN_SLOTS;
  block.tokens = block.tokens_empty + 8 * TOKEN_SLOTS;
  block.first_item = (int*)(memory + (block.tokens + TOKEN_BYTES - shared_address(memory)));
  block.residual = (float*)(block.first_item + WORKS * (ITEM_NUMBERS + CACHED_BLOCKS));
  block.product = block.residual + RESIDUAL, block.next_norm = block.product + RESIDUAL;
  block.scratch = HAS_POST_NORM ? block.next_norm + RESIDUAL : block.product;
  block.warp = threadIdx.x / 32, block.lane = threadIdx.x & 31;
  block.at = block.turns = block.num_signals = 0;
  block.tag = step.grid_barrier[2] * LAYERS;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      init_barrier(block.full + 8 * i, 1);
      init_barrier(block.empty + 8 * i, WARPS);
    }
    for (int i = 0; i < TOKEN_SLOTS; ++i) {
      init_barrier(block.tokens_full + 8 * i, 1);
      init_barrier(block.tokens_empty + 8 * i, WARPS);
    }
    fence_barrier_init();
  }
  if (block.warp < WORKS) {
    int* first_item = block.first_item + block.warp * (ITEM_NUMBERS + CACHED_BLOCKS);
    load_first_item(step, step.works[WORKS == 1 ? 0 : block.warp], first_item, block.lane);
  }
  __syncthreads();
  if (block.warp < WARPS) {
    compute_all(step, block);
  } else if (block.warp == WARPS) {
    if (block.lane == 0) load_all_weights(step, block);
  } else {
    load_all_tokens(step, block);
  }
}
