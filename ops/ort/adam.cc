// AdamUpdate as an ONNX Runtime op. Formulas: core/adam.hpp.
#include "core/adam.hpp"

#include <algorithm>

#include "core/dispatch.hpp"
#include "cuda/group_update.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class AdamUpdateNode final : public DeviceNode {
 public:
  explicit AdamUpdateNode(const NodeAttributes&) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    AdamUpdate(Arguments(c, types), *ActiveIsa().table, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const AdamArguments a = Arguments(c, types);
    cuda::GroupTensor<cuda::AdamFormula> tensor = {a.count, {}, {}};
    std::copy_n(a.inputs, kAdamInputs, tensor.inputs);
    std::copy_n(a.outputs, kAdamOutputs, tensor.outputs);
    cuda::GroupUpdate(a.type, cuda::AdamFormula{a.coefficients}, nullptr, {tensor}, device);
  }

 private:
  static AdamArguments Arguments(const RunContext& c, const Types& types) {
    return {types.data,
            c.count(),
            {c.DataLikeX(0), c.DataLikeX(1), c.DataLikeX(2), c.DataLikeX(3)},
            static_cast<const double*>(c.Data(4, Vector(kAdamCoefficients), "a vector")),
            {c.OutputLikeX(0), c.OutputLikeX(1), c.OutputLikeX(2)}};
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
