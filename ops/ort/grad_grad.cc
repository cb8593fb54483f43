// BatchNormalizationGradGrad as an ONNX Runtime op. Formulas: core/grad_grad.hpp.
#include "core/grad_grad.hpp"

#include "core/dispatch.hpp"
#include "cuda/batch_norm.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class GradGradNode final : public DeviceNode {
 public:
  explicit GradGradNode(const NodeAttributes& attributes) : training_(attributes.GetFlag("training_mode")) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    GradGrad(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::GradGrad(c.layout(), Arguments(c, types), device);
  }

 private:
  GradGradArguments Arguments(const RunContext& c, const Types& types) const {
    return {types,
            training_,
            c.DataLikeX(0),
            c.ChannelData(1),
            c.ChannelData(2),
            c.DataLikeX(3),
            c.DataLikeX(4),
            c.ChannelData(5),
            c.ChannelData(6),
            c.ChannelData(7),
            c.OutputLikeX(0),
            c.OutputLikeX(1),
            c.ChannelOutput(2)};
  }

  const bool training_;
};

}  // namespace

OpDefinition GradGradDefinition() {
  return {"BatchNormalizationGradGrad",
          {{"ddX", Role::kT},
           {"ddscale", Role::kT1},
           {"ddbias", Role::kT1},
           {"dY", Role::kT},
           {"X", Role::kT},
           {"scale", Role::kT1},
           {"mean", Role::kT2},
           {"inv_std", Role::kT2},
           {"axes", Role::kAxes}},
          {{"d_dY", Role::kT}, {"d_X", Role::kT}, {"d_scale", Role::kT1}},
          4,
          true,
          MakeNode<GradGradNode>};
}

}  // namespace bngrad
