// BatchNormalizationReluGrad as an ONNX Runtime op; the formulas are in grad.hpp.
#include "core/dispatch.hpp"
#include "core/grad.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class ReluGradNode final : public Node {
 public:
  explicit ReluGradNode(const NodeAttributes& attributes) : training_(attributes.GetFlag("training_mode")) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    const GradArguments arguments = {types,
                                     training_,
                                     c.DataLikeX(0),
                                     c.DataLikeX(1),
                                     c.DataLikeX(2),
                                     c.ChannelData(3),
                                     c.ChannelData(4),
                                     c.ChannelData(5),
                                     c.OutputLikeX(0),
                                     c.ChannelOutput(1),
                                     c.ChannelOutput(2)};
    Grad(c.layout(), arguments, *ActiveIsa().table, parallel);
  }

 private:
  const bool training_;
};

}  // namespace

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
          [](const NodeAttributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<ReluGradNode>(attributes);
          }};
}

}  // namespace bngrad
