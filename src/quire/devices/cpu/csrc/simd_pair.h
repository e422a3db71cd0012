// F8x2 of simd.h where a register cannot hold sixteen floats: two F8.

struct F8x2 {
    F8 low, high;
};

inline F8 low_of(F8x2 a) { return a.low; }
inline F8 high_of(F8x2 a) { return a.high; }
inline F8x2 join(F8 low, F8 high) { return {low, high}; }
inline void store(float *p, F8x2 a) { store(p, a.low), store(p + LANES, a.high); }
inline F8x2 operator+(F8x2 a, F8x2 b) { return {a.low + b.low, a.high + b.high}; }
inline F8x2 operator-(F8x2 a, F8x2 b) { return {a.low - b.low, a.high - b.high}; }
inline F8x2 operator*(F8x2 a, F8x2 b) { return {a.low * b.low, a.high * b.high}; }
inline F8x2 fma(F8x2 a, F8x2 b, F8x2 c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
inline F8x2 max(F8x2 a, F8x2 b) { return {max(a.low, b.low), max(a.high, b.high)}; }
inline F8x2 min(F8x2 a, F8x2 b) { return {min(a.low, b.low), min(a.high, b.high)}; }
inline F8x2 nearest(F8x2 a) { return {nearest(a.low), nearest(a.high)}; }
inline F8x2 power_of_two(F8x2 a) { return {power_of_two(a.low), power_of_two(a.high)}; }

inline F8x2 between(F8x2 a, int begin, int end, F8x2 other) {
    return {between(a.low, begin, end, other.low), between(a.high, begin - LANES, end - LANES, other.high)};
}

template <>
inline F8x2 set1<F8x2>(float x) {
    return {set1(x), set1(x)};
}

template <>
inline F8x2 load<F8x2>(const float *p) {
    return {load(p), load(p + LANES)};
}

template <>
inline F8x2 load<F8x2>(const uint16_t *p, bool is_bf16) {
    return {load(p, is_bf16), load(p + LANES, is_bf16)};
}
