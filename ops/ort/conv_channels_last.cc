// ConvChannelsLast as an ONNX Runtime op, for a GPU only: cuda/conv_channels_last.hpp.
#include "cuda/conv_channels_last.hpp"

#include "ort/convolution.hpp"

namespace bngrad {
namespace {

class ConvChannelsLastNode final : public DeviceOnlyNode {
 public:
  explicit ConvChannelsLastNode(const NodeAttributes& a)
      : shapes_(a, true, "--channels-last"), convolution_(shapes_.attributes()) {}

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const Shape x = shapes_.X(c.ShapeOf(0)), w = shapes_.W(x, c.ShapeOf(1)), y = shapes_.Output(x, w);
    const void* const weights = c.Data(1, shapes_.InMemory(w), "[M], kernel_shape and [C / group]");
    convolution_.Run({types.data, x, w, y, c.DataLikeX(0), weights, c.Output(0, shapes_.InMemory(y))},
                     device);
  }

 private:
  const ConvolutionShapes shapes_;
  const cuda::ConvChannelsLast convolution_;
};

}  // namespace

OpDefinition ConvChannelsLastDefinition() {
  return {"ConvChannelsLast",
          {{"X", Role::kT}, {"W", Role::kT}},
          {{"Y", Role::kT}},
          0,
          false,
          MakeNode<ConvChannelsLastNode>};
}

}  // namespace bngrad
