// The forward pass of batch normalization of a batch that is divided among ranks; core/grad.hpp has the
// gradient. Of each rank r, Moments computes
//   n = elements of a channel     m = sum X / n     M2 = sum (X - m)^2          all 0 if n is 0
// and from those of all ranks MergeMoments
//   batch_count = sum n     batch_mean = m_0 + sum n*(m - m_0) / batch_count
//   var = sum (M2 + n*(m - batch_mean)^2) / batch_count     batch_inv_std = 1/sqrt(var + epsilon)
// with the running statistics of core/training.hpp, and Apply
//   Y = (X - batch_mean)*batch_inv_std*scale + bias
// Ranks are added in the tree of core/pairwise.hpp, in double. If batch_count is 0, the statistics are NaN.
#pragma once
#include <cstdint>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

// moments: count, mean and M2, [3, channels].
void Moments(const Layout& layout, ElementType type, const void* x, double* moments, const KernelTable& table,
             Parallel& parallel);

struct MergeMomentsArguments {
  int64_t ranks, channels;
  ElementType stat;  // of the running statistics
  double epsilon;
  double momentum;  // weight of the old running value
  bool unbiased_running_var;
  const double* gathered_moments;  // [ranks, 3, channels]
  const void *running_mean, *running_var;
  // null: not computed
  void *new_running_mean, *new_running_var;
  double *batch_mean, *batch_inv_std, *batch_count;
};

void MergeMoments(const MergeMomentsArguments& arguments);

struct ApplyArguments {
  Types types;  // `stat` is not used
  const void *x, *scale, *bias;
  const double *batch_mean, *batch_inv_std;
  void* y;
};

void Apply(const Layout& layout, const ApplyArguments& arguments, const KernelTable& table,
           Parallel& parallel);

}  // namespace bngrad
