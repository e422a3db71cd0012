// The instructions of `machine.cuh` on a CPU: threads of blocks are fibers that take turns, so that kernels for Hopper
// run, slowly, without one. A collective operation of a warp is executed by its last lane.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) unsigned char* name = host::shared_memory()
#define threadIdx (host::Index{host::current->thread})
#define blockIdx (host::Index{host::current->block})
#define gridDim (host::Index{host::num_blocks})

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
struct alignas(64) TensorMap { u64 opaque[16]; };  // address, rows, bytes of a row, rows of a box, boxes

using std::max;
using std::min;

namespace host {

constexpr u32 SHARED_AT = 1024;  // the address of a block's shared memory

struct Index { int x; };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int block, thread;
  bool is_over = false;
};

struct SyncPoint {  // of some threads
  int arrived = 0;
  u64 generation = 0;
};

struct Warp {
  SyncPoint sync_point;
  u32 words[32][12];
};

struct Barrier {
  int count, pending;
  long bytes = 0;
  u32 phase = 0;
};

struct Product {  // of four warps
  float* sums[128];  // of each thread
  const u32* registers[128];
  u64 a, b;
  bool in_registers, adds;
  int num_sums;
};

struct Products {  // started and not yet awaited
  SyncPoint sync_point;
  Product next;
  std::vector<Product> started;
  std::vector<std::vector<Product>> groups;
};

struct Block {
  std::vector<unsigned char> shared;
  std::map<u32, Barrier> barriers;
  std::map<int, SyncPoint> named_barriers;
  std::vector<Warp> warps;
  std::vector<Products> products;  // of each four warps
};

inline Fiber* current;
inline int num_blocks;
inline ucontext_t scheduler;
inline std::vector<Block> blocks;

inline Block& mine() { return blocks[current->block]; }
inline void yield() { swapcontext(&current->context, &scheduler); }
inline unsigned char* shared_memory() { return mine().shared.data(); }
inline unsigned char* at(u32 address) { return mine().shared.data() + (address - SHARED_AT); }

// Waits for `count` threads; the last one calls `last` before the others continue.
template <class Last>
void sync(SyncPoint& sync_point, int count, Last last) {
  const u64 generation = sync_point.generation;
  if (++sync_point.arrived == count) {
    last();
    sync_point.arrived = 0;
    ++sync_point.generation;
    return;
  }
  while (sync_point.generation == generation) yield();
}

inline Warp& warp() { return mine().warps[current->thread / 32]; }
inline int lane() { return current->thread % 32; }

inline void complete(Barrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.count;
}

inline float half_to_float(u16 bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return (float)half;
}

inline u16 float_to_half(float number) {
  const _Float16 half = (_Float16)number;
  u16 bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

inline float fp8_to_float(u32 byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const float size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return byte & 128 ? -size : size;
}

}  // namespace host

inline float __uint_as_float(u32 bits) {
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}
inline float __int_as_float(u32 bits) { return __uint_as_float(bits); }
inline u32 bits_of(float number) {
  u32 bits;
  std::memcpy(&bits, &number, 4);
  return bits;
}
inline float __expf(float number) { return std::exp(number); }
inline float __fdividef(float above, float below) { return above / below; }
inline float __log2f(float number) { return std::log2(number); }
inline float rsqrtf(float number) { return 1.0f / std::sqrt(number); }
inline void __threadfence() {}
inline int atomicAdd(int* to, int more) { return (*to += more) - more; }
inline u32 atomicAdd(u32* to, u32 more) { return (*to += more) - more; }
inline u32 __byte_perm(u32 first, u32 second, u32 order) {
  const u64 both = (u64)second << 32 | first;
  u32 found = 0;
  for (int i = 0; i < 4; ++i) found |= (u32)(both >> 8 * (order >> 4 * i & 7) & 255) << 8 * i;
  return found;
}

inline void __syncthreads() {
  const int count = 32 * (int)host::mine().warps.size();
  host::sync(host::mine().named_barriers[0], count, [] {});
}
inline void __syncwarp() {
  host::sync(host::warp().sync_point, 32, [] {});
}
inline int __shfl_xor_sync(u32, int number, int distance) {
  host::Warp& warp = host::warp();
  warp.words[host::lane()][0] = (u32)number;
  host::sync(warp.sync_point, 32, [&] {
    for (int i = 0; i < 32; ++i) warp.words[i][1] = warp.words[i ^ distance][0];
  });
  return (int)warp.words[host::lane()][1];
}
inline u32 __shfl_xor_sync(u32 lanes, u32 number, int distance) {
  return (u32)__shfl_xor_sync(lanes, (int)number, distance);
}
inline float __shfl_xor_sync(u32 lanes, float number, int distance) {
  return __uint_as_float((u32)__shfl_xor_sync(lanes, (int)bits_of(number), distance));
}

inline u32 shared_address(const void* pointer) {
  return host::SHARED_AT + (u32)((const unsigned char*)pointer - host::shared_memory());
}
inline void init_barrier(u32 barrier, u32 count) { host::mine().barriers[barrier] = {(int)count, (int)count}; }
inline void arrive(u32 barrier) {
  host::Barrier& found = host::mine().barriers.at(barrier);
  --found.pending;
  host::complete(found);
}
inline void arrive_expecting(u32 barrier, u32 bytes) {
  host::mine().barriers.at(barrier).bytes += bytes;
  arrive(barrier);
}
inline void wait(u32 barrier, u32 parity) {
  while (host::mine().barriers.at(barrier).phase == parity) host::yield();
}
inline void fence_barrier_init() {}
inline void sync_threads(int barrier, int num_threads) {
  host::sync(host::mine().named_barriers[barrier], num_threads, [] {});
}
inline void fence_copies() {}
inline void add_release(u32* to) { ++*to; }
inline void store_tagged(u64* to, float number, u32 tag) {
  u32 bits;
  std::memcpy(&bits, &number, 4);
  *to = (u64)tag << 32 | bits;
}
inline u64 load_tagged(const u64* from) { return *from; }
inline void pause() { host::yield(); }
inline u32 load_acquire(const u32* from) {
  host::yield();
  return *from;
}
inline void prefetch_line(const void*) {}
inline u64 evict_first_policy() { return 0; }

