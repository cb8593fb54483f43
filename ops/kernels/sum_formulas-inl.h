// The terms of the sweeps' sums. Included by table-inl.h.

// True if the product of two elements of type T is exact in lanes of type V: 24 bits times 24 in a double.
template <class V, class T>
constexpr bool kExact = sizeof(V) == sizeof(F64x16) && sizeof(T) < sizeof(double);

// The factor D of sums of products. Where products are exact, that is X: the sum of dY*D is the one of dY*X
// less center times the one of dY. Its rounding is 2^-53 of terms as large as dY*X, but a float X differs
// from the center by 2^-24 of itself or not at all.
template <class T, class V, class Count>
BNGRAD_INLINE V Deviation(const V& x, const V& center, Count count) {
  if constexpr (kExact<V, T>) {
    return x;
  } else {
    return ZeroTail(Sub16(x, center), count);
  }
}
template <class T, class V>
BNGRAD_INLINE V AddProduct(const V& sum, const V& a, const V& b) {
  if constexpr (kExact<V, T>) {
    return AddExactProduct16(sum, a, b);
  } else {
    return Add16(sum, Mul16(a, b));
  }
}

// The terms of 16 elements, their type, and the inputs that are read for them. `count` is All, or
// FirstN{n} at the end of a row: lanes past n add zero, even where the center is infinite. kOfDeviations:
// some of its sums are of products with Deviation's D. kUnrolledRows: rows of a group without a loop; the
// second gradient has one loop for all, which keeps it small.
struct SumX {
  static constexpr int kKind = kSumX, kUnrolledRows = kGroupRows;
  static constexpr bool kOfDeviations = false;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static BNGRAD_INLINE void Add(V* acc, const T* const* in, int64_t i, const V&, Count count) {
    acc[0] = Add16(acc[0], LoadAs<V>(in[0] + i, count));
  }
};

struct SumSquares {
  static constexpr int kKind = kSumSquares, kUnrolledRows = kGroupRows;
  static constexpr bool kOfDeviations = false;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static BNGRAD_INLINE void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = ZeroTail(Sub16(LoadAs<V>(in[0] + i, count), center), count);
    acc[0] = Add16(acc[0], d);
    acc[1] = Add16(acc[1], Mul16(d, d));
  }
};

template <class Dy>
struct SumGrad {
  static constexpr int kKind = Dy::kRelu ? kSumReluGrad : kSumGrad, kUnrolledRows = kGroupRows;
  static constexpr bool kOfDeviations = true;
  static constexpr bool kReads[kMaxInputs] = {true, true, Dy::kRelu};
  template <class T>
  using Term = typename TypeTraits<T>::Term;
  template <class V, class T, class Count>
  static BNGRAD_INLINE void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = Deviation<T>(LoadAs<V>(in[0] + i, count), center, count);
    const V dy = Dy::template LoadDy<V>(in, i, count);
    acc[0] = Add16(acc[0], dy);
    acc[1] = AddProduct<T>(acc[1], dy, d);
  }
};

struct SumGradGrad {
  static constexpr int kKind = kSumGradGrad, kUnrolledRows = 1;
  static constexpr bool kOfDeviations = true;
  static constexpr bool kReads[kMaxInputs] = {true, true, true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static BNGRAD_INLINE void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = Deviation<T>(LoadAs<V>(in[0] + i, count), center, count);
    const V dy = LoadAs<V>(in[1] + i, count), ddx = LoadAs<V>(in[2] + i, count);
    acc[0] = Add16(acc[0], dy);
    acc[1] = AddProduct<T>(acc[1], dy, d);
    acc[2] = Add16(acc[2], ddx);
    acc[3] = AddProduct<T>(acc[3], ddx, d);
    acc[4] = AddProduct<T>(acc[4], ddx, dy);
  }
};

// True if D is X: see kernel.h.
template <class Sum, class T>
constexpr bool kUncentered = Sum::kOfDeviations && kExact<typename Sum::template Term<T>, T>;

// Terms are added up in their own type, at most kTerms of them, and those sums in double.
template <class Sum, class T>
struct Terms {
  using Term = typename Sum::template Term<T>;
  static constexpr int kCount = kSumCounts[Sum::kKind];
  static constexpr bool kDouble = sizeof(Term) == sizeof(F64x16);
  static constexpr bool kResumes = kExact<Term, T>;
  Term sums[kCount];

  BNGRAD_INLINE Terms() { Clear(); }
  BNGRAD_INLINE void Clear() {
    const F64x16 zero = Broadcast16(0.0);
    for (int k = 0; k < kCount; ++k) Convert(zero, sums[k]);
  }
  BNGRAD_INLINE void TakeFrom(Terms& other) {
    for (int k = 0; k < kCount; ++k) sums[k] = Add16(sums[k], other.sums[k]);
    other.Clear();
  }

  // From totals[k*stride + lane], and to them, for columns: terms in double go on from the totals, so that
  // nothing is added to zero. Not those of elements in double, whose results show the rounding of longer
  // sums.
  template <class Count>
  BNGRAD_INLINE void Resume(const double* totals, int64_t stride, Count count) {
    if constexpr (kResumes) {
      for (int k = 0; k < kCount; ++k) sums[k] = Load(totals + k * stride, count);
    }
  }
  template <class Count>
  BNGRAD_INLINE void Flush(double* totals, int64_t stride, Count count) {
    for (int k = 0; k < kCount; ++k) {
      F64x16 sum;
      Convert(sums[k], sum);
      if constexpr (!kResumes) sum = Add16(Load(totals + k * stride, count), sum);
      Store(totals + k * stride, sum, count);
    }
  }
};
