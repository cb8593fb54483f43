// The verbs on NEON as AArch64 has it (see table-inl.h). Included inside bngrad::neon and an unnamed
// namespace.

#include "common.h"

// True to compile sums and maps also as one loop.
constexpr bool kFuses = true;

struct F32x16 {
  float32x4_t v[4];
};
struct F64x16 {
  float64x2_t v[8];
};

// The rest of a count, for the lanes from `skipped` on; none if First's n is not positive.
BNGRAD_INLINE constexpr All After(All all, int) { return all; }
BNGRAD_INLINE constexpr FirstN After(FirstN first, int skipped) { return {first.n - skipped}; }

// One register. There are no masked loads or stores, so at the end of a row lanes go one by one.
BNGRAD_INLINE float32x4_t Load4(const float* p, All) { return vld1q_f32(p); }
BNGRAD_INLINE float32x4_t Load4(const float* p, FirstN first) {
  if (first.n >= 4) return vld1q_f32(p);
  float32x4_t r = vdupq_n_f32(0);
  if (first.n > 0) r = vld1q_lane_f32(p, r, 0);
  if (first.n > 1) r = vld1q_lane_f32(p + 1, r, 1);
  if (first.n > 2) r = vld1q_lane_f32(p + 2, r, 2);
  return r;
}
BNGRAD_INLINE float64x2_t Load2(const double* p, All) { return vld1q_f64(p); }
BNGRAD_INLINE float64x2_t Load2(const double* p, FirstN first) {
  if (first.n >= 2) return vld1q_f64(p);
  const float64x2_t zero = vdupq_n_f64(0);
  return first.n > 0 ? vld1q_lane_f64(p, zero, 0) : zero;
}
BNGRAD_INLINE uint16x4_t LoadBits4(const void* p, All) { return vld1_u16(static_cast<const uint16_t*>(p)); }
BNGRAD_INLINE uint16x4_t LoadBits4(const void* p, FirstN first) {
  const uint16_t* const bits = static_cast<const uint16_t*>(p);
  if (first.n >= 4) return vld1_u16(bits);
  uint16x4_t r = vdup_n_u16(0);
  if (first.n > 0) r = vld1_lane_u16(bits, r, 0);
  if (first.n > 1) r = vld1_lane_u16(bits + 1, r, 1);
  if (first.n > 2) r = vld1_lane_u16(bits + 2, r, 2);
  return r;
}

BNGRAD_INLINE void Store4(float* p, float32x4_t a, All) { vst1q_f32(p, a); }
BNGRAD_INLINE void Store4(float* p, float32x4_t a, FirstN first) {
  if (first.n >= 4) return vst1q_f32(p, a);
  if (first.n > 0) vst1q_lane_f32(p, a, 0);
  if (first.n > 1) vst1q_lane_f32(p + 1, a, 1);
  if (first.n > 2) vst1q_lane_f32(p + 2, a, 2);
}
BNGRAD_INLINE void Store2(double* p, float64x2_t a, All) { vst1q_f64(p, a); }
BNGRAD_INLINE void Store2(double* p, float64x2_t a, FirstN first) {
  if (first.n >= 2) return vst1q_f64(p, a);
  if (first.n > 0) vst1q_lane_f64(p, a, 0);
}
BNGRAD_INLINE void StoreBits4(void* p, uint16x4_t a, All) { vst1_u16(static_cast<uint16_t*>(p), a); }
BNGRAD_INLINE void StoreBits4(void* p, uint16x4_t a, FirstN first) {
  uint16_t* const bits = static_cast<uint16_t*>(p);
  if (first.n >= 4) return vst1_u16(bits, a);
  if (first.n > 0) vst1_lane_u16(bits, a, 0);
  if (first.n > 1) vst1_lane_u16(bits + 1, a, 1);
  if (first.n > 2) vst1_lane_u16(bits + 2, a, 2);
}

// float16. Every AArch64 CPU converts it; arithmetic on it, which not every one has, is not used.
template <class Count>
BNGRAD_INLINE float32x4_t Load4(const Float16* p, Count count) {
  return vcvt_f32_f16(vreinterpret_f16_u16(LoadBits4(p, count)));
}
template <class Count>
BNGRAD_INLINE void Store4(Float16* p, float32x4_t a, Count count) {
  StoreBits4(p, vreinterpret_u16_f16(vcvt_f16_f32(a)), count);
}

