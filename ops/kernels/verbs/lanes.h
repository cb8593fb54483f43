// Verbs on 16 lanes, made of those on a register. Included by the verbs of each instruction set that has
// vectors, after the latter.

// So many registers of a type of 16 lanes, and lanes of one.
template <class V>
constexpr int kRegisters = sizeof(V::v) / sizeof(V::v[0]);
template <class V>
constexpr int kWidth = static_cast<int>(kLanes) / kRegisters<V>;

BNGRAD_INLINE F32x16 Load(const float* p, All) {
  F32x16 r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<F32x16>; ++k) r.v[k] = LoadRegister(p + k * kWidth<F32x16>);
  return r;
}
BNGRAD_INLINE F64x16 Load(const double* p, All) {
  F64x16 r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<F64x16>; ++k) r.v[k] = LoadRegister(p + k * kWidth<F64x16>);
  return r;
}
template <class T>
BNGRAD_INLINE F64x16 Widen(const T* p, All all) {
  F64x16 r;
  Convert(Load(p, all), r);
  return r;
}
BNGRAD_INLINE F64x16 Widen(const double* p, All all) { return Load(p, all); }
BNGRAD_INLINE void Convert(const F64x16& from, F64x16& to) { to = from; }

BNGRAD_INLINE void Store(float* p, const F32x16& a, All) {
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<F32x16>; ++k) StoreRegister(p + k * kWidth<F32x16>, a.v[k]);
}
BNGRAD_INLINE void Store(double* p, const F64x16& a, All) {
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<F64x16>; ++k) StoreRegister(p + k * kWidth<F64x16>, a.v[k]);
}
template <class T, class V>
BNGRAD_INLINE void Stream(T* p, const V& a) {
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) StreamRegister(p + k * kWidth<V>, a.v[k]);
}

// The ends of rows go by memory, element by element: there is one in a row at the most.
template <class T>
struct FirstElements {
  T elements[kLanes] = {};
  BNGRAD_INLINE FirstElements(const T* p, FirstN first) {
    for (int64_t i = 0; i < first.n; ++i) elements[i] = p[i];
  }
};
template <class T>
BNGRAD_INLINE auto Load(const T* p, FirstN first) {
  return Load(static_cast<const T*>(FirstElements<T>(p, first).elements), All{});
}
template <class T>
BNGRAD_INLINE F64x16 Widen(const T* p, FirstN first) {
  return Widen(static_cast<const T*>(FirstElements<T>(p, first).elements), All{});
}
template <class T, class V>
BNGRAD_INLINE void Store(T* p, const V& a, FirstN first) {
  T elements[kLanes];
  Store(elements, a, All{});
  for (int64_t i = 0; i < first.n; ++i) p[i] = elements[i];
}

BNGRAD_INLINE F32x16 Broadcast16(float s) {
  F32x16 r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<decltype(r)>; ++k) r.v[k] = Splat(s);
  return r;
}
BNGRAD_INLINE F64x16 Broadcast16(double s) {
  F64x16 r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<decltype(r)>; ++k) r.v[k] = Splat(s);
  return r;
}
template <class V>
BNGRAD_INLINE V Add16(const V& a, const V& b) {
  V r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) r.v[k] = Add(a.v[k], b.v[k]);
  return r;
}
template <class V>
BNGRAD_INLINE V Sub16(const V& a, const V& b) {
  V r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) r.v[k] = Sub(a.v[k], b.v[k]);
  return r;
}
template <class V>
BNGRAD_INLINE V Mul16(const V& a, const V& b) {
  V r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) r.v[k] = Mul(a.v[k], b.v[k]);
  return r;
}
template <class V>
BNGRAD_INLINE V AddExactProduct16(const V& sum, const V& a, const V& b) {
  V r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) r.v[k] = MulAdd(a.v[k], b.v[k], sum.v[k]);
  return r;
}
template <class V>
BNGRAD_INLINE V IfPositive(const V& z, const V& a) {
  V r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) r.v[k] = IfPositive(z.v[k], a.v[k]);
  return r;
}
template <class V>
BNGRAD_INLINE V Blend(const V& a, const V& b, FirstN first) {
  V r;
  BNGRAD_UNROLL
  for (int k = 0; k < kRegisters<V>; ++k) r.v[k] = Select(a.v[k], b.v[k], first.n - k * kWidth<V>);
  return r;
}
template <class V>
BNGRAD_INLINE V ZeroTail(const V& a, All) {
  return a;
}
template <class V>
BNGRAD_INLINE V ZeroTail(const V& a, FirstN first) {
  V zero;
  Convert(Broadcast16(0.0), zero);
  return Blend(a, zero, first);
}
