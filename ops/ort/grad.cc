// BatchNormalizationGrad and BatchNormalizationReluGrad as ONNX Runtime ops. Formulas: core/grad.hpp.
#include "core/grad.hpp"

#include "core/dispatch.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

// Inputs dY, X, scale, mean, inv_std, axes; with a ReLU dZ and Z take the place of dY.
template <bool kRelu>
class GradNode final : public Node {
 public:
  explicit GradNode(const NodeAttributes& attributes) : training_(attributes.GetFlag("training_mode")) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    constexpr size_t kX = kRelu ? 2 : 1;
    const GradArguments arguments = {types,
                                     training_,
                                     c.DataLikeX(0),
                                     kRelu ? c.DataLikeX(1) : nullptr,
                                     c.DataLikeX(kX),
                                     c.ChannelData(kX + 1),
                                     c.ChannelData(kX + 2),
                                     c.ChannelData(kX + 3),
                                     c.OutputLikeX(0),
                                     c.ChannelOutput(1),
                                     c.ChannelOutput(2)};
    Grad(c.layout(), arguments, *ActiveIsa().table, parallel);
  }

 private:
  const bool training_;
};

}  // namespace

OpDefinition GradDefinition() {
  return {"BatchNormalizationGrad",
          {{"dY", Role::kT},
           {"X", Role::kT},
           {"scale", Role::kT1},
           {"mean", Role::kT2},
           {"inv_std", Role::kT2},
           {"axes", Role::kAxes}},
          {{"dX", Role::kT}, {"dscale", Role::kT1}, {"dbias", Role::kT1}},
          1,
          true,
          MakeNode<GradNode<false>>};
}

OpDefinition ReluGradDefinition() {
  return {"BatchNormalizationReluGrad",
          {{"dZ", Role::kT},
           {"Z", Role::kT},
           {"X", Role::kT},
           {"scale", Role::kT1},
           {"mean", Role::kT2},
           {"inv_std", Role::kT2},
           {"axes", Role::kAxes}},
          {{"dX", Role::kT}, {"dscale", Role::kT1}, {"dbias", Role::kT1}},
          2,
          true,
          MakeNode<GradNode<true>>};
}

}  // namespace bngrad
