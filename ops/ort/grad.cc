// BatchNormalizationGrad and BatchNormalizationReluGrad as ONNX Runtime ops. Formulas: core/grad.hpp.
#include "core/grad.hpp"

#include "core/dispatch.hpp"
#include "cuda/batch_norm.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

// Inputs dY, X, scale, mean, inv_std, axes; with a ReLU dZ and Z take the place of dY.
template <bool kRelu>
class GradNode final : public DeviceNode {
 public:
  explicit GradNode(const NodeAttributes& attributes) : training_(attributes.GetFlag("training_mode")) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    Grad(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::Grad(c.layout(), Arguments(c, types), device);
  }

 private:
  GradArguments Arguments(const RunContext& c, const Types& types) const {
    constexpr size_t kX = kRelu ? 2 : 1;
    return {types,
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
  }

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
