// The updates of groups of weights and IsAllFinite as ONNX Runtime ops, for a GPU only:
// cuda/group_update.hpp.
#include "cuda/group_update.hpp"

#include "ort/op.hpp"

namespace bngrad {
namespace {

const float* Scalar(const RunContext& c, size_t input) {
  return static_cast<const float*>(c.Data(input, Shape(), "a scalar"));
}

// The slots of a weight in use, as indices into the slots of its formula.
using Slots = std::vector<size_t>;

// Updates the tensors, which are in the order of their kinds: all weights, all gradients, ...
//   condition: the index of the input with the condition; the first weight follows it
template <class Formula>
void Update(const RunContext& c, ElementType type, const Formula& formula, size_t condition,
            const Slots& slots, cuda::Device& device) {
  const size_t first = condition + 1, inputs = 2 + slots.size();
  const size_t total = c.variadic_count(), weights = total / inputs;
  if (total % inputs != 0) {
    throw InvalidArgument("there are " + std::to_string(total) + " tensors; expected " +
                          std::to_string(inputs) + " for each weight");
  }
  std::vector<cuda::GroupTensor<Formula>> tensors(weights);
  for (size_t i = 0; i < weights; ++i) {
    const Shape& shape = c.ShapeOf(first + i);
    tensors[i].count = CountOf(shape);
    const auto input = [&](size_t kind) {
      return c.Data(first + kind * weights + i, shape, "the shape of the weight");
    };
    tensors[i].inputs[0] = input(0);
    tensors[i].inputs[1] = input(1);
    tensors[i].outputs[0] = c.Output(i, shape);
    for (size_t k = 0; k < slots.size(); ++k) {
      tensors[i].inputs[2 + slots[k]] = input(2 + k);
      tensors[i].outputs[1 + slots[k]] = c.Output((1 + k) * weights + i, shape);
    }
  }
  const void* const is_applied = c.Has(condition) ? c.Data(condition, Shape(), "a scalar") : nullptr;
  cuda::GroupUpdate(type, formula, static_cast<const bool*>(is_applied), tensors, device);
}

// An update with a learning rate and a gradient scale before its condition; the formula has the attributes.
template <class Formula>
class GroupUpdateNode : public DeviceOnlyNode {
 public:
  GroupUpdateNode(Formula formula, Slots slots) : formula_(formula), slots_(std::move(slots)) {}

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const final {
    Formula formula = formula_;
    formula.scalars = {Scalar(c, 0), Scalar(c, 1)};
    Update(c, types.data, formula, 2, slots_, device);
  }

 private:
  const Formula formula_;
  const Slots slots_;
};

float Float(const NodeAttributes& a, const char* name) { return static_cast<float>(a.GetFloat(name)); }

class SgdGroupUpdateNode final : public GroupUpdateNode<cuda::SgdFormula> {
 public:
  explicit SgdGroupUpdateNode(const NodeAttributes& a)
      : GroupUpdateNode({{}, Float(a, "momentum"), Float(a, "weight_decay"), a.GetFlag("nesterov")},
                        a.GetFloat("momentum") != 0 ? Slots{0} : Slots{}) {}
};

class RmspropGroupUpdateNode final : public GroupUpdateNode<cuda::RmspropFormula> {
 public:
  explicit RmspropGroupUpdateNode(const NodeAttributes& a)
      : GroupUpdateNode({{},
                         Float(a, "alpha"),
                         Float(a, "one_minus_alpha"),
                         Float(a, "eps"),
                         Float(a, "momentum"),
                         Float(a, "weight_decay"),
                         a.GetFlag("centered")},
                        SlotsOf(a)) {}

 private:
  static Slots SlotsOf(const NodeAttributes& a) {
    Slots slots = {0};
    if (a.GetFloat("momentum") != 0) slots.push_back(1);
    if (a.GetFlag("centered")) slots.push_back(2);
    return slots;
  }
};

class LionGroupUpdateNode final : public GroupUpdateNode<cuda::LionFormula> {
 public:
  explicit LionGroupUpdateNode(const NodeAttributes& a)
      : GroupUpdateNode({{},
                         Float(a, "beta1"),
                         Float(a, "one_minus_beta1"),
                         Float(a, "beta2"),
                         Float(a, "one_minus_beta2"),
                         Float(a, "weight_decay")},
                        {0}) {}
};

class AdamGroupUpdateNode final : public DeviceOnlyNode {
 public:
  explicit AdamGroupUpdateNode(const NodeAttributes&) {}

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const void* const coefficients = c.Data(0, Vector(kAdamCoefficients), "a vector");
    Update(c, types.data, cuda::AdamFormula{static_cast<const double*>(coefficients)}, 1, {0, 1}, device);
  }
};

class IsAllFiniteNode final : public DeviceOnlyNode {
 public:
  explicit IsAllFiniteNode(const NodeAttributes&) {}

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    std::vector<cuda::FiniteTensor> tensors(c.variadic_count());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Shape& shape = c.ShapeOf(i);
      tensors[i] = {CountOf(shape), {c.Data(i, shape, "")}};
    }
    void* const result = c.Output(0, Shape());
    if (result != nullptr) cuda::AllFinite(types.data, tensors, static_cast<bool*>(result), device);
  }
};

// Without a learning rate and a gradient scale there are coefficients.
template <class NodeOfOp>
OpDefinition Definition(const char* name, bool has_coefficients = false) {
  const Role role = has_coefficients ? Role::kWide : Role::kFloat;
  std::vector<Parameter> inputs = {{"learning_rate", Role::kFloat}, {"gradient_scale", Role::kFloat}};
  if (has_coefficients) inputs = {{"coefficients", Role::kDouble}};
  inputs.push_back({"is_applied", Role::kBool});
  inputs.push_back({"tensors", role});
  return {name, inputs, {{"new_tensors", role}}, 0, false, MakeNode<NodeOfOp>, Variadic::kBoth};
}

}  // namespace

std::vector<OpDefinition> GroupUpdateDefinitions() {
  return {Definition<SgdGroupUpdateNode>("SgdGroupUpdate"),
          Definition<RmspropGroupUpdateNode>("RmspropGroupUpdate"),
          Definition<LionGroupUpdateNode>("LionGroupUpdate"),
          Definition<AdamGroupUpdateNode>("AdamGroupUpdate", true),
          {"IsAllFinite",
           {{"tensors", Role::kWide}},
           {{"all_finite", Role::kBool}},
           0,
           false,
           MakeNode<IsAllFiniteNode>,
           Variadic::kInputs}};
}

}  // namespace bngrad
