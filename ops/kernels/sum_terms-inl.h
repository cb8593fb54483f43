// What the sweeps sum. Included by each <isa>.cc after its verbs, inside bngrad::<isa> and an unnamed
// namespace.

// Whether the product of two elements of type T is exact in lanes of type V: 24 bits times 24 in a double.
template <class V, class T>
constexpr bool kExact = sizeof(V) == sizeof(F64x16) && sizeof(T) < sizeof(double);

// What sums of products have for D. Where products are exact, that is X: the sum of dY*D is the one of dY*X
// less center times the one of dY. Its rounding is 2^-53 of terms as large as dY*X, but a float X differs
// from the center by 2^-24 of itself or not at all (measured, float against exact sums: the same errors as
// with D up to a center of 2^20 deviations; 1x512x49 1.13, 8x256x196 1.06, 392x512 1.12 times as fast).
template <class T, class V, class Count>
V Deviation(const V& x, const V& center, Count count) {
  if constexpr (kExact<V, T>) {
    return x;
  } else {
    return Keep(Sub16(x, center), count);
  }
}
template <class T, class V>
V AddProduct(const V& sum, const V& a, const V& b) {
  if constexpr (kExact<V, T>) {
    return AddExactProduct16(sum, a, b);
  } else {
    return AddTerm16(sum, Mul16(a, b));
  }
}

// What is added for 16 elements, in which type, and which inputs are read for it. `count` is All, or First{n}
// at the end of a row: lanes past n add zero, even where the center is infinite.
// kOfDeviations: some of its sums are of products with Deviation's D.
struct SumX {
  static constexpr int kKind = kSumX;
  static constexpr bool kOfDeviations = false;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static void Add(V* acc, const T* const* in, int64_t i, const V&, Count count) {
    acc[0] = AddTerm16(acc[0], LoadAs<V>(in[0] + i, count));
  }
};

struct SumSquares {
  static constexpr int kKind = kSumSquares;
  static constexpr bool kOfDeviations = false;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = Keep(Sub16(LoadAs<V>(in[0] + i, count), center), count);
    acc[0] = Add16(acc[0], d);
    acc[1] = Add16(acc[1], Mul16(d, d));
  }
};

template <class Dy>
struct SumGrad {
  static constexpr int kKind = Dy::kRelu ? kSumReluGrad : kSumGrad;
  static constexpr bool kOfDeviations = true;
  static constexpr bool kReads[kMaxInputs] = {true, true, Dy::kRelu};
  template <class T>
  using Term = typename TypeTraits<T>::Term;
  template <class V, class T, class Count>
  static void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = Deviation<T>(LoadAs<V>(in[0] + i, count), center, count);
    const V dy = Dy::template Term<V>(in, i, count);
    acc[0] = AddTerm16(acc[0], dy);
    acc[1] = AddProduct<T>(acc[1], dy, d);
  }
};

struct SumGradGradTraining {
  static constexpr int kKind = kSumGradGradTraining;
  static constexpr bool kOfDeviations = true;
  static constexpr bool kReads[kMaxInputs] = {true, true, true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = Deviation<T>(LoadAs<V>(in[0] + i, count), center, count);
    const V dy = LoadAs<V>(in[1] + i, count), ddx = LoadAs<V>(in[2] + i, count);
    acc[0] = AddTerm16(acc[0], dy);
    acc[1] = AddProduct<T>(acc[1], dy, d);
    acc[2] = AddTerm16(acc[2], ddx);
    acc[3] = AddProduct<T>(acc[3], ddx, d);
    acc[4] = AddProduct<T>(acc[4], ddx, dy);
  }
};

struct SumGradGradFrozen {
  static constexpr int kKind = kSumGradGradFrozen;
  static constexpr bool kOfDeviations = false;
  static constexpr bool kReads[kMaxInputs] = {false, true, true};
  template <class T>
  using Term = F64x16;
  template <class V, class T, class Count>
  static void Add(V* acc, const T* const* in, int64_t i, const V&, Count count) {
    acc[0] = AddProduct<T>(acc[0], LoadAs<V>(in[2] + i, count), LoadAs<V>(in[1] + i, count));
  }
};

// For the table, see kernel.h; and for those who would fetch a center that is not read.
template <class Sum, class T>
constexpr bool kAboutZero = Sum::kOfDeviations && kExact<typename Sum::template Term<T>, T>;

// Terms are added up in their own type, at most kTerms of them, and those sums in double.
template <class Sum, class T, class TermType = typename Sum::template Term<T>>
struct Terms {
  using Term = TermType;
  static constexpr int kCount = kSumCounts[Sum::kKind];
  static constexpr bool kDouble = sizeof(Term) == sizeof(F64x16);
  static constexpr bool kGoesOn = kExact<Term, T>;
  Term sums[kCount];

  Terms() { Clear(); }
  void Clear() {
    const F64x16 zero = Broadcast16(0.0);
    for (int k = 0; k < kCount; ++k) Convert(zero, sums[k]);
  }
  void TakeFrom(Terms& other) {
    for (int k = 0; k < kCount; ++k) sums[k] = Add16(sums[k], other.sums[k]);
    other.Clear();
  }
  // totals[k*stride + lane]
  template <class Count>
  void MoveTo(double* totals, int64_t stride, Count count) {
    for (int k = 0; k < kCount; ++k) {
      F64x16 sum;
      Convert(sums[k], sum);
      Store(totals + k * stride, Add16(Load(totals + k * stride, count), sum), count);
    }
    Clear();
  }

  // Instead of zero and MoveTo: terms in double go on from the totals, so that nothing is added to zero
  // (measured, where conversions and additions take turns: 392x512 1.02 to 1.05, 1000x100 1.04 times as
  // fast). Not those of elements in double, whose results show the rounding of longer sums.
  template <class Count>
  void GoOnFrom(const double* totals, int64_t stride, Count count) {
    if constexpr (kGoesOn) {
      for (int k = 0; k < kCount; ++k) sums[k] = Load(totals + k * stride, count);
    }
  }
  template <class Count>
  void BecomeTotals(double* totals, int64_t stride, Count count) {
    if constexpr (kGoesOn) {
      for (int k = 0; k < kCount; ++k) Store(totals + k * stride, sums[k], count);
    } else {
      MoveTo(totals, stride, count);
    }
  }
};

// Those of long rows, which some CPUs like better in other registers.
template <class Sum, class T>
using LongRowTerms = Terms<Sum, T, typename OfLongRows<typename Sum::template Term<T>, T>::Type>;
