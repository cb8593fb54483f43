// The gradient of synchronized batch normalization as ONNX Runtime ops. Formulas: core/grad.hpp.
#include "core/dispatch.hpp"
#include "core/grad.hpp"
#include "cuda/batch_norm.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

// Inputs dY, X, scale, batch_mean, batch_inv_std, ...; with a ReLU dZ and Z take the place of dY.
template <bool kRelu>
constexpr size_t kX = kRelu ? 2 : 1;

template <bool kRelu>
class GradSumsNode final : public DeviceNode {
 public:
  explicit GradSumsNode(const NodeAttributes&) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    GradSums(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::Grad(c.layout(), ToGrad(Arguments(c, types)), device);
  }

 private:
  static GradSumsArguments Arguments(const RunContext& c, const Types& types) {
    constexpr size_t x = kX<kRelu>;
    Shape shape = Vector(2);
    shape.push_back(c.layout().channels);
    c.ChannelData(x + 1);  // scale, for its type and shape
    return {types,
            c.DataLikeX(0),
            kRelu ? c.DataLikeX(1) : nullptr,
            c.DataLikeX(x),
            static_cast<const double*>(c.ChannelData(x + 2)),
            static_cast<const double*>(c.ChannelData(x + 3)),
            static_cast<double*>(c.Output(0, shape)),
            c.ChannelOutput(1),
            c.ChannelOutput(2)};
  }
};

template <bool kRelu>
class GradApplyNode final : public DeviceNode {
 public:
  explicit GradApplyNode(const NodeAttributes&) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    GradApply(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::GradApply(c.layout(), Arguments(c, types), device);
  }

 private:
  static GradApplyArguments Arguments(const RunContext& c, const Types& types) {
    constexpr size_t x = kX<kRelu>;
    GradApplyArguments a = {};
    a.types = types;
    a.dy = c.DataLikeX(0);
    a.z = kRelu ? c.DataLikeX(1) : nullptr;
    a.x = c.DataLikeX(x);
    a.scale = c.ChannelData(x + 1);
    a.batch_mean = static_cast<const double*>(c.ChannelData(x + 2));
    a.batch_inv_std = static_cast<const double*>(c.ChannelData(x + 3));
    a.gathered_sums = c.Gathered(x + 4, 2, c.layout().channels, &a.ranks);
    a.batch_count = static_cast<const double*>(c.Data(x + 5, Shape(), "a scalar"));
    a.dx = c.OutputLikeX(0);
    return a;
  }
};

using Parameters = std::vector<Parameter>;

template <bool kRelu>
Parameters Inputs(const Parameters& others) {
  Parameters inputs = kRelu ? Parameters{{"dZ", Role::kT}, {"Z", Role::kT}} : Parameters{{"dY", Role::kT}};
  const Parameters common = {
      {"X", Role::kT}, {"scale", Role::kT1}, {"batch_mean", Role::kDouble}, {"batch_inv_std", Role::kDouble}};
  inputs.insert(inputs.end(), common.begin(), common.end());
  inputs.insert(inputs.end(), others.begin(), others.end());
  inputs.push_back({"axes", Role::kAxes});
  return inputs;
}

template <bool kRelu>
OpDefinition SumsDefinition(const char* name) {
  return {name,
          Inputs<kRelu>({}),
          {{"sums", Role::kDouble}, {"dscale", Role::kT1}, {"dbias", Role::kT1}},
          kX<kRelu>,
          false,
          MakeNode<GradSumsNode<kRelu>>};
}

template <bool kRelu>
OpDefinition ApplyDefinition(const char* name) {
  return {name,
          Inputs<kRelu>({{"gathered_sums", Role::kDouble}, {"batch_count", Role::kDouble}}),
          {{"dX", Role::kT}},
          kX<kRelu>,
          true,
          MakeNode<GradApplyNode<kRelu>>};
}

}  // namespace

OpDefinition GradSumsDefinition() { return SumsDefinition<false>("BatchNormalizationGradSums"); }
OpDefinition ReluGradSumsDefinition() { return SumsDefinition<true>("BatchNormalizationReluGradSums"); }
OpDefinition GradApplyDefinition() { return ApplyDefinition<false>("BatchNormalizationGradApply"); }
OpDefinition ReluGradApplyDefinition() { return ApplyDefinition<true>("BatchNormalizationReluGradApply"); }

}  // namespace bngrad
