// The algorithm, once for every instruction set. An <isa>.cc includes this inside bngrad::<isa> and an
// unnamed namespace, after its simd_<isa>.h and a simd_tuned_<cpu>.h; the former gives the verbs on 16 lanes:
//   F32x16, F64x16       16 floats, 16 doubles
//   All, First{n}        which lanes a load or a store touches; a load makes the others zero
//   Load(p, count)       16 elements in their arithmetic type
//   Widen(p, count)      16 elements as doubles
//   Convert(from, &to)   from one type of 16 lanes to another, rounded if that is narrower
//   Store(p, v, count)   rounded to the type of p, to nearest, ties to even
//   Broadcast16(s)  Add16(a, b)  Sub16(a, b)  Mul16(a, b)
//   SumOfLanes(a)        of doubles: halves are added until one is left
//   AddSumsOfLanes4(sums, lanes, stride)   adds to sums[k] the same of the 16 doubles at lanes + k*stride
//   AddExactProduct16(sum, a, b)   of doubles: as a*b is exact, it may be rounded once or twice
//   IfPositive(z, v)     v where z > 0, else 0 (as for a NaN of z)
//   Keep(v, count)       v with the other lanes made zero, whatever they held
//   Blend(a, b, First)   the first n lanes of a, the others of b
//   Prefetch<1>(p, i)    16 elements from p[i] on that will be read soon, to the nearest cache; <2>: to the
//                        second level; i may lie past the array
//   Stream(p, v)         a store past the cache, p aligned to 16 elements or a cache line, the smaller;
//   Fence()
//                        when all are done

// Loops over what is to be registers are unrolled, which GCC does not do by itself.
#if defined(__clang__)
#define BNGRAD_UNROLL_4 _Pragma("unroll 4")
#define BNGRAD_UNROLL_8 _Pragma("unroll 8")
#elif defined(__GNUC__)
#define BNGRAD_UNROLL_4 _Pragma("GCC unroll 4")
#define BNGRAD_UNROLL_8 _Pragma("GCC unroll 8")
#else
#define BNGRAD_UNROLL_4
#define BNGRAD_UNROLL_8
#endif

// A function with loops so large that those of several copies in one place would not find registers.
#if defined(_MSC_VER)
#define BNGRAD_NOINLINE __declspec(noinline)
#else
#define BNGRAD_NOINLINE __attribute__((noinline))
#endif

// A function whose calls all become part of it, with theirs: a compiler stops at some size, of which these
// loops are, and then calls for 16 elements, with what is summed in memory (measured, AVX2: frozen columns of
// 256 floats 3.5 times, of doubles 10 times as fast).
#if defined(BNGRAD_FLATTEN)
#define BNGRAD_WHOLE __attribute__((flatten))
#else
#define BNGRAD_WHOLE
#endif

// An argument that is known to the compiler.
template <int kArgument>
struct Constant {
  static constexpr int kValue = kArgument;
};

// Summing, how far before they are read elements are asked for: that is what the CPU's own prefetching leaves
// to be gained, for it stops at each page and each row. Columns share them among the rows that are read
// together; short rows have fewer bytes on the way. Neither is asked for where the caches hold the array
// (measured, 8x2048x7x7: 0.9 times as fast if it is, 392x2048 0.88), but for columns of few bytes; and rows
// apart are at the second level only, for many of them have the same places in the nearest cache (1000x8192:
// 0.85 if they are asked for there).
constexpr int64_t kBytesAhead = 4096;
constexpr int64_t kBytesAheadOfShort = 2048;

// Terms that are added up in their own type before they become double, at most; and rows that are summed, or
// mapped, together where they are short (measured, sums: 2 and 8 together are 0.85 to 1.0 times as fast).
constexpr int64_t kTerms = 32;
constexpr int64_t kRowsOfGroup = 4;
static_assert(kStripRows <= kTerms, "terms of a strip");

// Summing and mapping in one loop, elements that are summed before as many are mapped: so few that reading
// and writing overlap, which they do not from 512 on (measured).
constexpr int64_t kTurn = 8 * kLanes;

// An element type, the type that maps compute in, and the one of the terms of the gradient's sums: double,
// where rounding them to float could be seen in the result. 16 bits are exact in a float, and so are their
// differences and small sums.
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

