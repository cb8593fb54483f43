// SgdGroupUpdate and AdamGroupUpdate as ONNX Runtime ops, for a GPU only: cuda/group_update.hpp.
#include "cuda/group_update.hpp"

#include "ort/op.hpp"

namespace bngrad {
namespace {

// Returns the arrays of each weight. Tensors are in the order of their kinds: all weights, all gradients, ...
//   first: the index of the first weight
//   inputs, outputs: the kinds of input and output tensors in use; others are null
template <class Tensor>
std::vector<Tensor> ReadTensors(const RunContext& c, size_t first, size_t inputs, size_t outputs) {
  const size_t total = c.variadic_count(), weights = total / inputs;
  if (total % inputs != 0) {
    throw InvalidArgument("there are " + std::to_string(total) + " tensors; expected " +
                          std::to_string(inputs) + " for each weight");
  }
  std::vector<Tensor> tensors(weights, Tensor());
  for (size_t i = 0; i < weights; ++i) {
    const Shape& shape = c.ShapeOf(first + i);
    tensors[i].count = 1;
    for (const int64_t size : shape) tensors[i].count *= size;
    for (size_t k = 0; k < inputs; ++k) {
      tensors[i].inputs[k] = c.Data(first + k * weights + i, shape, "the shape of the weight");
    }
    for (size_t k = 0; k < outputs; ++k) tensors[i].outputs[k] = c.Output(k * weights + i, shape);
  }
  return tensors;
}

class SgdGroupUpdateNode final : public DeviceOnlyNode {
 public:
  explicit SgdGroupUpdateNode(const NodeAttributes& a)
      : options_{static_cast<float>(a.GetFloat("momentum")), static_cast<float>(a.GetFloat("weight_decay")),
                 a.GetFlag("nesterov")} {}

  void RunOnDevice(const RunContext& c, const Types&, cuda::Device& device) const override {
    const size_t buffers = options_.momentum != 0 ? 1 : 0;
    const auto scalar = [&](size_t input) {
      return static_cast<const float*>(c.Data(input, Shape(), "a scalar"));
    };
    const auto tensors = ReadTensors<cuda::SgdTensor>(c, 2, 2 + buffers, 1 + buffers);
    cuda::SgdUpdate(options_, scalar(0), scalar(1), tensors, device);
  }

 private:
  const cuda::SgdOptions options_;
};

class AdamGroupUpdateNode final : public DeviceOnlyNode {
 public:
  explicit AdamGroupUpdateNode(const NodeAttributes&) {}

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const void* const coefficients = c.Data(0, Vector(kAdamCoefficients), "a vector");
    const auto tensors = ReadTensors<cuda::AdamTensor>(c, 1, kAdamInputs, kAdamOutputs);
    cuda::AdamUpdate(types.data, static_cast<const double*>(coefficients), tensors, device);
  }
};

}  // namespace

OpDefinition SgdGroupUpdateDefinition() {
  return {"SgdGroupUpdate",
          {{"learning_rate", Role::kFloat}, {"gradient_scale", Role::kFloat}, {"tensors", Role::kFloat}},
          {{"new_tensors", Role::kFloat}},
          0,
          false,
          MakeNode<SgdGroupUpdateNode>,
          true};
}

OpDefinition AdamGroupUpdateDefinition() {
  return {"AdamGroupUpdate",
          {{"coefficients", Role::kDouble}, {"tensors", Role::kWide}},
          {{"new_tensors", Role::kWide}},
          0,
          false,
          MakeNode<AdamGroupUpdateNode>,
          true};
}

}  // namespace bngrad
