// The operations of bytes.h for two panels if a register holds only one: what both share is computed once.

struct BytesPair {
    Bytes low, high;
};

template <>
struct BytesType<F8x2> {
    using type = BytesPair;
};

template <>
inline BytesPair bytes_at<BytesPair>(const uint8_t *p, size_t apart) {
    return {bytes_at<Bytes>(p, 0), bytes_at<Bytes>(p + apart, 0)};
}

template <>
inline BytesPair twice_at<BytesPair>(const int8_t *p, size_t apart) {
    return {twice_at<Bytes>(p, 0), twice_at<Bytes>(p + apart, 0)};
}

template <>
inline BytesPair four_bytes<BytesPair>(const void *p) {
    const Bytes same = four_bytes<Bytes>(p);
    return {same, same};
}

template <>
inline BytesPair each_byte<BytesPair>(int x) {
    const Bytes same = each_byte<Bytes>(x);
    return {same, same};
}

template <>
inline BytesPair each_short<BytesPair>(int x) {
    const Bytes same = each_short<Bytes>(x);
    return {same, same};
}

template <>
inline BytesPair lanes_at<BytesPair>(const int32_t *p) {
    return {lanes_at<Bytes>(p), lanes_at<Bytes>(p + LANES)};
}

inline void put_bytes(uint8_t *p, BytesPair a) { put_bytes(p, a.low), put_bytes(p + VECTOR, a.high); }

#define QUIRE_OF_BOTH(word) \
    inline BytesPair word(BytesPair a, BytesPair b) { return {word(a.low, b.low), word(a.high, b.high)}; }
QUIRE_OF_BOTH(operator&)
QUIRE_OF_BOTH(operator|)
QUIRE_OF_BOTH(operator^)
QUIRE_OF_BOTH(odd_shorts_of)
QUIRE_OF_BOTH(signed_by)
QUIRE_OF_BOTH(byte_pairs)
QUIRE_OF_BOTH(short_pairs)
QUIRE_OF_BOTH(add_shorts)
QUIRE_OF_BOTH(multiply_shorts)
QUIRE_OF_BOTH(add_lanes)
QUIRE_OF_BOTH(subtract_lanes)
QUIRE_OF_BOTH(subtract_bytes)
#undef QUIRE_OF_BOTH

inline BytesPair shifted_right(BytesPair a, int count) {
    return {shifted_right(a.low, count), shifted_right(a.high, count)};
}
inline BytesPair shifted_left(BytesPair a, int count) { return {shifted_left(a.low, count), shifted_left(a.high, count)}; }
inline BytesPair look_up(const int8_t *levels, BytesPair a) { return {look_up(levels, a.low), look_up(levels, a.high)}; }
inline BytesPair size_of(BytesPair weights) { return {size_of(weights.low), size_of(weights.high)}; }
inline F8x2 floats_of(BytesPair lanes) { return {floats_of(lanes.low), floats_of(lanes.high)}; }
inline void settle(BytesPair &sum) { settle(sum.low), settle(sum.high); }

#if QUIRE_AVX_VNNI
inline BytesPair add_dots(BytesPair sums, BytesPair a, BytesPair b) {
    return {add_dots(sums.low, a.low, b.low), add_dots(sums.high, a.high, b.high)};
}
#endif
