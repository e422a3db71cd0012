// Vectors of bytes on x86: the operations that sums of blocks are written with. Included only by kernels.cpp, inside
// the namespace of one variant. Each register width has a file with:
//
//   Bytes                            a register: [lane][4] bytes, or [lane][2] shorts of 16 bits, or lanes of 32
//   BytesFor<W>                      the type with as many lanes as W: Bytes for one panel, WideBytes or a pair for two
//   bytes_at<B>(p, apart)            a vector of a panel; a B for two panels also has that of the second, at p + apart
//   four_bytes<B>, each_byte<B>, each_short<B>   the same ones in every lane
//   twice_at<B>(p, apart)            an integer for each lane, in both of its shorts
//   shifted_right, shifted_left      by bits of shorts: there are no shifts of bytes
//   look_up(levels, a)               levels[a] of each byte below 16
//   odd_shorts_of(a, b)              even shorts from a, odd ones from b
//   size_of(w), signed_by(x, w)      a weight without its sign, and a value with the weight's sign
//   byte_pairs(a, b)                 products of unsigned and signed bytes; neighbours are added to shorts
//   short_pairs(a, b)                products of shorts; neighbours are added to lanes
//   add_dots(sums, a, b)             VNNI: as byte_pairs, but four neighbours are added to the lanes of sums
//   add_short_pairs(sums, a, b)      the same with short_pairs, in AVX-512
//   bits_of(floats), floats_with(a)  lanes of floats as they are, in AVX-512 with VNNI; floats_of converts integers
//   add_shorts, multiply_shorts, add_lanes, subtract_lanes, subtract_bytes, floats_of
//   put_bytes(p, a), lanes_at<B>(p)  all bytes of a register, to memory and from it, of two panels side by side; bytes_of
//                                    in AVX-512
//   settle(sum)                      forces a sum to be computed here. Otherwise GCC reorders all additions of a block,
//                                    keeps every product until the end, and spills most of them: half the speed.
//   fixed(p)                         a pointer that is opaque to the compiler. Otherwise GCC derives a pointer for each
//                                    load from 8 tokens, and spills most of them; with 4 tokens it does not.

template <class W>
struct BytesType;
template <class W>
using BytesFor = typename BytesType<W>::type;

template <class B>
inline B bytes_at(const uint8_t *p, size_t apart);
template <class B>
inline B twice_at(const int8_t *p, size_t apart);
template <class B>
inline B lanes_at(const int32_t *p);
template <class B>
inline B four_bytes(const void *p);
template <class B>
inline B each_byte(int x);
template <class B>
inline B each_short(int x);

#include "bytes_avx2.h"
#if QUIRE_AVX512
#include "bytes_avx512.h"
#else
#include "bytes_pair.h"
#endif

inline const int8_t *fixed(const int8_t *p) {
#if QUIRE_AVX512
    __asm__("" : "+r"(p));
#endif
    return p;
}

// The bits of vector v in one plane, moved to bit AT of each byte; the mask removes bits of a neighbour.
template <class B, int WIDTH, int AT>
inline B plane_at(const uint8_t *plane, size_t apart, int v) {
    const B bytes = bytes_at<B>(plane + VECTOR * (v * WIDTH / 8), apart);
    const int down = v * WIDTH % 8 - AT;
    const B moved = down >= 0 ? shifted_right(bytes, down) : shifted_left(bytes, -down);
    return moved & each_byte<B>(((1 << WIDTH) - 1) << AT);
}

// Quants of vector v, one in each byte.
template <class B, int BITS>
inline B vector_at(const uint8_t *quants, size_t apart, int v) {
    constexpr int LOW = BITS & 4 ? 4 : 2, HIGH = BITS - LOW;
    if constexpr (BITS == 8) return bytes_at<B>(quants + VECTOR * v, apart);
    else if constexpr (HIGH == 0) return plane_at<B, LOW, 0>(quants, apart, v);
    else return plane_at<B, LOW, 0>(quants, apart, v) | plane_at<B, HIGH, LOW>(quants + VECTOR * LOW, apart, v);
}

// Levels of vector v.
template <class B, Format F>
inline B levels_at(const uint8_t *quants, size_t apart, int v) {
    constexpr BlockFormat f = block_format(F);
    const B all = vector_at<B, f.bits>(quants, apart, v);
    if constexpr (f.table == Table::NONE) return all;
    else return look_up(levels_in(f.table), all);
}
