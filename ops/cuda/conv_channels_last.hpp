// ConvChannelsLast on a device, by cuDNN: Conv of arrays whose channels are last in memory.
//
// Algorithms are chosen as by cuda/conv_grad.hpp. Of channels last, cuDNN takes some types and shapes only;
// others are transposed to channels first.
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "cuda/convolution.hpp"

namespace bngrad::cuda {

struct ConvChannelsLastArguments {
  ElementType type;
  Shape x_shape, w_shape, y_shape;  // [N, C, ...]
  const void *x, *w;
  void* y;
};

class ConvChannelsLast {
 public:
  explicit ConvChannelsLast(const ConvAttributes& attributes);
  ~ConvChannelsLast();

  // All runs are of one session. Throws InvalidArgument and Failure.
  void Run(const ConvChannelsLastArguments& arguments, Device& device) const;

 private:
  struct Plan;

  void RunSamples(const ConvChannelsLastArguments& samples, Device& device) const;
  std::unique_ptr<Plan> MakePlan(const ConvChannelsLastArguments& samples, const CudnnRun& run,
                                 bool channels_last) const;

  const ConvAttributes attributes_;
  mutable Plans<Plan> plans_;
};

}  // namespace bngrad::cuda
