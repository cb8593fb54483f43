// The verbs in plain C++ (see table-inl.h), for any CPU. Included inside bngrad::scalar and an unnamed
// namespace.

struct All {};
struct First {
  int64_t n;
};

struct F32x16 {
  float v[kLanes];
};
struct F64x16 {
  double v[kLanes];
};

#include "float16-inl.h"

constexpr int64_t Lanes(All) { return kLanes; }
constexpr int64_t Lanes(First first) { return first.n; }

template <class T, class Count>
F32x16 Load(const T* p, Count count) {
  F32x16 r = {};
  for (int64_t i = 0; i < Lanes(count); ++i) r.v[i] = ToFloat(p[i]);
  return r;
}
template <class Count>
F64x16 Load(const double* p, Count count) {
  F64x16 r = {};
  for (int64_t i = 0; i < Lanes(count); ++i) r.v[i] = p[i];
  return r;
}
template <class T, class Count>
F64x16 Widen(const T* p, Count count) {
  F64x16 r = {};
  for (int64_t i = 0; i < Lanes(count); ++i) r.v[i] = ToFloat(p[i]);
  return r;
}
template <class Count>
F64x16 Widen(const double* p, Count count) {
  return Load(p, count);
}
template <class From, class To>
void Convert(const From& from, To& to) {
  for (int i = 0; i < kLanes; ++i) to.v[i] = from.v[i];
}
template <class T, class Count>
void Store(T* p, const F32x16& a, Count count) {
  for (int64_t i = 0; i < Lanes(count); ++i) FromFloat(a.v[i], p + i);
}
template <class Count>
void Store(double* p, const F64x16& a, Count count) {
  for (int64_t i = 0; i < Lanes(count); ++i) p[i] = a.v[i];
}

inline F32x16 Broadcast16(float s) {
  F32x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = s;
  return r;
}
inline F64x16 Broadcast16(double s) {
  F64x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = s;
  return r;
}
template <class V>
V Add16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
  return a;
}
template <class V>
V Sub16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] -= b.v[i];
  return a;
}
template <class V>
V Mul16(V a, const V& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
  return a;
}
inline F64x16 AddExactProduct16(F64x16 sum, const F64x16& a, const F64x16& b) {
  for (int i = 0; i < kLanes; ++i) sum.v[i] += a.v[i] * b.v[i];
  return sum;
}
template <class V>
V IfPositive(const V& z, V a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = z.v[i] > 0 ? a.v[i] : 0;
  return a;
}
template <class V, class Count>
V Keep(V a, Count count) {
  for (int64_t i = Lanes(count); i < kLanes; ++i) a.v[i] = 0;
  return a;
}

template <class V>
V Blend(const V& a, V b, First first) {
  for (int64_t i = 0; i < first.n; ++i) b.v[i] = a.v[i];
  return b;
}

inline double SumOfLanes(F64x16 a) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
inline void AddSumsOfLanes4(double* sums, const double* lanes, int64_t stride) {
  for (int k = 0; k < 4; ++k) sums[k] += SumOfLanes(Load(lanes + k * stride, All{}));
}

// Plain C++ has no word for these two.
template <int kLevel, class T>
void Prefetch(const T*, int64_t) {}
template <class T, class V>
void Stream(T* p, const V& a) {
  Store(p, a, All{});
}
inline void Fence() {}
