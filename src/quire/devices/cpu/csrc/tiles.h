// Tiles: registers of 16 rows of 64 bytes, and their products (AMX, on Intel's servers from Sapphire Rapids on). Included
// by kernels.cpp, inside a variant's namespace, and by roof_loops.cpp.
//
//   configure_tiles(shapes)          rows and bytes of a row of each tile of this thread; all tiles are zeros then
//   release_tiles()                  a thread without tiles is cheaper to switch
//   clear_tile<T>()
//   load_tile<T>(p, stride), store_tile<T>(p, stride)   rows that are `stride` bytes apart
//   add_tile_dots<SUMS, A, B>()      SUMS[m][n] += the sum over k of A[m][k] * B[k / 4][4 * n + k % 4], signed bytes, in
//                                    32 bits
//
// They are written in assembly: the functions that GCC 12 has for them do not say that they read memory.
// QUIRE_EMULATED_TILES is for tests: the same words in plain C++ (tests/devices/cpu/emulated_tiles.h).

constexpr int TILE_ROWS = 16, TILE_WIDTH = 64;  // of a tile, in bytes

// As the instruction reads it.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int num_rows, int bytes) {
        rows[tile] = static_cast<uint8_t>(num_rows), row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};
static_assert(sizeof(TileShapes) == 64, "the size is fixed");

#if QUIRE_EMULATED_TILES

#include "emulated_tiles.h"

#else

inline void configure_tiles(const TileShapes &shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }

inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int T>
inline void clear_tile() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
}

template <int T>
inline void load_tile(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
}

template <int T>
inline void store_tile(void *p, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}

template <int SUMS, int A, int B>
inline void add_tile_dots() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

#endif
