// The verbs on NEON as AArch64 has it (see table-inl.h). Included inside bngrad::neon and an unnamed
// namespace.

#include "common.h"

struct F32x16 {
  float32x4_t v[4];
};
struct F64x16 {
  float64x2_t v[8];
};

BNGRAD_INLINE float32x4_t LoadRegister(const float* p) { return vld1q_f32(p); }
BNGRAD_INLINE float64x2_t LoadRegister(const double* p) { return vld1q_f64(p); }
BNGRAD_INLINE void StoreRegister(float* p, float32x4_t a) { vst1q_f32(p, a); }
BNGRAD_INLINE void StoreRegister(double* p, float64x2_t a) { vst1q_f64(p, a); }
BNGRAD_INLINE float32x4_t Splat(float s) { return vdupq_n_f32(s); }
BNGRAD_INLINE float64x2_t Splat(double s) { return vdupq_n_f64(s); }
BNGRAD_INLINE float32x4_t Add(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
BNGRAD_INLINE float64x2_t Add(float64x2_t a, float64x2_t b) { return vaddq_f64(a, b); }
BNGRAD_INLINE float32x4_t Sub(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
BNGRAD_INLINE float64x2_t Sub(float64x2_t a, float64x2_t b) { return vsubq_f64(a, b); }
BNGRAD_INLINE float32x4_t Mul(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
BNGRAD_INLINE float64x2_t Mul(float64x2_t a, float64x2_t b) { return vmulq_f64(a, b); }
BNGRAD_INLINE float64x2_t MulAdd(float64x2_t a, float64x2_t b, float64x2_t sum) {
  return vfmaq_f64(sum, a, b);
}
BNGRAD_INLINE float32x4_t IfPositive(float32x4_t z, float32x4_t a) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vcgtzq_f32(z)));
}
BNGRAD_INLINE float64x2_t IfPositive(float64x2_t z, float64x2_t a) {
  return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(a), vcgtzq_f64(z)));
}
// The first n lanes of a, the others of b; n may be negative, or more than there are.
BNGRAD_INLINE uint64x2_t FirstLanes(int64_t n) {
  return vcgtq_s64(vdupq_n_s64(n), vcombine_s64(vcreate_s64(0), vcreate_s64(1)));
}
BNGRAD_INLINE float32x4_t Select(float32x4_t a, float32x4_t b, int64_t n) {
  return vbslq_f32(vcombine_u32(vmovn_u64(FirstLanes(n)), vmovn_u64(FirstLanes(n - 2))), a, b);
}
BNGRAD_INLINE float64x2_t Select(float64x2_t a, float64x2_t b, int64_t n) {
  return vbslq_f64(FirstLanes(n), a, b);
}

BNGRAD_INLINE void Convert(const F32x16& from, F64x16& to) {
  for (int k = 0; k < 4; ++k) {
    to.v[2 * k] = vcvt_f64_f32(vget_low_f32(from.v[k]));
    to.v[2 * k + 1] = vcvt_high_f64_f32(from.v[k]);
  }
}
BNGRAD_INLINE void Convert(const F64x16& from, F32x16& to) {
  for (int k = 0; k < 4; ++k) to.v[k] = vcvt_high_f32_f64(vcvt_f32_f64(from.v[2 * k]), from.v[2 * k + 1]);
}

// Ordinary stores: CPUs of this kind see that whole cache lines are written, and do not read them first.
BNGRAD_INLINE void StreamRegister(float* p, float32x4_t a) { StoreRegister(p, a); }
BNGRAD_INLINE void StreamRegister(double* p, float64x2_t a) { StoreRegister(p, a); }
BNGRAD_INLINE void Fence() {}

#include "lanes.h"

// float16. Every AArch64 CPU converts it; arithmetic on it, which not every one has, is not used.
BNGRAD_INLINE F32x16 Load(const Float16* p, All) {
  F32x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p[4 * k].bits)));
  return r;
}
BNGRAD_INLINE void Store(Float16* p, const F32x16& a, All) {
  for (int k = 0; k < 4; ++k) vst1_u16(&p[4 * k].bits, vreinterpret_u16_f16(vcvt_f16_f32(a.v[k])));
}

// bfloat16: see FromFloat in float16-inl.h. Instructions for it are no part of the first AArch64.
BNGRAD_INLINE F32x16 Load(const BFloat16* p, All) {
  F32x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p[4 * k].bits), 16));
  return r;
}
BNGRAD_INLINE void Store(BFloat16* p, const F32x16& a, All) {
  for (int k = 0; k < 4; ++k) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v[k]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
    const uint16x4_t rounded = vshrn_n_u32(vaddq_u32(bits, half), 16);
    const uint16x4_t nan = vorr_u16(vshrn_n_u32(bits, 16), vdup_n_u16(0x40));
    vst1_u16(&p[4 * k].bits, vbsl_u16(vmovn_u32(vceqq_f32(a.v[k], a.v[k])), rounded, nan));
  }
}
BNGRAD_INLINE void Stream(Float16* p, const F32x16& a) { Store(p, a, All{}); }
BNGRAD_INLINE void Stream(BFloat16* p, const F32x16& a) { Store(p, a, All{}); }

BNGRAD_INLINE double SumOfLanes(F64x16 a) {
  for (int half = 4; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) a.v[k] = vaddq_f64(a.v[k], a.v[k + half]);
  }
  return vaddvq_f64(a.v[0]);
}
BNGRAD_INLINE void AddSumsOfLanes4(double* sums, const double* lanes, int64_t stride) {
  for (int k = 0; k < 4; ++k) sums[k] += SumOfLanes(Load(lanes + k * stride, All{}));
}

template <int kLevel, class T>
BNGRAD_INLINE void Prefetch(const T* p, int64_t i) {
  static_assert(kLevel == 1 || kLevel == 2, "a level of the caches");
  constexpr int kForReading = 0, kHint = 4 - kLevel;
  constexpr int64_t kBytes = kLanes * sizeof(T), kLine = kCacheLine;
  const char* const begin = reinterpret_cast<const char*>(AddressOf(p, i));
  for (int64_t byte = 0; byte < kBytes; byte += kLine) {
    __builtin_prefetch(AddressOf(begin, byte), kForReading, kHint);
  }
}
