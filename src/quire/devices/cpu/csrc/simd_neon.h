// The operations of simd.h in NEON, which every 64-bit ARM has: two registers.

struct F8 {
    float32x4_t low, high;
};

inline F8 load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, F8 a) { vst1q_f32(p, a.low), vst1q_f32(p + 4, a.high); }
inline F8 set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline F8 operator+(F8 a, F8 b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline F8 operator-(F8 a, F8 b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline F8 operator*(F8 a, F8 b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline F8 operator/(F8 a, F8 b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
inline F8 magnitude(F8 a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
inline F8 nearest(F8 a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }

// For a number and a NaN these return the number, so that a NaN can be clamped.
inline F8 max(F8 a, F8 b) { return {vmaxnmq_f32(a.low, b.low), vmaxnmq_f32(a.high, b.high)}; }
inline F8 min(F8 a, F8 b) { return {vminnmq_f32(a.low, b.low), vminnmq_f32(a.high, b.high)}; }

inline F8 load(const uint16_t *p, bool is_bf16) {
    const uint16x8_t halves = vld1q_u16(p);
    const uint16x4_t low = vget_low_u16(halves), high = vget_high_u16(halves);
    if (!is_bf16) return {vcvt_f32_f16(vreinterpret_f16_u16(low)), vcvt_f32_f16(vreinterpret_f16_u16(high))};
    return {vreinterpretq_f32_u32(vshll_n_u16(low, 16)), vreinterpretq_f32_u32(vshll_n_u16(high, 16))};
}

inline F8 load(const int8_t *p) {
    const int16x8_t wide = vmovl_s8(vld1_s8(p));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)))};
}

inline void store_f16(uint16_t *p, F8 a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.low)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.high)));
}

inline float32x4_t power_of_two(float32x4_t a) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127)), 23));
}

inline F8 power_of_two(F8 a) { return {power_of_two(a.low), power_of_two(a.high)}; }

inline F8 between(F8 a, int begin, int end, F8 other) {
    constexpr int32_t LANE[LANES] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32x4_t low = vld1q_s32(LANE), high = vld1q_s32(LANE + 4);
    const int32x4_t from = vdupq_n_s32(begin), to = vdupq_n_s32(end);
    return {vbslq_f32(vandq_u32(vcgeq_s32(low, from), vcltq_s32(low, to)), a.low, other.low),
            vbslq_f32(vandq_u32(vcgeq_s32(high, from), vcltq_s32(high, to)), a.high, other.high)};
}

inline float sum(F8 a) {
    const float32x4_t four = vaddq_f32(a.low, a.high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

inline float largest(F8 a) { return vmaxnmvq_f32(vmaxnmq_f32(a.low, a.high)); }
