// From the sums of each channel its results and the factors of the map, in double: the formulas of
// core/training.cc, core/grad.cc and core/grad_grad.cc.
#pragma once
#include "cuda/kernels/sums.h"

namespace bngrad::cuda {

// Arrays of a value a channel; null: not an input of the op, or not wanted.
struct FinishArguments {
  int64_t channels, reduced;
  int32_t splits;  // of `partial`; 0: nothing was summed
  const double *partial, *pivot;
  void* factors;  // [factors, channels], in the arithmetic type
  double epsilon, momentum;
  int32_t unbiased_running_var;
  Values scale, bias, mean, inv_std, running_mean, running_var, ddscale, ddbias;
  Values new_running_mean, new_running_var, saved_mean, saved_inv_std, dscale, dbias;
  // Of a batch that is divided among ranks, as in core/synchronized.hpp and core/grad.hpp.
  double* of_rank;  // moments, [3, channels], or sums, [2, channels]
  int64_t ranks;
  const double *gathered_sums, *batch_count;
};

// A number as one that the arithmetic type holds, and the rest.
template <class A>
struct Split {
  double high, low;
  BNGRAD_DEVICE_MEMBER explicit Split(double value)
      : high(static_cast<A>(value)), low(IsFinite(high) ? value - high : 0) {}
};

template <class A>
struct Factors {
  A* first;
  int64_t channels;
  BNGRAD_DEVICE_MEMBER void Set(int k, double value) const { first[k * channels] = static_cast<A>(value); }
};

struct FinishTraining {
  static constexpr int kSums = 2;
  template <class A>
  BNGRAD_DEVICE_STATIC void Finish(const FinishArguments& a, int64_t c, const double* sums,
                                   const Factors<A>& to) {
    const double m = static_cast<double>(a.reduced), shift = sums[0] / m, mean = a.pivot[c] + shift;
    double var = sums[1] / m - shift * shift;
    var = var < 0 ? 0 : var;  // by rounding; a NaN stays one
    const double inv_std = 1 / SquareRoot(var + a.epsilon);
    Set(a.saved_mean, c, mean);
    Set(a.saved_inv_std, c, inv_std);
    if (a.new_running_mean.data != nullptr) {
      Set(a.new_running_mean, c, a.momentum * Get(a.running_mean, c) + (1 - a.momentum) * mean);
    }
    if (a.new_running_var.data != nullptr) {
      const double running = a.unbiased_running_var ? var * m / (m > 2 ? m - 1 : 1) : var;
      Set(a.new_running_var, c, a.momentum * Get(a.running_var, c) + (1 - a.momentum) * running);
    }
    if (a.factors == nullptr) return;
    const Split<A> center(mean);
    to.Set(0, center.high);
    to.Set(1, center.low);
    to.Set(2, Get(a.scale, c) * inv_std);
    to.Set(3, Get(a.bias, c));
  }
};

template <bool kTraining>
struct FinishGrad {
  static constexpr int kSums = 2;
  template <class A>
  BNGRAD_DEVICE_STATIC void Finish(const FinishArguments& a, int64_t c, const double* sums,
                                   const Factors<A>& to) {
    const double inv_std = Get(a.inv_std, c), dscale = a.reduced > 0 ? sums[1] * inv_std : 0;
    Set(a.dbias, c, sums[0]);
    Set(a.dscale, c, dscale);
    if (a.of_rank != nullptr) {
      a.of_rank[c] = sums[0];
      a.of_rank[a.channels + c] = a.reduced > 0 ? sums[1] : 0;
    }
    if (a.factors == nullptr) return;
    const double gain = Get(a.scale, c) * inv_std;
    if (!kTraining) return to.Set(0, gain);
    const double m = static_cast<double>(a.reduced);
    const Split<A> mean_dy(sums[0] / m);
    to.Set(0, Get(a.mean, c));
    to.Set(1, gain);
    to.Set(2, mean_dy.high);
    to.Set(3, mean_dy.low);
    to.Set(4, inv_std * dscale / m);
  }
};

template <bool kTraining>
struct FinishGradGrad {
  static constexpr int kSums = 5;
  template <class A>
  BNGRAD_DEVICE_STATIC void Finish(const FinishArguments& a, int64_t c, const double* sums,
                                   const Factors<A>& to) {
    const double m = static_cast<double>(a.reduced), inv_std = Get(a.inv_std, c);
    const double gain = Get(a.scale, c) * inv_std;
    if (!kTraining) {
      Set(a.dscale, c, a.reduced > 0 ? inv_std * sums[4] : 0);
      if (a.factors == nullptr) return;
      to.Set(0, Get(a.mean, c));
      to.Set(1, gain);
      to.Set(2, Get(a.ddscale, c) * inv_std);
      to.Set(3, Get(a.ddbias, c));
      return;
    }
    const double mean_dy = sums[0] / m, dy_xhat = sums[1] / m * inv_std;
    const double mean_ddx = sums[2] / m, ddx_xhat = sums[3] / m * inv_std;
    const double ddx_p_dy = sums[4] / m - mean_ddx * mean_dy - ddx_xhat * dy_xhat;
    Set(a.dscale, c, a.reduced > 0 ? inv_std * ddx_p_dy * m : 0);
    if (a.factors == nullptr) return;
    const double slope = inv_std * (Get(a.ddscale, c) - gain * ddx_xhat), of_ddx = inv_std * gain * dy_xhat;
    const double of_d = inv_std * (inv_std * gain * ddx_p_dy + slope * dy_xhat - of_ddx * ddx_xhat);
    const Split<A> k1(mean_ddx), k2(mean_dy);
    to.Set(0, Get(a.mean, c));
    to.Set(1, gain);
    to.Set(2, slope);
    to.Set(3, Get(a.ddbias, c) - gain * k1.low);
    to.Set(4, k1.high);
    to.Set(5, k2.high);
    to.Set(6, of_ddx);
    to.Set(7, of_d);
    to.Set(8, slope * k2.low - of_ddx * k1.low);
  }
};

struct FinishMoments {
  static constexpr int kSums = 2;
  template <class A>
  BNGRAD_DEVICE_STATIC void Finish(const FinishArguments& a, int64_t c, const double* sums,
                                   const Factors<A>&) {
    const double m = static_cast<double>(a.reduced), shift = sums[0] / m,
                 squares = sums[1] - m * shift * shift;
    a.of_rank[c] = m;
    a.of_rank[a.channels + c] = m > 0 ? a.pivot[c] + shift : 0;
    a.of_rank[2 * a.channels + c] = m > 0 ? (squares < 0 ? 0 : squares) : 0;
  }
};

struct FinishApply {
  static constexpr int kSums = 1;  // none
  template <class A>
  BNGRAD_DEVICE_STATIC void Finish(const FinishArguments& a, int64_t c, const double*, const Factors<A>& to) {
    const Split<A> center(Get(a.mean, c));
    to.Set(0, center.high);
    to.Set(1, center.low);
    to.Set(2, Get(a.scale, c) * Get(a.inv_std, c));
    to.Set(3, Get(a.bias, c));
  }
};

struct FinishGradApply {
  static constexpr int kSums = 1;  // none
  template <class A>
  BNGRAD_DEVICE_STATIC void Finish(const FinishArguments& a, int64_t c, const double*, const Factors<A>& to) {
    double dbias = 0, dyd = 0;
    for (int64_t rank = 0; rank < a.ranks; ++rank) {
      dbias += a.gathered_sums[2 * rank * a.channels + c];
      dyd += a.gathered_sums[(2 * rank + 1) * a.channels + c];
    }
    const double m = *a.batch_count, inv_std = Get(a.inv_std, c), slope = inv_std * (dyd * inv_std) / m;
    const Split<A> mean(Get(a.mean, c)), mean_dy(dbias / m);
    to.Set(0, mean.high);
    to.Set(1, Get(a.scale, c) * inv_std);
    to.Set(2, mean_dy.high);
    to.Set(3, mean_dy.low - slope * mean.low);
    to.Set(4, slope);
  }
};

constexpr int kFinishChannels =
    8;  // of a block; kThreads / kFinishChannels threads add up the splits of each

template <class A, class Formula>
BNGRAD_DEVICE void Finish(const FinishArguments& a) {
  constexpr int kRows = kThreads / kFinishChannels;
  BNGRAD_SHARED double shared[kThreads];
  const int thread = static_cast<int>(ThreadIndex()), row = thread / kFinishChannels;
  const int64_t c = static_cast<int64_t>(BlockIndexX()) * kFinishChannels + thread % kFinishChannels;
  double totals[Formula::kSums] = {};
  BNGRAD_UNROLL for (int k = 0; k < Formula::kSums; ++k) {
    if (a.splits == 0) break;
    double sum = 0;
    for (int split = row; c < a.channels && split < a.splits; split += kRows) {
      sum += a.partial[(k * static_cast<int64_t>(a.splits) + split) * a.channels + c];
    }
    shared[thread] = sum;
    Barrier();
    for (int i = 0; row == 0 && i < kRows; ++i) totals[k] += shared[thread + i * kFinishChannels];
    Barrier();
  }
  if (row > 0 || c >= a.channels) return;
  Formula::Finish(a, c, totals, Factors<A>{static_cast<A*>(a.factors) + c, a.channels});
}

}  // namespace bngrad::cuda