// bfloat16: see FromFloat in float16-inl.h. Instructions for it are no part of the first AArch64.
template <class Count>
BNGRAD_INLINE float32x4_t Load4(const BFloat16* p, Count count) {
  return vreinterpretq_f32_u32(vshll_n_u16(LoadBits4(p, count), 16));
}
template <class Count>
BNGRAD_INLINE void Store4(BFloat16* p, float32x4_t a, Count count) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
  const uint16x4_t rounded = vshrn_n_u32(vaddq_u32(bits, half), 16);
  const uint16x4_t nan = vorr_u16(vshrn_n_u32(bits, 16), vdup_n_u16(0x40));
  StoreBits4(p, vbsl_u16(vmovn_u32(vceqq_f32(a, a)), rounded, nan), count);
}

template <class T, class Count>
BNGRAD_INLINE F32x16 Load(const T* p, Count count) {
  F32x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = Load4(AddressOf(p, 4 * k), After(count, 4 * k));
  return r;
}
template <class Count>
BNGRAD_INLINE F64x16 Load(const double* p, Count count) {
  F64x16 r;
  for (int k = 0; k < 8; ++k) r.v[k] = Load2(AddressOf(p, 2 * k), After(count, 2 * k));
  return r;
}
BNGRAD_INLINE void Convert(const F32x16& from, F64x16& to) {
  for (int k = 0; k < 4; ++k) {
    to.v[2 * k] = vcvt_f64_f32(vget_low_f32(from.v[k]));
    to.v[2 * k + 1] = vcvt_high_f64_f32(from.v[k]);
  }
}
BNGRAD_INLINE void Convert(const F64x16& from, F64x16& to) { to = from; }
BNGRAD_INLINE void Convert(const F64x16& from, F32x16& to) {
  for (int k = 0; k < 4; ++k) to.v[k] = vcvt_high_f32_f64(vcvt_f32_f64(from.v[2 * k]), from.v[2 * k + 1]);
}
template <class T, class Count>
BNGRAD_INLINE F64x16 Widen(const T* p, Count count) {
  F64x16 r;
  Convert(Load(p, count), r);
  return r;
}
template <class Count>
BNGRAD_INLINE F64x16 Widen(const double* p, Count count) {
  return Load(p, count);
}
template <class T, class Count>
BNGRAD_INLINE void Store(T* p, const F32x16& a, Count count) {
  for (int k = 0; k < 4; ++k) Store4(AddressOf(p, 4 * k), a.v[k], After(count, 4 * k));
}
template <class Count>
BNGRAD_INLINE void Store(double* p, const F64x16& a, Count count) {
  for (int k = 0; k < 8; ++k) Store2(AddressOf(p, 2 * k), a.v[k], After(count, 2 * k));
}

