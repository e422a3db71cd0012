// A whole step of few rows in one kernel, for Hopper: from the tokens' numbers to their logits.
//
// Every processor runs one block, to the end. One of its warps orders weights: the copy engine brings them into a ring
// of slots, one product after another, without ever waiting for anything but a free slot. 16 warps multiply and attend,
// and meet the warps of all other blocks before each product that reads what all of them made. So memory goes on reading
// while results are summed, exchanged and attended with: those moments, which cost a fifth of a step that is made of
// kernels, cost nothing as long as the ring is not full. One more warp orders what the products read, when it is there.
// What attention reads has tags: a block waits for its own numbers alone, and a number is there when its tag is.
//
// A product: a block owns groups of 16 * TILES rows of the weight (of a gate, as many rows of both halves). A slot
// holds PARTS boxes of 128 bytes by all rows of the group. A warp multiplies one tile with one box; parts are summed at
// the end in shared memory, in their order: a step's numbers are always the same.
//
// What a product reads lies in memory in the order in which lanes need it (place_of). A norm's weight is multiplied in
// by whoever writes, together with the sum of squares of its rows; the root mean square is multiplied in by whoever
// reads. For FP8 weights, which become half precision on their way to the tensor cores, tokens are half precision too,
// a 16th of their size so that large ones fit. They are never rounded to 8 bits.
//
// Defined by whoever compiles: LAYERS WIDTH FFN VOCAB DIM HEADS KV HEAD_DIM PAIRS BLOCK_TOKENS HAS_BIAS TOKENS ROOM_FOR
// SLOTS TOKEN_ROOM RESIDUAL, and TILES of each product.

#include "attention.cuh"
#include "products.cuh"

__device__ void order_all(const Step& step, Block& block) {
  const u64 policy = read_once();
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
    ++block.meetings;  // attention stands between
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
    ++block.tag;
    product<Qkv, HALF>(step, block, layer.qkv_scale, nullptr, layer.qkv_bias);
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
    step.meeting[0] = 0, step.meeting[1] = 0, ++step.meeting[2];
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
  block.first_item = (int*)(memory + (block.tokens + TOKEN_ROOM - shared_address(memory)));
  block.residual = (float*)(block.first_item + ITEM_NUMBERS + KNOWN_BLOCKS);
  block.scratch = block.residual + RESIDUAL;
  block.warp = threadIdx.x / 32, block.lane = threadIdx.x & 31;
  block.at = block.turns = block.meetings = 0;
  block.tag = step.meeting[2] * LAYERS;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      init_barrier(block.full + 8 * i, 1);
      init_barrier(block.empty + 8 * i, WARPS);
    }
    for (int i = 0; i < TOKEN_SLOTS; ++i) {
      init_barrier(block.tokens_full + 8 * i, 1);
      init_barrier(block.tokens_empty + 8 * i, WARPS);
    }
    show_barriers();
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
