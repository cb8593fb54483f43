// The element types and how the sweeps load them. Included by table-inl.h.

// An argument that the compiler knows.
template <int kArgument>
struct Constant {
  static constexpr int kValue = kArgument;
};

// The type that maps compute in, and the one of the terms of the gradient's sums: double, where rounding them
// to float could be seen in the result. 16 bits are exact in a float, and so are their differences and small
// sums.
template <class T>
struct TypeTraits {
  using Arithmetic = float;
  using Vector = F32x16;
  using Term = F32x16;
};
template <>
struct TypeTraits<float> {
  using Arithmetic = float;
  using Vector = F32x16;
  using Term = F64x16;
};
template <>
struct TypeTraits<double> {
  using Arithmetic = double;
  using Vector = F64x16;
  using Term = F64x16;
};

// Strips of 16 elements that make a cache line, at the least one.
template <class T>
constexpr int kStripsOfLine = sizeof(T) < sizeof(float) ? 2 : 1;

// 16 elements in a type of 16 lanes.
template <class V, class T, class Count>
BNGRAD_INLINE V LoadAs(const T* p, Count count) {
  if constexpr (sizeof(V) == sizeof(F64x16)) {
    return Widen(p, count);
  } else {
    return Load(p, count);
  }
}

// The gradient with respect to Y: given, or that of a ReLU's output Z where the ReLU let it through.
struct GivenDy {
  static constexpr bool kRelu = false;
  template <class V, class T, class Count>
  static BNGRAD_INLINE V LoadDy(const T* const* in, int64_t i, Count count) {
    return LoadAs<V>(in[1] + i, count);
  }
};
struct ReluDy {
  static constexpr bool kRelu = true;
  template <class V, class T, class Count>
  static BNGRAD_INLINE V LoadDy(const T* const* in, int64_t i, Count count) {
    return IfPositive(LoadAs<V>(in[2] + i, count), LoadAs<V>(in[1] + i, count));
  }
};

// Calls body(row, some) for each row, or kSome of them at once while there are as many.
template <int kSome, class Body>
BNGRAD_INLINE void ForRows(int64_t rows, const Body& body) {
  int64_t row = 0;
  if constexpr (kSome > 1) {
    for (; row + kSome <= rows; row += kSome) body(row, Constant<kSome>{});
  }
  for (; row < rows; ++row) body(row, Constant<1>{});
}