BNGRAD_INLINE F32x16 Broadcast16(float s) {
  const float32x4_t v = vdupq_n_f32(s);
  return {{v, v, v, v}};
}
BNGRAD_INLINE F32x16 Add16(F32x16 a, const F32x16& b) {
  for (int k = 0; k < 4; ++k) a.v[k] = vaddq_f32(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F32x16 Sub16(F32x16 a, const F32x16& b) {
  for (int k = 0; k < 4; ++k) a.v[k] = vsubq_f32(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F32x16 Mul16(F32x16 a, const F32x16& b) {
  for (int k = 0; k < 4; ++k) a.v[k] = vmulq_f32(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F32x16 Div16(F32x16 a, const F32x16& b) {
  for (int k = 0; k < 4; ++k) a.v[k] = vdivq_f32(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F32x16 Sqrt16(F32x16 a) {
  for (int k = 0; k < 4; ++k) a.v[k] = vsqrtq_f32(a.v[k]);
  return a;
}

BNGRAD_INLINE F64x16 Broadcast16(double s) {
  const float64x2_t v = vdupq_n_f64(s);
  return {{v, v, v, v, v, v, v, v}};
}
BNGRAD_INLINE F64x16 Add16(F64x16 a, const F64x16& b) {
  for (int k = 0; k < 8; ++k) a.v[k] = vaddq_f64(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F64x16 Sub16(F64x16 a, const F64x16& b) {
  for (int k = 0; k < 8; ++k) a.v[k] = vsubq_f64(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F64x16 Mul16(F64x16 a, const F64x16& b) {
  for (int k = 0; k < 8; ++k) a.v[k] = vmulq_f64(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F64x16 Div16(F64x16 a, const F64x16& b) {
  for (int k = 0; k < 8; ++k) a.v[k] = vdivq_f64(a.v[k], b.v[k]);
  return a;
}
BNGRAD_INLINE F64x16 Sqrt16(F64x16 a) {
  for (int k = 0; k < 8; ++k) a.v[k] = vsqrtq_f64(a.v[k]);
  return a;
}
BNGRAD_INLINE F64x16 AddExactProduct16(F64x16 sum, const F64x16& a, const F64x16& b) {
  for (int k = 0; k < 8; ++k) sum.v[k] = vfmaq_f64(sum.v[k], a.v[k], b.v[k]);
  return sum;
}

// The lanes of a where the mask has ones.
BNGRAD_INLINE float32x4_t And(float32x4_t a, uint32x4_t mask) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), mask));
}
BNGRAD_INLINE float64x2_t And(float64x2_t a, uint64x2_t mask) {
  return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(a), mask));
}

BNGRAD_INLINE F32x16 IfPositive(const F32x16& z, F32x16 a) {
  for (int k = 0; k < 4; ++k) a.v[k] = And(a.v[k], vcgtzq_f32(z.v[k]));
  return a;
}
BNGRAD_INLINE F64x16 IfPositive(const F64x16& z, F64x16 a) {
  for (int k = 0; k < 8; ++k) a.v[k] = And(a.v[k], vcgtzq_f64(z.v[k]));
  return a;
}

// All ones in those of two lanes, or of four, that First's n covers.
BNGRAD_INLINE uint64x2_t Mask2(FirstN first) {
  return vcgtq_s64(vdupq_n_s64(first.n), vcombine_s64(vcreate_s64(0), vcreate_s64(1)));
}
BNGRAD_INLINE uint32x4_t Mask4(FirstN first) {
  return vcombine_u32(vmovn_u64(Mask2(first)), vmovn_u64(Mask2(After(first, 2))));
}
BNGRAD_INLINE F32x16 ZeroTail(const F32x16& a, All) { return a; }
BNGRAD_INLINE F32x16 ZeroTail(F32x16 a, FirstN first) {
  for (int k = 0; k < 4; ++k) a.v[k] = And(a.v[k], Mask4(After(first, 4 * k)));
  return a;
}
BNGRAD_INLINE F64x16 ZeroTail(const F64x16& a, All) { return a; }
BNGRAD_INLINE F64x16 ZeroTail(F64x16 a, FirstN first) {
  for (int k = 0; k < 8; ++k) a.v[k] = And(a.v[k], Mask2(After(first, 2 * k)));
  return a;
}
BNGRAD_INLINE F32x16 Blend(const F32x16& a, F32x16 b, FirstN first) {
  for (int k = 0; k < 4; ++k) b.v[k] = vbslq_f32(Mask4(After(first, 4 * k)), a.v[k], b.v[k]);
  return b;
}
BNGRAD_INLINE F64x16 Blend(const F64x16& a, F64x16 b, FirstN first) {
  for (int k = 0; k < 8; ++k) b.v[k] = vbslq_f64(Mask2(After(first, 2 * k)), a.v[k], b.v[k]);
  return b;
}

BNGRAD_INLINE void Deinterleave(const F32x16& low, const F32x16& high, F32x16& even, F32x16& odd) {
  for (int k = 0; k < 4; ++k) {
    const F32x16& from = k < 2 ? low : high;
    even.v[k] = vuzp1q_f32(from.v[k % 2 * 2], from.v[k % 2 * 2 + 1]);
    odd.v[k] = vuzp2q_f32(from.v[k % 2 * 2], from.v[k % 2 * 2 + 1]);
  }
}
BNGRAD_INLINE void Interleave(const F32x16& even, const F32x16& odd, F32x16& low, F32x16& high) {
  for (int k = 0; k < 4; ++k) {
    F32x16& to = k < 2 ? low : high;
    to.v[k % 2 * 2] = vzip1q_f32(even.v[k], odd.v[k]);
    to.v[k % 2 * 2 + 1] = vzip2q_f32(even.v[k], odd.v[k]);
  }
}
BNGRAD_INLINE void Deinterleave(const F64x16& low, const F64x16& high, F64x16& even, F64x16& odd) {
  for (int k = 0; k < 8; ++k) {
    const F64x16& from = k < 4 ? low : high;
    even.v[k] = vuzp1q_f64(from.v[k % 4 * 2], from.v[k % 4 * 2 + 1]);
    odd.v[k] = vuzp2q_f64(from.v[k % 4 * 2], from.v[k % 4 * 2 + 1]);
  }
}
BNGRAD_INLINE void Interleave(const F64x16& even, const F64x16& odd, F64x16& low, F64x16& high) {
  for (int k = 0; k < 8; ++k) {
    F64x16& to = k < 4 ? low : high;
    to.v[k % 4 * 2] = vzip1q_f64(even.v[k], odd.v[k]);
    to.v[k % 4 * 2 + 1] = vzip2q_f64(even.v[k], odd.v[k]);
  }
}

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

// Ordinary stores: CPUs of this kind see that whole cache lines are written, and do not read them first. The
// pair of registers that `stnp` stores is only a hint beside that; GCC has no intrinsic for it, and it has
// not been measured to gain anything. So there is nothing to wait for either.
template <class T, class V>
BNGRAD_INLINE void Stream(T* p, const V& a) {
  Store(p, a, All{});
}
BNGRAD_INLINE void Fence() {}
