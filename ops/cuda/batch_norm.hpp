// The ops of core/training.hpp, core/grad.hpp, core/grad_grad.hpp and core/synchronized.hpp on a device: the
// same arguments, with pointers to the device's memory, and the same formulas.
//
// Each op is up to three launches: partial sums of each channel, their totals with what follows from them,
// and the elements. Sums are added in a fixed order and without atomics, so that every run on one kind of
// device has the same bits.
#pragma once
#include "core/grad.hpp"
#include "core/grad_grad.hpp"
#include "core/layout.hpp"
#include "core/synchronized.hpp"
#include "core/training.hpp"
#include "cuda/device.hpp"

namespace bngrad::cuda {

void Training(const Layout& layout, const TrainingArguments& arguments, Device& device);
void Statistics(const Layout& layout, const StatisticsArguments& arguments, Device& device);
// Also the sums of GradSums: ToGrad.
void Grad(const Layout& layout, const GradArguments& arguments, Device& device);
void GradGrad(const Layout& layout, const GradGradArguments& arguments, Device& device);
void Moments(const Layout& layout, ElementType type, const void* x, double* moments, Device& device);
void Apply(const Layout& layout, const ApplyArguments& arguments, Device& device);
// Adds the sums of ranks in their order.
void GradApply(const Layout& layout, const GradApplyArguments& arguments, Device& device);

}  // namespace bngrad::cuda
