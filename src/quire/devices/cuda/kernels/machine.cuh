// GPU instructions: barriers, copies, tensor core products, number formats.
#pragma once

#ifdef EMULATED
#include "emulated.h"
#else

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct alignas(64) TensorMap { u64 opaque[16]; };

#define DYNAMIC_SHARED(name) extern __shared__ unsigned char name[]

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

__device__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ void sync_threads(int barrier, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

// Makes earlier writes to global memory visible to the copy engine.
__device__ void fence_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ void add_release(u32* to) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(to) : "memory");
}

__device__ u32 load_acquire(const u32* from) {
  u32 found;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(from) : "memory");
  return found;
}

// A number and its tag are one word, written at once: a reader needs no other signal that the number is there.
__device__ void store_tagged(u64* to, float number, u32 tag) {
  const u64 word = (u64)tag << 32 | __float_as_uint(number);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ u64 load_tagged(const u64* from) {
  u64 found;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(found) : "l"(from) : "memory");
  return found;
}

__device__ void pause() { __nanosleep(20); }

__device__ void prefetch_line(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

__device__ u64 evict_first_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
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

// Bypasses L1, to see what other blocks have written.
__device__ float load_from_l2(const float* from) {
  float found;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(found) : "l"(from) : "memory");
  return found;
}

template <bool IS_HALF>
__device__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (IS_HALF) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
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

// Transposes a matrix of 8 by 8, of which each lane has two neighbours of a row.
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

#endif

__device__ float minus_infinity() { return __int_as_float(0xff800000); }  // the score of a masked key

__device__ float from_bf16(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ float number_of(u64 word) { return __uint_as_float((u32)word); }

__device__ bool has_tag(u64 word, u32 tag) { return (u32)(word >> 32) == tag; }

// cap * tanh(x / cap).
__device__ float softcapped(float x, float cap) {
  return cap - __fdividef(2.0f * cap, 1.0f + __expf(__fdividef(2.0f * x, cap)));
}

__device__ float sum_of_warp(float number) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) number += __shfl_xor_sync(0xffffffffu, number, distance);
  return number;
}
