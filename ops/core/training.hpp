// BatchNormalizationTraining and BatchNormalizationStatistics. Over the M elements of each channel:
//   mean = sum X / M       var = sum (X - mean)^2 / M       inv_std = 1/sqrt(var + epsilon)
//   Y = (X - mean)*inv_std*scale + bias
//   new_running_mean = momentum*running_mean + (1 - momentum)*mean
//   new_running_var  = momentum*running_var  + (1 - momentum)*var, times M/max(M - 1, 1) if unbiased
// If M = 0, the statistics are NaN (0/0).
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

// Throw InvalidArgument unless epsilon is finite and >= 0, and momentum is finite.
void CheckEpsilon(double epsilon);
void CheckMomentum(double momentum);

struct TrainingArguments {
  Types types;
  double epsilon;
  double momentum;  // weight of the old running value
  bool unbiased_running_var;
  const void *x, *scale, *bias, *running_mean, *running_var;
  void *y, *new_running_mean, *new_running_var, *saved_mean, *saved_inv_std;  // null: not computed
};

void Training(const Layout& layout, const TrainingArguments& arguments, const KernelTable& table,
              Parallel& parallel);

struct StatisticsArguments {
  Types types;
  double epsilon;
  const void* x;
  void *mean, *inv_std;  // null: not computed
};

// The arguments of Training that compute only these.
TrainingArguments ToTraining(const StatisticsArguments& arguments);

void Statistics(const Layout& layout, const StatisticsArguments& arguments, const KernelTable& table,
                Parallel& parallel);

}  // namespace bngrad
