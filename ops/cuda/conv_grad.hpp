// ConvGrad on a device, by cuDNN: the gradients of Conv.
//
// Only deterministic algorithms are taken, and always the same for a shape, so that every run has the same
// bits. They are chosen by cuDNN's rules when a shape is first seen, and kept with its descriptors: later
// runs create nothing, as a captured CUDA graph requires.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "cuda/descriptors.hpp"
#include "cuda/device.hpp"

namespace bngrad::cuda {

struct ConvGradArguments {
  ElementType type;
  Shape x_shape, w_shape, dy_shape;
  const void *dy, *x, *w;
  void *dx, *dw, *db;  // null: not computed
};

class ConvGrad {
 public:
  explicit ConvGrad(const ConvAttributes& attributes);
  ~ConvGrad();

  // All runs are of one session. Throws InvalidArgument and Failure.
  void Run(const ConvGradArguments& arguments, Device& device) const;

 private:
  struct Plan;

  void RunBatch(const ConvGradArguments& arguments, Device& device) const;
  void RunSamples(const ConvGradArguments& samples, bool adds, Device& device) const;
  const Plan& PlanFor(const ConvGradArguments& samples, const CudnnRun& run) const;

  const ConvAttributes attributes_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int64_t>, std::unique_ptr<Plan>> plans_;  // by the shapes of X and W
};

}  // namespace bngrad::cuda
