// BatchNormalizationStatistics as an ONNX Runtime op. Formulas: core/training.hpp.
#include "core/dispatch.hpp"
#include "core/training.hpp"
#include "cuda/batch_norm.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class StatisticsNode final : public DeviceNode {
 public:
  explicit StatisticsNode(const NodeAttributes& attributes) : epsilon_(attributes.GetFloat("epsilon")) {
    CheckEpsilon(epsilon_);
  }

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    Statistics(c.layout(), Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    cuda::Statistics(c.layout(), Arguments(c, types), device);
  }

 private:
  StatisticsArguments Arguments(const RunContext& c, const Types& types) const {
    return {types, epsilon_, c.DataLikeX(0), c.ChannelOutput(0), c.ChannelOutput(1)};
  }

  const double epsilon_;
};

}  // namespace

OpDefinition StatisticsDefinition() {
  // The rank of the outputs depends on the value of axes, which is unknown before a run.
  return {"BatchNormalizationStatistics",
          {{"X", Role::kT}, {"axes", Role::kAxes}},
          {{"mean", Role::kT2}, {"inv_std", Role::kT2}},
          0,
          false,
          MakeNode<StatisticsNode>};
}

}  // namespace bngrad
