// The verbs in plain C++ (see table-inl.h), for any CPU. Included inside bngrad::scalar and an unnamed
// namespace.

#include "common.h"

// True to compile sums and maps also as one loop: the portable code need not be fast.
constexpr bool kFuses = false;

struct F32x16 {
  float v[kLanes];
};
struct F64x16 {
  double v[kLanes];
};

#include "../float16-inl.h"

BNGRAD_INLINE constexpr int64_t Lanes(All) { return kLanes; }
BNGRAD_INLINE constexpr int64_t Lanes(FirstN first) { return first.n; }

template <class T, class Count>
BNGRAD_INLINE F32x16 Load(const T* p, Count count) {
  F32x16 r = {};
  for (int64_t i = 0; i < Lanes(count); ++i) r.v[i] = ToFloat(p[i]);
  return r;
}
template <class Count>
BNGRAD_INLINE F64x16 Load(const double* p, Count count) {
  F64x16 r = {};
  for (int64_t i = 0; i < Lanes(count); ++i) r.v[i] = p[i];
  return r;
}
template <class T, class Count>
BNGRAD_INLINE F64x16 Widen(const T* p, Count count) {
  F64x16 r = {};
  for (int64_t i = 0; i < Lanes(count); ++i) r.v[i] = ToFloat(p[i]);
  return r;
}
template <class Count>
BNGRAD_INLINE F64x16 Widen(const double* p, Count count) {
  return Load(p, count);
}
template <class From, class To>
BNGRAD_INLINE void Convert(const From& from, To& to) {
  for (int i = 0; i < kLanes; ++i) to.v[i] = from.v[i];
}
template <class T, class Count>
BNGRAD_INLINE void Store(T* p, const F32x16& a, Count count) {
  for (int64_t i = 0; i < Lanes(count); ++i) FromFloat(a.v[i], p + i);
}
template <class Count>
BNGRAD_INLINE void Store(double* p, const F64x16& a, Count count) {
  for (int64_t i = 0; i < Lanes(count); ++i) p[i] = a.v[i];
}

BNGRAD_INLINE F32x16 Broadcast16(float s) {
  F32x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = s;
  return r;
}
BNGRAD_INLINE F64x16 Broadcast16(double s) {
  F64x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = s;
  return r;
}
template <class V>
BNGRAD_INLINE V Add16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
  return a;
}
template <class V>
BNGRAD_INLINE V Sub16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] -= b.v[i];
  return a;
}
template <class V>
BNGRAD_INLINE V Mul16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
  return a;
}
template <class V>
BNGRAD_INLINE V Div16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] /= b.v[i];
  return a;
}
// C's functions: those of C++ are symbols that kernel files would share.
BNGRAD_INLINE F32x16 Sqrt16(F32x16 a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = ::sqrtf(a.v[i]);
  return a;
}
BNGRAD_INLINE F64x16 Sqrt16(F64x16 a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = ::sqrt(a.v[i]);
  return a;
}
BNGRAD_INLINE F64x16 AddExactProduct16(F64x16 sum, const F64x16& a, const F64x16& b) {
  for (int i = 0; i < kLanes; ++i) sum.v[i] += a.v[i] * b.v[i];
  return sum;
}
template <class V>
BNGRAD_INLINE V IfPositive(const V& z, V a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = z.v[i] > 0 ? a.v[i] : 0;
  return a;
}
template <class V, class Count>
BNGRAD_INLINE V ZeroTail(V a, Count count) {
  for (int64_t i = Lanes(count); i < kLanes; ++i) a.v[i] = 0;
  return a;
}

template <class V>
BNGRAD_INLINE V Blend(const V& a, V b, FirstN first) {
  for (int64_t i = 0; i < first.n; ++i) b.v[i] = a.v[i];
  return b;
}

template <class V>
BNGRAD_INLINE void Deinterleave(const V& low, const V& high, V& even, V& odd) {
  for (int i = 0; i < kLanes; ++i) {
    const V& from = i < kLanes / 2 ? low : high;
    even.v[i] = from.v[2 * i % kLanes];
    odd.v[i] = from.v[2 * i % kLanes + 1];
  }
}
template <class V>
BNGRAD_INLINE void Interleave(const V& even, const V& odd, V& low, V& high) {
  for (int i = 0; i < kLanes; ++i) {
    V& to = i < kLanes / 2 ? low : high;
    to.v[2 * i % kLanes] = even.v[i];
    to.v[2 * i % kLanes + 1] = odd.v[i];
  }
}

BNGRAD_INLINE double SumOfLanes(F64x16 a) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
BNGRAD_INLINE void AddSumsOfLanes4(double* sums, const double* lanes, int64_t stride) {
  for (int k = 0; k < 4; ++k) sums[k] += SumOfLanes(Load(lanes + k * stride, All{}));
}

// Plain C++ has no word for these two.
template <int kLevel, class T>
BNGRAD_INLINE void Prefetch(const T*, int64_t) {}
template <class T, class V>
BNGRAD_INLINE void Stream(T* p, const V& a) {
  Store(p, a, All{});
}
BNGRAD_INLINE void Fence() {}
