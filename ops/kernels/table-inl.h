// The algorithm, once for every instruction set. An <isa>.cc includes this inside bngrad::<isa> and an
// unnamed namespace, after its verbs/<isa>.h, which has these on 16 lanes:
//   F32x16, F64x16       16 floats, 16 doubles
//   Load(p, count)       16 elements in their arithmetic type; count is All{} or FirstN{n}
//   Widen(p, count)      16 elements as doubles
//   Convert(from, &to)   from one type of 16 lanes to another, rounded if that is narrower
//   Store(p, v, count)   rounded to the type of p, to nearest, ties to even
//   Broadcast16(s)  Add16(a, b)  Sub16(a, b)  Mul16(a, b)
//   Div16(a, b)  Sqrt16(a)   rounded correctly
//   SumOfLanes(a)        of doubles: halves are added until one is left
//   AddSumsOfLanes4(sums, lanes, stride)   adds to sums[k] the same of the 16 doubles at lanes + k*stride
//   AddExactProduct16(sum, a, b)   of doubles: as a*b is exact, it may be rounded once or twice
//   IfPositive(z, v)     v where z > 0, else 0 (as for a NaN of z)
//   ZeroTail(v, count)   v with the other lanes made zero, whatever they held
//   Blend(a, b, FirstN)  the first n lanes of a, the others of b
//   Deinterleave(low, high, &even, &odd)   every second of 32 elements, and the others; Interleave: the
//   reverse Prefetch<1>(p, i)    16 elements from p[i] on that will be read soon, to the nearest cache; <2>:
//   to the
//                        second level; i may lie past the array
//   Stream(p, v)         a store past the cache, p aligned to 16 elements or a cache line, the smaller
//   Fence()              when all such stores of a call are done

#include "alignment-inl.h"
#include "elements-inl.h"
// The formulas of elements, and the sweeps that write them.
#include "map_arrays-inl.h"
#include "map_columns-inl.h"
#include "map_formulas-inl.h"
#include "map_rows-inl.h"
#include "map_short_rows-inl.h"
// The terms of sums, and the sweeps that add them.
#include "epilogue-inl.h"
#include "sum_formulas-inl.h"
#include "sum_totals-inl.h"
// These use the two before.
#include "sum_columns-inl.h"
#include "sum_rows-inl.h"
#include "sum_short_rows-inl.h"
// Both at once.
#include "fused_sum_map-inl.h"
// Apart from batch norms.
#include "adam-inl.h"
#include "depthwise-inl.h"

// For float only: each type takes as long to compile.
template <class Sum, class Map, class T>
constexpr SumAndMapFunction FusedRows() {
  if constexpr (kFuses && sizeof(T) == sizeof(float)) return SumAndMapRows<Sum, Map, T>;
  return nullptr;
}
template <class Sum, class Map, class T>
constexpr SumAndMapFunction FusedColumns() {
  if constexpr (kFuses && sizeof(T) == sizeof(float)) return SumAndMapColumns<Sum, Map, T>;
  return nullptr;
}

template <class T>
constexpr bool kWide = sizeof(T) >= sizeof(float);

template <class T>
constexpr AdamFunction Adam() {
  if constexpr (kWide<T>) return AdamUpdate<T>;
  return nullptr;
}
template <class T>
constexpr SplitFunction Split() {
  if constexpr (kWide<T>) return SplitPhases<T>;
  return nullptr;
}
template <class T>
constexpr MergeFunction Merge() {
  if constexpr (kWide<T>) return MergePhases<T>;
  return nullptr;
}
template <class T>
constexpr CorrelateFunction CorrelateOf() {
  if constexpr (kWide<T>) return Correlate<T>;
  return nullptr;
}
template <class T>
constexpr CorrelateWeightsFunction CorrelateWeightsOf() {
  if constexpr (kWide<T>) return CorrelateWeights<T>;
  return nullptr;
}

// In the order of SumKind and MapKind.
template <class T>
constexpr TypeKernels MakeTypeKernels() {
  using Grad = SumGrad<GivenDy>;
  using ReluGrad = SumGrad<ReluDy>;
  using DxTraining = MapGradTraining<GivenDy>;
  using DxFrozen = MapGradFrozen<GivenDy>;
  using ReluDxTraining = MapGradTraining<ReluDy>;
  using ReluDxFrozen = MapGradFrozen<ReluDy>;
  return {{kUncentered<SumX, T>, kUncentered<SumSquares, T>, kUncentered<Grad, T>, kUncentered<ReluGrad, T>,
           kUncentered<SumGradGrad, T>},
          {SumRows<SumX, T>, SumRows<SumSquares, T>, SumRows<Grad, T>, SumRows<ReluGrad, T>,
           SumRows<SumGradGrad, T>},
          {SumColumns<SumX, T>, SumColumns<SumSquares, T>, SumColumns<Grad, T>, SumColumns<ReluGrad, T>,
           SumColumns<SumGradGrad, T>},
          {MapRows<MapForward, T>, MapRows<DxTraining, T>, MapRows<DxFrozen, T>, MapRows<ReluDxTraining, T>,
           MapRows<ReluDxFrozen, T>, MapRows<MapGradGradTraining, T>, MapRows<MapGradGradFrozen, T>},
          {MapColumns<MapForward, T>, MapColumns<DxTraining, T>, MapColumns<DxFrozen, T>,
           MapColumns<ReluDxTraining, T>, MapColumns<ReluDxFrozen, T>, MapColumns<MapGradGradTraining, T>,
           MapColumns<MapGradGradFrozen, T>},
          {nullptr, nullptr, FusedRows<Grad, DxFrozen, T>(), nullptr, FusedRows<ReluGrad, ReluDxFrozen, T>(),
           nullptr, nullptr},
          {nullptr, nullptr, FusedColumns<Grad, DxFrozen, T>(), nullptr,
           FusedColumns<ReluGrad, ReluDxFrozen, T>(), nullptr, nullptr},
          Adam<T>(),
          Split<T>(),
          Merge<T>(),
          CorrelateOf<T>(),
          CorrelateWeightsOf<T>()};
}
