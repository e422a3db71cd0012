// The instructions of `warpgroup.cuh` on a CPU. Products are computed as late as a GPU may: when they are awaited.
#pragma once

#include "emulated.h"

namespace host {

inline Products& products() { return mine().products[current->thread / 128]; }

inline float swizzled(u32 address) {
  u16 bits;
  std::memcpy(&bits, at(address ^ (address >> 7 & 7) << 4), 2);
  return __uint_as_float((u32)bits << 16);
}

// A number of a matrix: `which` row or column, `along` the product.
inline float number_of(u64 matrix, bool is_along_lines, int which, int along) {
  const u32 begin = (u32)(matrix & 0x3fff) << 4, column = (u32)(matrix >> 16 & 0x3fff) << 4;
  const u32 lines = (u32)(matrix >> 32 & 0x3fff) << 4;
  if (!is_along_lines) return swizzled(begin + which / 8 * lines + which % 8 * 128 + along * 2);
  return swizzled(begin + which / 64 * column + which % 64 * 2 + along / 8 * lines + along % 8 * 128);
}

inline float number_in_registers(const Product& product, int row, int along) {
  const u32* weights = product.registers[row / 16 * 32 + row % 8 * 4 + along % 8 / 2];
  return __uint_as_float(weights[row / 8 % 2 + along / 8 * 2] >> 16 * (along % 2) << 16);
}

inline void compute(const Product& product) {
  static float rows[64][16], columns[128][16];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 64; ++i) {
      rows[i][k] = product.in_registers ? number_in_registers(product, i, k) : number_of(product.a, false, i, k);
    }
    for (int i = 0; i < 2 * product.num_sums; ++i) columns[i][k] = number_of(product.b, product.in_registers, i, k);
  }
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < product.num_sums; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      float& sum = product.sums[thread][i];
      if (!product.adds) sum = 0.0f;
      for (int k = 0; k < 16; ++k) sum += rows[row][k] * columns[column][k];
    }
  }
}

inline void start(float* sums, const u32* registers, const Product& product) {
  Products& all = products();
  all.next.sums[current->thread % 128] = sums, all.next.registers[current->thread % 128] = registers;
  sync(all.sync_point, 128, [&] {
    all.next.a = product.a, all.next.b = product.b, all.next.adds = product.adds;
    all.next.in_registers = product.in_registers;
    all.next.num_sums = product.num_sums;
    all.started.push_back(all.next);
  });
}

}  // namespace host

template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}
inline void follow() {}
inline void copy_chunk(u32 to, const void* from, bool is_there) {
  if (is_there) {
    std::memcpy(host::at(to), from, 16);
  } else {
    std::memset(host::at(to), 0, 16);
  }
}
inline void wait_for_chunks() {}
inline void clear_chunk(u32 at) { std::memset(host::at(at), 0, 16); }
inline void fence_products() {}
inline u64 evict_normal_policy() { return 0; }
inline void settle(float, u32) {}

inline void begin_products() {}
inline void end_products() {
  host::Products& all = host::products();
  host::sync(all.sync_point, 128, [&] { all.groups.push_back(std::move(all.started)), all.started.clear(); });
}
template <int LATER, int COUNT>
void wait_for_products(float (&)[COUNT]) {
  host::Products& all = host::products();
  host::sync(all.sync_point, 128, [&] {
    for (; all.groups.size() > LATER; all.groups.erase(all.groups.begin())) {
      for (const host::Product& each : all.groups.front()) host::compute(each);
    }
  });
}
inline void start_product(float (&sums)[64], u64 a, u64 b, bool adds) {
  host::start(sums, nullptr, {{}, {}, a, b, false, adds, 64});
}
template <int COUNT>
void start_product(float (&sums)[COUNT], const u32 (&a)[4], u64 b) {
  host::start(sums, a, {{}, {}, 0, b, true, true, COUNT});
}
