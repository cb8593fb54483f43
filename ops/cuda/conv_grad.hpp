// ConvGrad on a device, by cuDNN: the gradients of Conv.
//
// Only deterministic algorithms are taken, and always the same for a shape, so that every run has the same
// bits. They are chosen by cuDNN's rules when a shape is first seen, and kept with its descriptors: later
// runs create nothing, as a captured CUDA graph requires.
//
// Of channels last, cuDNN takes some types and shapes only; others are transposed to channels first.
#pragma once
#include "cuda/conv_plan.hpp"
#include "cuda/device.hpp"

namespace bngrad::cuda {

class ConvGrad {
 public:
  explicit ConvGrad(const ConvAttributes& attributes);
  ~ConvGrad();

  // All runs are of one session. Throws InvalidArgument and Failure.
  void Run(const ConvGradArguments& arguments, Device& device) const;

 private:
  void RunTransposed(const ConvGradArguments& arguments, Device& device) const;
  void RunBatch(const ConvGradArguments& arguments, Device& device) const;
  void RunSamples(const ConvGradArguments& samples, bool adds, Device& device) const;
  const ConvPlan& PlanFor(const ConvGradArguments& samples, const CudnnRun& run) const;

  const ConvAttributes attributes_;
  mutable Plans<ConvPlan> plans_[2];  // with channels first, and last
};

}  // namespace bngrad::cuda