inline void copy_boxes(u32 to, const TensorMap* map, int row, int box, u32 barrier, u64) {
  const auto [address, rows, row_bytes, box_rows, boxes] =
      std::make_tuple(map->opaque[0], map->opaque[1], map->opaque[2], map->opaque[3], map->opaque[4]);
  for (u64 part = 0; part < boxes; ++part) {
    for (u64 r = 0; r < box_rows; ++r) {
      for (u32 chunk = 0; chunk < 8; ++chunk) {
        const u32 line = to + (u32)(part * box_rows + r) * 128, swizzled = line + ((chunk ^ (line >> 7 & 7)) << 4);
        const u64 from = (row + r) * row_bytes + (box + part) * 128 + chunk * 16;
        if (row + r < rows) {
          std::memcpy(host::at(swizzled), (const char*)address + from, 16);
        } else {
          std::memset(host::at(swizzled), 0, 16);
        }
      }
    }
  }
  host::Barrier& found = host::mine().barriers.at(barrier);
  found.bytes -= (long)(boxes * box_rows * 128);
  host::complete(found);
}
inline void copy_bytes(u32 to, const void* from, u32 size, u32 barrier) {
  std::memcpy(host::at(to), from, size);
  host::Barrier& found = host::mine().barriers.at(barrier);
  found.bytes -= size;
  host::complete(found);
}
inline uint4 load_shared(u32 address) {
  uint4 found;
  std::memcpy(&found, host::at(address), 16);
  return found;
}
inline float load_from_l2(const float* from) { return *from; }

inline void load_matrices(u32 (&to)[4], u32 address) {
  host::Warp& warp = host::warp();
  const int lane = host::lane();
  warp.words[lane][0] = address;
  host::sync(warp.sync_point, 32, [&] {
    for (int i = 0; i < 32; ++i) {
      for (int m = 0; m < 4; ++m) {
        std::memcpy(&warp.words[i][1 + m], host::at(warp.words[8 * m + i / 4][0]) + i % 4 * 4, 4);
      }
    }
  });
  for (int m = 0; m < 4; ++m) to[m] = warp.words[lane][1 + m];
}

template <bool IS_HALF>
void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  host::Warp& warp = host::warp();
  u32* mine = warp.words[host::lane()];
  const u32 inputs[6] = {a0, a1, a2, a3, b0, b1};
  std::copy(inputs, inputs + 6, mine);
  for (int i = 0; i < 4; ++i) mine[6 + i] = bits_of(c[i]);
  host::sync(warp.sync_point, 32, [&] {
    const auto number = [](u32 pair, int which) {
      const u16 bits = (u16)(pair >> 16 * which);
      return IS_HALF ? host::half_to_float(bits) : __uint_as_float((u32)bits << 16);
    };
    double a[16][16], b[16][8];
    for (int i = 0; i < 32; ++i) {
      const int g = i / 4, t = i % 4 * 2;
      for (int e = 0; e < 2; ++e) {
        for (int r = 0; r < 4; ++r) a[g + r % 2 * 8][t + r / 2 * 8 + e] = number(warp.words[i][r], e);
        for (int r = 0; r < 2; ++r) b[t + r * 8 + e][g] = number(warp.words[i][4 + r], e);
      }
    }
    for (int i = 0; i < 32; ++i) {
      for (int r = 0; r < 4; ++r) {
        const int row = i / 4 + r / 2 * 8, column = i % 4 * 2 + r % 2;
        double sum = __uint_as_float(warp.words[i][6 + r]);
        for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        warp.words[i][6 + r] = bits_of((float)sum);
      }
    }
  });
  for (int i = 0; i < 4; ++i) c[i] = __uint_as_float(mine[6 + i]);
}

inline void widen(u32 four, u32& first, u32& second) {
  u32 halves[4];
  for (int i = 0; i < 4; ++i) halves[i] = host::float_to_half(host::fp8_to_float(four >> 8 * i & 255));
  first = halves[0] | halves[1] << 16, second = halves[2] | halves[3] << 16;
}
inline u32 transposed(u32 pair) {
  host::Warp& warp = host::warp();
  warp.words[host::lane()][0] = pair;
  host::sync(warp.sync_point, 32, [&] {
    u16 matrix[8][8];
    for (int i = 0; i < 32; ++i) {
      for (int e = 0; e < 2; ++e) matrix[i % 4 * 2 + e][i / 4] = (u16)(warp.words[i][0] >> 16 * e);
    }
    for (int i = 0; i < 32; ++i) {
      warp.words[i][1] = matrix[i / 4][i % 4 * 2] | (u32)matrix[i / 4][i % 4 * 2 + 1] << 16;
    }
  });
  return warp.words[host::lane()][1];
}
inline u16 to_bf16(float number) {
  const u32 bits = bits_of(number);
  return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u32 bf16_pair(float first, float second) { return to_bf16(first) | (u32)to_bf16(second) << 16; }
inline u16 to_half(float number) {
  return host::float_to_half(std::fmin(std::fmax(number, -65504.0f), 65504.0f));
}
inline float power_of_2(float number) { return std::exp2(number); }
