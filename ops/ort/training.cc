// BatchNormalizationTraining as an ONNX Runtime op. Formulas: core/training.hpp.
#include "core/training.hpp"

#include "core/dispatch.hpp"
#include "cuda/batch_norm.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class TrainingNode final : public DeviceNode {
 public:
  explicit TrainingNode(const NodeAttributes& attributes)
      : epsilon_(attributes.GetFloat("epsilon")),
        momentum_(attributes.GetFloat("momentum")),
        unbiased_running_var_(attributes.GetFlag("unbiased_running_var")) {
    CheckEpsilon(epsilon_);
    CheckMomentum(momentum_);
  }

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    Training(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::Training(c.layout(), Arguments(c, types), device);
  }

 private:
  TrainingArguments Arguments(const RunContext& c, const Types& types) const {
    return {types,
            epsilon_,
            momentum_,
            unbiased_running_var_,
            c.DataLikeX(0),
            c.ChannelData(1),
            c.ChannelData(2),
            c.ChannelData(3),
            c.ChannelData(4),
            c.OutputLikeX(0),
            c.ChannelOutput(1),
            c.ChannelOutput(2),
            c.ChannelOutput(3),
            c.ChannelOutput(4)};
  }

  const double epsilon_, momentum_;
  const bool unbiased_running_var_;
};

}  // namespace

OpDefinition TrainingDefinition() {
  return {"BatchNormalizationTraining",
          {{"X", Role::kT},
           {"scale", Role::kT1},
           {"bias", Role::kT1},
           {"running_mean", Role::kT2},
           {"running_var", Role::kT2},
           {"axes", Role::kAxes}},
          {{"Y", Role::kT},
           {"new_running_mean", Role::kT2},
           {"new_running_var", Role::kT2},
           {"saved_mean", Role::kT2},
           {"saved_inv_std", Role::kT2}},
          0,
          true,
          MakeNode<TrainingNode>};
}

}  // namespace bngrad
