// BatchNormalizationStatistics as an ONNX Runtime op; the formulas are in training.hpp.
#include "core/dispatch.hpp"
#include "core/training.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class StatisticsNode final : public Node {
 public:
  explicit StatisticsNode(const NodeAttributes& attributes) : epsilon_(attributes.GetFloat("epsilon")) {
    CheckEpsilon(epsilon_);
  }

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    const StatisticsArguments arguments = {types, epsilon_, c.DataLikeX(0), c.ChannelOutput(0),
                                           c.ChannelOutput(1)};
    Statistics(c.layout(), arguments, *ActiveIsa().table, parallel);
  }

 private:
  const double epsilon_;
};

}  // namespace

OpDefinition StatisticsDefinition() {
  // The outputs' rank depends on how many axes there are, which only a run knows.
  return {"BatchNormalizationStatistics",
          {{"X", Role::kT}, {"axes", Role::kAxes}},
          {{"mean", Role::kT2}, {"inv_std", Role::kT2}},
          -1,
          [](const NodeAttributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<StatisticsNode>(attributes);
          }};
}

}  // namespace bngrad
