// GPU instructions of sm_90a: asynchronous products of four warps, which read shared memory directly.
#pragma once

#include "machine.cuh"

#ifdef EMULATED
#include "warpgroup.h"
#else

#define EIGHT_SUMS(s, i) \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), \
      "+f"(s[i + 7])
#define SUMS_32(s) EIGHT_SUMS(s, 0), EIGHT_SUMS(s, 8), EIGHT_SUMS(s, 16), EIGHT_SUMS(s, 24)
#define SUMS_64(s) SUMS_32(s), EIGHT_SUMS(s, 32), EIGHT_SUMS(s, 40), EIGHT_SUMS(s, 48), EIGHT_SUMS(s, 56)
#define NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 \
  NAMES_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Changes the number of registers of a warp.
template <int COUNT>
__device__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Lets the next kernel start, and waits for the previous one.
__device__ void follow() {
  asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory");
}

// Copies 16 bytes before `wait_for_chunks` returns; zeros if `is_there` is false.
__device__ void copy_chunk(u32 to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
__device__ void wait_for_chunks() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ void clear_chunk(u32 at) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

// Makes this thread's writes to shared memory visible to products and the copy engine.
__device__ void fence_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ u64 evict_normal_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Keeps later instructions from being started before this number, which is not negative, is computed. Otherwise ptxas
// waits for products first and computes afterwards. Nothing is written to `unused`.
__device__ void settle(float number, u32 unused) {
  asm volatile(
      "{\n .reg .pred is_less;\n setp.lt.f32 is_less, %0, 0f00000000;\n @is_less st.shared.f32 [%1], %0;\n}\n" ::"f"(
          number),
      "r"(unused)
      : "memory");
}

// Products are started in groups and run asynchronously. Their registers must be complete before the first product, and
// must not be accessed until the group is awaited.
__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LATER groups, the last ones started, are running. `sums` belong to a group that is done then.
template <int LATER>
__device__ void wait_for_products(float (&sums)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;" : SUMS_64(sums) : "n"(LATER) : "memory");
}
template <int LATER>
__device__ void wait_for_products(float (&sums)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : SUMS_32(sums) : "n"(LATER) : "memory");
}

// 64 rows by 128 columns, of 16 numbers along both.
__device__ void start_product(float (&sums)[64], u64 a, u64 b, bool adds) {
  asm volatile(
      "{\n .reg .pred adds;\n setp.ne.b32 adds, %66, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, adds, 1, 1, 0, 0;\n}\n"
      : SUMS_64(sums)
      : "l"(a), "l"(b), "r"((int)adds));
}

// The same with `a` in registers and adjacent columns of `b`; added to the sums.
__device__ void start_product(float (&sums)[64], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{\n .reg .pred adds;\n setp.ne.b32 adds, 1, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, {%64, %65, %66, %67}, %68,"
      " adds, 1, 1, 1;\n}\n"
      : SUMS_64(sums)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ void start_product(float (&sums)[32], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{\n .reg .pred adds;\n setp.ne.b32 adds, 1, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, {%32, %33, %34, %35}, %36,"
      " adds, 1, 1, 1;\n}\n"
      : SUMS_32(sums)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif

constexpr u32 ATOM = 1024;  // bytes: 8 lines of 128, whose chunks of 16 are swizzled

// Describes a matrix in shared memory, in columns of 128 bytes that are `column` bytes apart; lines are contiguous. If
// the product runs along the lines, 16 of them begin at `address`; else 32 bytes of each.
__device__ u64 matrix_at(u32 address, u32 column) {
  return (u64)(address >> 4 & 0x3fff) | (u64)(column >> 4) << 16 | (u64)(ATOM >> 4) << 32 | 1ull << 62;
}
