// ConvGrad as an ONNX Runtime op, for a GPU only: cuda/conv_grad.hpp.
#include "cuda/conv_grad.hpp"

#include "ort/convolution.hpp"

namespace bngrad {
namespace {

class ConvGradNode final : public DeviceOnlyNode {
 public:
  explicit ConvGradNode(const NodeAttributes& a)
      : channels_last_(a.Has("channels_last") && a.GetFlag("channels_last")),
        shapes_(a, channels_last_, "--conv-grad"),
        conv_grad_(shapes_.attributes()) {}

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const Shape x = shapes_.X(c.ShapeOfX()), w = shapes_.W(x, c.ShapeOf(2)), dy = shapes_.Output(x, w);
    const char* const of_dy = channels_last_ ? "the shape of the output of Conv with channels last"
                                             : "the shape of the output of Conv";
    const char* const of_w =
        channels_last_ ? "[M], kernel_shape and [C / group]" : "[M, C / group] and kernel_shape";
    conv_grad_.Run({types.data, channels_last_, x, w, dy, c.Data(0, shapes_.InMemory(dy), of_dy),
                    c.DataLikeX(1), c.Data(2, shapes_.InMemory(w), of_w), c.OutputLikeX(0),
                    c.Output(1, shapes_.InMemory(w)), c.Output(2, Vector(w[0]))},
                   device);
  }

 private:
  const bool channels_last_;
  const ConvolutionShapes shapes_;
  const cuda::ConvGrad conv_grad_;
};

}  // namespace

OpDefinition ConvGradDefinition() {
  return {"ConvGrad",
          {{"dY", Role::kT}, {"X", Role::kT}, {"W", Role::kT}},
          {{"dX", Role::kT}, {"dW", Role::kT}, {"dB", Role::kT}},
          1,
          true,
          MakeNode<ConvGradNode>};
}

}  // namespace bngrad
