// The sums of each channel, as in kernels/sum_formulas-inl.h: every split leaves its part in `partial`, and
// the finish adds the parts in their order, so that every run has the same bits.
#pragma once
#include "cuda/kernels/elements.h"
#include "cuda/kernels/view.h"

namespace bngrad::cuda {

struct SumArguments {
  View view;
  const void* inputs[kMaxInputs];  // in the order of SumKind
  Values center;                   // not read if Kind has a pivot
  double* pivot;                   // [channels], written if Kind has one
  double* partial;                 // [sums, splits, channels]
};

// X and its square, less a pivot of the kernel's own.
struct SumMoments {
  static constexpr int kInputs = 1, kSums = 2;
  static constexpr bool kPivot = true;
  template <class Term>
  BNGRAD_DEVICE_STATIC void Add(const Term* in, Term center, Term* sums) {
    const Term d = in[0] - center;
    sums[0] += d;
    sums[1] += d * d;
  }
};

template <bool kRelu>
struct SumGrad {
  static constexpr int kInputs = kRelu ? 3 : 2, kSums = 2;
  static constexpr bool kPivot = false;
  template <class Term>
  BNGRAD_DEVICE_STATIC void Add(const Term* in, Term center, Term* sums) {
    const Term dy = !kRelu || in[kInputs - 1] > 0 ? in[1] : 0;
    sums[0] += dy;
    sums[1] += dy * (in[0] - center);
  }
};

struct SumGradGrad {
  static constexpr int kInputs = 3, kSums = 5;
  static constexpr bool kPivot = false;
  template <class Term>
  BNGRAD_DEVICE_STATIC void Add(const Term* in, Term center, Term* sums) {
    const Term d = in[0] - center, dy = in[1], ddx = in[2];
    sums[0] += dy;
    sums[1] += dy * d;
    sums[2] += ddx;
    sums[3] += ddx * d;
    sums[4] += ddx * dy;
  }
};

// The median of three elements of a channel: an outlier would cost digits of the variance.
template <class T>
BNGRAD_DEVICE double Pivot(const View& view, const T* x, int64_t base, int component) {
  if (view.positions == 0) return 0;
  const int vector = static_cast<int>(view.width);
  double values[3];
  for (int i = 0; i < 3; ++i) {
    const int64_t position = i == 0 ? 0 : i == 1 ? view.positions / 2 : view.positions - 1;
    const int64_t outer = position / view.plane, inner = position % view.plane;
    values[i] = Widened(x[base + Offset(view.outer, outer) + inner * vector + component]);
  }
  const double low = values[0] < values[1] ? values[0] : values[1];
  const double high = values[0] < values[1] ? values[1] : values[0];
  const double median = values[2] < low ? low : values[2] > high ? high : values[2];
  return IsFinite(median) ? median : 0;
}

// A block's sums of one quantity: `value` of each thread, added up for threads of one lane, in order.
template <int kWidth>
BNGRAD_DEVICE void AddUp(const View& view, bool columns, const double* value, double* total) {
  BNGRAD_SHARED double shared[kThreads * kWidth];
  const int thread = static_cast<int>(ThreadIndex());
  BNGRAD_UNROLL for (int w = 0; w < kWidth; ++w) shared[thread * kWidth + w] = value[w];
  Barrier();
  const int lanes = columns ? view.lanes : 1;
  for (int rows = kThreads / lanes / 2; rows > 0; rows /= 2) {
    if (thread < rows * lanes) {
      BNGRAD_UNROLL for (int w = 0; w < kWidth; ++w) {
        shared[thread * kWidth + w] += shared[(thread + rows * lanes) * kWidth + w];
      }
    }
    Barrier();
  }
  BNGRAD_UNROLL for (int w = 0; w < kWidth; ++w) total[w] = shared[thread * kWidth + w];
  Barrier();
}

// Terms in double; of 16 bits those of a gradient in float, a batch at a time.
template <class T, class Kind>
struct TermOf {
  using Type = double;
};
template <bool kRelu>
struct TermOf<Float16, SumGrad<kRelu>> {
  using Type = float;
};
template <bool kRelu>
struct TermOf<BFloat16, SumGrad<kRelu>> {
  using Type = float;
};

template <class T, int V, bool kColumns, class Kind>
BNGRAD_DEVICE void Sum(const SumArguments& a) {
  using Term = typename TermOf<T, Kind>::Type;
  constexpr int kWidth = kColumns ? V : 1, kBatch = 4;
  const Part<V, kColumns> part(a.view);
  double sums[Kind::kSums][kWidth] = {};
  if (part.active) {
    Term center[kWidth];
    BNGRAD_UNROLL for (int w = 0; w < kWidth; ++w) {
      if constexpr (Kind::kPivot) {
        const double pivot = Pivot(a.view, static_cast<const T*>(a.inputs[0]), part.base, w);
        center[w] = static_cast<Term>(pivot);
        if (part.first == 0) a.pivot[part.channel + w] = pivot;
      } else {
        center[w] = static_cast<Term>(Get(a.center, part.channel + w));
      }
    }
    Cursor cursor(a.view, part.first);
    const int64_t step = a.view.step_outer * a.view.plane + a.view.step_inner;
    const auto add = [&](auto batch) {
      constexpr int kCount = decltype(batch)::kCount;
      int64_t offsets[kCount];
      cursor.Next<V, kCount>(a.view, part.base, offsets);
      Vector<T, V> in[Kind::kInputs][kCount];
      BNGRAD_UNROLL for (int u = 0; u < kCount; ++u) {
        BNGRAD_UNROLL for (int k = 0; k < Kind::kInputs; ++k) {
          in[k][u] = *reinterpret_cast<const Vector<T, V>*>(static_cast<const T*>(a.inputs[k]) + offsets[u]);
        }
      }
      Term terms[Kind::kSums][kWidth] = {};
      BNGRAD_UNROLL for (int u = 0; u < kCount; ++u) {
        BNGRAD_UNROLL for (int v = 0; v < V; ++v) {
          const int w = kColumns ? v : 0;
          Term values[Kind::kInputs], column[Kind::kSums];
          BNGRAD_UNROLL for (int k = 0; k < Kind::kInputs; ++k) values[k] = Widened(in[k][u].values[v]);
          BNGRAD_UNROLL for (int k = 0; k < Kind::kSums; ++k) column[k] = terms[k][w];
          Kind::Add(values, center[w], column);
          BNGRAD_UNROLL for (int k = 0; k < Kind::kSums; ++k) terms[k][w] = column[k];
        }
      }
      BNGRAD_UNROLL for (int k = 0; k < Kind::kSums; ++k) {
        BNGRAD_UNROLL for (int w = 0; w < kWidth; ++w) sums[k][w] += terms[k][w];
      }
    };
    int64_t position = part.first;
    for (; position + (kBatch - 1) * step < part.last; position += kBatch * step) add(Count<kBatch>());
    for (; position < part.last; position += step) add(Count<1>());
  }
  const bool writes = ThreadIndex() < static_cast<uint32_t>(kColumns ? a.view.lanes : 1) && part.active;
  BNGRAD_UNROLL for (int k = 0; k < Kind::kSums; ++k) {
    double total[kWidth];
    AddUp<kWidth>(a.view, kColumns, sums[k], total);
    double* const to =
        a.partial + (k * static_cast<int64_t>(a.view.splits) + BlockIndexY()) * a.view.channels;
    for (int w = 0; writes && w < kWidth; ++w) to[part.channel + w] = total[w];
  }
}

}  // namespace bngrad::cuda
