// The operations of simd.h for any CPU: eight floats in an array, which compilers vectorize.

struct F8 {
    float v[LANES];
};

#define QUIRE_EACH(expression)                          \
    F8 out;                                             \
    for (int i = 0; i < LANES; ++i) out.v[i] = (expression); \
    return out

inline F8 load(const float *p) { QUIRE_EACH(p[i]); }
inline void store(float *p, F8 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F8 set1(float x) { QUIRE_EACH(x); }
inline F8 operator+(F8 a, F8 b) { QUIRE_EACH(a.v[i] + b.v[i]); }
inline F8 operator-(F8 a, F8 b) { QUIRE_EACH(a.v[i] - b.v[i]); }
inline F8 operator*(F8 a, F8 b) { QUIRE_EACH(a.v[i] * b.v[i]); }
inline F8 operator/(F8 a, F8 b) { QUIRE_EACH(a.v[i] / b.v[i]); }
inline F8 fma(F8 a, F8 b, F8 c) { QUIRE_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline F8 max(F8 a, F8 b) { QUIRE_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F8 min(F8 a, F8 b) { QUIRE_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F8 magnitude(F8 a) { QUIRE_EACH(a.v[i] < 0.0f ? -a.v[i] : a.v[i]); }

// Adding 1.5 * 2 ** 23 leaves no fraction bits: ties go to even, like the instruction.
inline F8 nearest(F8 a) { QUIRE_EACH((a.v[i] + 12582912.0f) - 12582912.0f); }

inline F8 load(const uint16_t *p, bool is_bf16) {
    QUIRE_EACH(is_bf16 ? half::from_bf16(p[i]) : half::from_f16(p[i]));
}

inline F8 load(const int8_t *p) { QUIRE_EACH(static_cast<float>(p[i])); }

inline void store_f16(uint16_t *p, F8 a) {
    for (int i = 0; i < LANES; ++i) p[i] = half::to_f16(a.v[i]);
}

inline F8 power_of_two(F8 a) {
    F8 out;
    for (int i = 0; i < LANES; ++i) {
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) + 127) << 23;
        std::memcpy(&out.v[i], &bits, sizeof bits);
    }
    return out;
}

inline F8 between(F8 a, int begin, int end, F8 other) { QUIRE_EACH(begin <= i && i < end ? a.v[i] : other.v[i]); }

inline float sum(F8 a) {
    float x[LANES];
    store(x, a);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

inline float largest(F8 a) {
    float x[LANES];
    store(x, a);
    float most = x[0];
    for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
    return most;
}
