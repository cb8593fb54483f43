// The algorithm, once for every instruction set. An <isa>.cc includes this inside bngrad::<isa> and an
// unnamed namespace, after its simd_<isa>.h, which gives the verbs on 16 lanes:
//   F32x16, F64x16       16 floats, 16 doubles
//   All, First{n}        which lanes a load or a store touches; a load makes the others zero
//   Load(p, count)       16 elements in their arithmetic type
//   Widen(p, count)      16 elements as doubles
//   Store(p, v, count)
//   Broadcast16(s)  Add16(a, b)  Sub16(a, b)  Mul16(a, b)
//   Keep(v, count)       v with the other lanes made zero, whatever they held
//   Prefetch(p)          16 elements that will be read soon; p may lie past the array
//   Stream(p, v)         a store past the cache, to a cache line boundary; Fence() when all are done

// Rows for which the sums of 16 columns stay in registers. Reading so is no sequence that the CPU's
// prefetching follows, so the rows after them are asked for.
constexpr int64_t kStripRows = 4;
constexpr int64_t kRowsAhead = 2 * kStripRows;

constexpr size_t kCacheLine = 64;

// Shorter rows have as many partial cache lines as whole ones.
constexpr int64_t kMinStreamed = 32 * kLanes;

// An element type, and the type that maps compute in. float16 and bfloat16 will load into F32x16.
template <class T>
struct TypeTraits;
template <>
struct TypeTraits<float> {
  using Arithmetic = float;
  using Vector = F32x16;
};
template <>
struct TypeTraits<double> {
  using Arithmetic = double;
  using Vector = F64x16;
};

#include "maps-inl.h"
#include "sums-inl.h"

// In the order of SumKind and MapKind.
template <class T>
constexpr TypeKernels MakeTypeKernels() {
  return {{SumRows<SumX, T>, SumRows<SumSquares, T>, SumRows<SumGrad, T>},
          {SumColumns<SumX, T>, SumColumns<SumSquares, T>, SumColumns<SumGrad, T>},
          {MapRows<MapForward, T>, MapRows<MapGradTraining, T>, MapRows<MapGradFrozen, T>},
          {MapColumns<MapForward, T>, MapColumns<MapGradTraining, T>, MapColumns<MapGradFrozen, T>}};
}
