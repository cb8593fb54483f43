// AdamUpdate as an ONNX Runtime op. Formulas: core/adam.hpp.
#include "core/adam.hpp"

#include "core/dispatch.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class AdamUpdateNode final : public Node {
 public:
  explicit AdamUpdateNode(const NodeAttributes&) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    const AdamArguments arguments = {
        types.data,
        c.count(),
        {c.DataLikeX(0), c.DataLikeX(1), c.DataLikeX(2), c.DataLikeX(3)},
        static_cast<const double*>(c.Data(4, Vector(kAdamCoefficients), "a vector")),
        {c.OutputLikeX(0), c.OutputLikeX(1), c.OutputLikeX(2)}};
    AdamUpdate(arguments, *ActiveIsa().table, parallel);
  }
};

}  // namespace

OpDefinition AdamUpdateDefinition() {
  return {"AdamUpdate",
          {{"weight", Role::kWide},
           {"gradient", Role::kWide},
           {"exp_avg", Role::kWide},
           {"exp_avg_sq", Role::kWide},
           {"coefficients", Role::kDouble}},
          {{"new_weight", Role::kWide}, {"new_exp_avg", Role::kWide}, {"new_exp_avg_sq", Role::kWide}},
          0,
          true,
          MakeNode<AdamUpdateNode>};
}

}  // namespace bngrad
