// The forward pass of synchronized batch normalization as ONNX Runtime ops. Formulas: core/synchronized.hpp.
#include "core/synchronized.hpp"

#include "core/dispatch.hpp"
#include "core/training.hpp"
#include "cuda/batch_norm.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class MomentsNode final : public DeviceNode {
 public:
  explicit MomentsNode(const NodeAttributes&) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    Moments(c.layout(), types.data, c.DataLikeX(0), Output(c), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::Moments(c.layout(), types.data, c.DataLikeX(0), Output(c), device);
  }

 private:
  static double* Output(const RunContext& c) {
    Shape shape = Vector(3);
    shape.push_back(c.layout().channels);
    return static_cast<double*>(c.Output(0, shape));
  }
};

class MergeMomentsNode final : public Node {
 public:
  explicit MergeMomentsNode(const NodeAttributes& attributes)
      : epsilon_(attributes.GetFloat("epsilon")),
        momentum_(attributes.GetFloat("momentum")),
        unbiased_running_var_(attributes.GetFlag("unbiased_running_var")) {
    CheckEpsilon(epsilon_);
    CheckMomentum(momentum_);
  }

  void Run(const RunContext& c, const Types& types, Parallel&) const override {
    MergeMomentsArguments a = {};
    a.channels = c.count();
    a.stat = types.data;
    a.epsilon = epsilon_;
    a.momentum = momentum_;
    a.unbiased_running_var = unbiased_running_var_;
    a.gathered_moments = c.Gathered(0, 3, a.channels, &a.ranks);
    a.running_mean = c.DataLikeX(1);
    a.running_var = c.DataLikeX(2);
    a.new_running_mean = c.OutputLikeX(0);
    a.new_running_var = c.OutputLikeX(1);
    a.batch_mean = static_cast<double*>(c.OutputLikeX(2));
    a.batch_inv_std = static_cast<double*>(c.OutputLikeX(3));
    a.batch_count = static_cast<double*>(c.Output(4, Shape()));
    MergeMoments(a);
  }

 private:
  const double epsilon_, momentum_;
  const bool unbiased_running_var_;
};

class ApplyNode final : public DeviceNode {
 public:
  explicit ApplyNode(const NodeAttributes&) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    Apply(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::Apply(c.layout(), Arguments(c, types), device);
  }

 private:
  static ApplyArguments Arguments(const RunContext& c, const Types& types) {
    return {types,
            c.DataLikeX(0),
            c.ChannelData(1),
            c.ChannelData(2),
            static_cast<const double*>(c.ChannelData(3)),
            static_cast<const double*>(c.ChannelData(4)),
            c.OutputLikeX(0)};
  }
};

}  // namespace

OpDefinition MomentsDefinition() {
  return {"BatchNormalizationMoments",
          {{"X", Role::kT}, {"axes", Role::kAxes}},
          {{"moments", Role::kDouble}},
          0,
          false,
          MakeNode<MomentsNode>};
}

OpDefinition MergeMomentsDefinition() {
  // T2 is the only type variable, and the shape of all but the moments and the count is that of running_mean.
  return {"BatchNormalizationMergeMoments",
          {{"gathered_moments", Role::kDouble}, {"running_mean", Role::kT}, {"running_var", Role::kT}},
          {{"new_running_mean", Role::kT},
           {"new_running_var", Role::kT},
           {"batch_mean", Role::kDouble},
           {"batch_inv_std", Role::kDouble},
           {"batch_count", Role::kDouble}},
          1,
          true,
          MakeNode<MergeMomentsNode>};
}

OpDefinition ApplyDefinition() {
  return {"BatchNormalizationApply",
          {{"X", Role::kT},
           {"scale", Role::kT1},
           {"bias", Role::kT1},
           {"batch_mean", Role::kDouble},
           {"batch_inv_std", Role::kDouble},
           {"axes", Role::kAxes}},
          {{"Y", Role::kT}},
          0,
          true,
          MakeNode<ApplyNode>};
}

}  // namespace bngrad