// Elements in a type of 16 lanes: one of these two, or one that has its own Fetch.
template <class T, class Count>
void Fetch(const T* p, Count count, F32x16& to) {
  to = Load(p, count);
}
template <class T, class Count>
void Fetch(const T* p, Count count, F64x16& to) {
  to = Widen(p, count);
}
template <class V, class T, class Count>
V LoadAs(const T* p, Count count) {
  V v;
  Fetch(p, count, v);
  return v;
}

// The gradient of the loss by Y: given, or that of a ReLU's output Z where the ReLU let it through.
struct GivenDy {
  static constexpr bool kRelu = false;
  template <class T, class Count>
  static auto Loaded(const T* const* in, int64_t i, Count count) {
    return Load(in[1] + i, count);
  }
  template <class V, class T, class Count>
  static V Term(const T* const* in, int64_t i, Count count) {
    return LoadAs<V>(in[1] + i, count);
  }
};
struct ReluDy {
  static constexpr bool kRelu = true;
  template <class T, class Count>
  static auto Loaded(const T* const* in, int64_t i, Count count) {
    return IfPositive(Load(in[2] + i, count), Load(in[1] + i, count));
  }
  template <class V, class T, class Count>
  static V Term(const T* const* in, int64_t i, Count count) {
    return IfPositive(LoadAs<V>(in[2] + i, count), LoadAs<V>(in[1] + i, count));
  }
};

#include "alignment-inl.h"
#include "beside_sums-inl.h"
#include "map_formulas-inl.h"
#include "maps_of_columns-inl.h"
#include "maps_of_rows-inl.h"
#include "maps_of_short_rows-inl.h"
#include "sum_terms-inl.h"
#include "sum_totals-inl.h"
#include "sums_of_columns-inl.h"
#include "sums_of_rows-inl.h"
#include "sums_of_short_rows-inl.h"
#include "tandem-inl.h"

// In the order of SumKind and MapKind.
template <class T>
constexpr TypeKernels MakeTypeKernels() {
  return {
      {kAboutZero<SumX, T>, kAboutZero<SumSquares, T>, kAboutZero<SumGrad<GivenDy>, T>,
       kAboutZero<SumGrad<ReluDy>, T>, kAboutZero<SumGradGradTraining, T>, kAboutZero<SumGradGradFrozen, T>},
      {SumRows<SumX, T>, SumRows<SumSquares, T>, SumRows<SumGrad<GivenDy>, T>, SumRows<SumGrad<ReluDy>, T>,
       SumRows<SumGradGradTraining, T>, SumRows<SumGradGradFrozen, T>},
      {SumColumns<SumX, T>, SumColumns<SumSquares, T>, SumColumns<SumGrad<GivenDy>, T>,
       SumColumns<SumGrad<ReluDy>, T>, SumColumns<SumGradGradTraining, T>, SumColumns<SumGradGradFrozen, T>},
      {MapRows<MapForward, T>, MapRows<MapGradTraining<GivenDy>, T>, MapRows<MapGradFrozen<GivenDy>, T>,
       MapRows<MapGradTraining<ReluDy>, T>, MapRows<MapGradFrozen<ReluDy>, T>,
       MapRows<MapGradGradTraining, T>, MapRows<MapGradGradFrozen, T>},
      {MapColumns<MapForward, T>, MapColumns<MapGradTraining<GivenDy>, T>,
       MapColumns<MapGradFrozen<GivenDy>, T>, MapColumns<MapGradTraining<ReluDy>, T>,
       MapColumns<MapGradFrozen<ReluDy>, T>, MapColumns<MapGradGradTraining, T>,
       MapColumns<MapGradGradFrozen, T>},
      {SumAndMapLongRows<SumX, MapForward, T>,
       SumAndMapLongRows<SumGrad<GivenDy>, MapGradTraining<GivenDy>, T>,
       SumAndMapRows<SumGrad<GivenDy>, MapGradFrozen<GivenDy>, T>,
       SumAndMapLongRows<SumGrad<ReluDy>, MapGradTraining<ReluDy>, T>,
       SumAndMapRows<SumGrad<ReluDy>, MapGradFrozen<ReluDy>, T>, nullptr,
       SumAndMapRows<SumGradGradFrozen, MapGradGradFrozen, T>},
      {nullptr, nullptr, SumAndMapColumns<SumGrad<GivenDy>, MapGradFrozen<GivenDy>, T>, nullptr,
       SumAndMapColumns<SumGrad<ReluDy>, MapGradFrozen<ReluDy>, T>, nullptr,
       SumAndMapColumns<SumGradGradFrozen, MapGradGradFrozen, T>}};
}
