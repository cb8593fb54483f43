// The results for each element, from the factors of its channel: the formulas of
// kernels/map_formulas-inl.h.
#pragma once
#include "cuda/kernels/elements.h"
#include "cuda/kernels/view.h"

namespace bngrad::cuda {

struct MapArguments {
  View view;
  const void* inputs[kMaxInputs];  // in the order of MapKind
  const void* factors;             // [factors, channels]
  void* outputs[kMaxOutputs];      // null: not wanted
};

struct MapForward {
  static constexpr int kInputs = 1, kFirst = 0, kFactors = 4, kOutputs = 1;
  template <class A>
  BNGRAD_DEVICE_STATIC void Apply(const A* in, const A* f, A* out) {
    out[0] = (in[0] - f[0] - f[1]) * f[2] + f[3];
  }
};

template <bool kRelu>
struct MapGradTraining {
  static constexpr int kInputs = kRelu ? 3 : 2, kFirst = 0, kFactors = 5, kOutputs = 1;
  template <class A>
  BNGRAD_DEVICE_STATIC void Apply(const A* in, const A* f, A* out) {
    const A dy = !kRelu || in[kInputs - 1] > 0 ? in[1] : 0;
    out[0] = f[1] * ((dy - f[2]) - ((in[0] - f[0]) * f[4] + f[3]));
  }
};

template <bool kRelu>
struct MapGradFrozen {
  static constexpr int kInputs = kRelu ? 3 : 2, kFirst = 1, kFactors = 1, kOutputs = 1;  // X is not read
  template <class A>
  BNGRAD_DEVICE_STATIC void Apply(const A* in, const A* f, A* out) {
    out[0] = f[0] * (!kRelu || in[kInputs - 1] > 0 ? in[1] : 0);
  }
};

struct MapGradGradTraining {
  static constexpr int kInputs = 3, kFirst = 0, kFactors = 9, kOutputs = 2;
  template <class A>
  BNGRAD_DEVICE_STATIC void Apply(const A* in, const A* f, A* out) {
    const A d = in[0] - f[0], ddx = in[2] - f[4], dy = in[1] - f[5];
    out[0] = f[1] * ddx + (d * f[2] + f[3]);
    out[1] = (f[2] * dy - f[6] * ddx) - (d * f[7] + f[8]);
  }
};

struct MapGradGradFrozen {
  static constexpr int kInputs = 3, kFirst = 0, kFactors = 4, kOutputs = 2;
  template <class A>
  BNGRAD_DEVICE_STATIC void Apply(const A* in, const A* f, A* out) {
    out[0] = f[1] * in[2] + ((in[0] - f[0]) * f[2] + f[3]);
    out[1] = f[2] * in[1];
  }
};

template <class T, int V, bool kColumns, class Kind>
BNGRAD_DEVICE void Map(const MapArguments& a) {
  using A = Arithmetic<T>;
  constexpr int kWidth = kColumns ? V : 1, kBatch = 2;
  const Part<V, kColumns> part(a.view);
  if (!part.active) return;
  A factors[kWidth][Kind::kFactors];
  BNGRAD_UNROLL for (int k = 0; k < Kind::kFactors; ++k) {
    BNGRAD_UNROLL for (int w = 0; w < kWidth; ++w) {
      factors[w][k] = static_cast<const A*>(a.factors)[k * a.view.channels + part.channel + w];
    }
  }
  Cursor cursor(a.view, part.first);
  const int64_t step = a.view.step_outer * a.view.plane + a.view.step_inner;
  const auto apply = [&](auto batch) {
    constexpr int kCount = decltype(batch)::kCount;
    int64_t offsets[kCount];
    cursor.Next<V, kCount>(a.view, part.base, offsets);
    Vector<T, V> in[Kind::kInputs][kCount];
    BNGRAD_UNROLL for (int u = 0; u < kCount; ++u) {
      BNGRAD_UNROLL for (int k = Kind::kFirst; k < Kind::kInputs; ++k) {
        in[k][u] = *reinterpret_cast<const Vector<T, V>*>(static_cast<const T*>(a.inputs[k]) + offsets[u]);
      }
    }
    BNGRAD_UNROLL for (int u = 0; u < kCount; ++u) {
      Vector<T, V> out[Kind::kOutputs];
      BNGRAD_UNROLL for (int v = 0; v < V; ++v) {
        A values[Kind::kInputs] = {}, results[Kind::kOutputs];
        BNGRAD_UNROLL for (int k = Kind::kFirst; k < Kind::kInputs; ++k) values[k] =
            Widened(in[k][u].values[v]);
        Kind::Apply(values, factors[kColumns ? v : 0], results);
        BNGRAD_UNROLL for (int k = 0; k < Kind::kOutputs; ++k) Narrow(results[k], &out[k].values[v]);
      }
      BNGRAD_UNROLL for (int k = 0; k < Kind::kOutputs; ++k) {
        if (a.outputs[k] == nullptr) continue;
        *reinterpret_cast<Vector<T, V>*>(static_cast<T*>(a.outputs[k]) + offsets[u]) = out[k];
      }
    }
  };
  int64_t position = part.first;
  for (; position + (kBatch - 1) * step < part.last; position += kBatch * step) apply(Count<kBatch>());
  for (; position < part.last; position += step) apply(Count<1>());
}

}  // namespace bngrad::cuda
