// DepthwiseConv and DepthwiseConvGrad as ONNX Runtime ops. Formulas: core/depthwise.hpp.
#include "core/depthwise.hpp"

#include <algorithm>
#include <string>

#include "core/dispatch.hpp"
#include "ort/window_node.hpp"

namespace bngrad {
namespace {

class DepthwiseNode : public WindowNode<Node> {
 public:
  explicit DepthwiseNode(const NodeAttributes& a) : WindowNode(a, 2), group_(a.GetInt("group")) {
    if (group_ < 1) {
      throw InvalidArgument("attribute group is " + std::to_string(group_) + "; expected 1 or more");
    }
    // Windows without any data would need memory for what is around it only.
    for (size_t i = 0; i < rank_; ++i) {
      const int64_t window = Extent(i);
      if (pads_[i] < window && pads_[i + rank_] < window) continue;
      throw InvalidArgument("attribute pads is " + ToString(pads_) + "; expected less than " +
                            std::to_string(window) + ", the size of a window, in dimension " +
                            std::to_string(i + 2));
    }
  }

 protected:
  // Throws InvalidArgument unless X and W fit.
  DepthwiseShape ShapeOf(ElementType type, const Shape& x, const Shape& w) const {
    if (x.size() != rank_ + 2 || x[1] != group_) {
      throw InvalidArgument("X has shape " + ToString(x) + "; expected [N, C] and " + std::to_string(rank_) +
                            " spatial dimensions, with C the group, " + std::to_string(group_));
    }
    const int64_t m = w.empty() ? 0 : w[0];
    Shape expected = Vector(m);
    expected.push_back(1);
    for (const int64_t size : kernel_) expected.push_back(size);
    if (m < 1 || m % group_ != 0 || w != expected) {
      throw InvalidArgument("W has shape " + ToString(w) + "; expected [M], 1 and kernel_shape " +
                            ToString(kernel_) + ", with M a multiple of the group, " +
                            std::to_string(group_));
    }
    const WindowAxis one = {1, 1, 1, 1, 1, 0};
    const DepthwiseShape s = {
        type, x[0], x[1], m / group_, rank_ == 1 ? one : Axis(x, 0), Axis(x, rank_ - 1)};
    // The kernels copy a plane with its padding.
    double padded = 1;
    for (size_t i = 0; i < rank_; ++i) padded *= static_cast<double>(x[i + 2] + pads_[i] + pads_[i + rank_]);
    constexpr int64_t kAnyway = 1 << 22, kTimes = 16;
    if (s.out_plane() > 0 && padded > static_cast<double>(std::max(kAnyway, kTimes * s.in_plane()))) {
      throw InvalidArgument("X has shape " + ToString(x) + " and pads are " + ToString(pads_) +
                            "; expected a plane with its padding of at most " + std::to_string(kTimes) +
                            " times the elements of X's");
    }
    return s;
  }

  Shape OutputShape(const DepthwiseShape& s) const {
    Shape shape = Vector(s.batch);
    shape.push_back(s.channels * s.multiplier);
    if (rank_ > 1) shape.push_back(s.rows.out);
    shape.push_back(s.columns.out);
    return shape;
  }

 private:
  WindowAxis Axis(const Shape& x, size_t i) const {
    const int64_t size = x[i + 2], window = Extent(i);
    const int64_t room = size + pads_[i] + pads_[i + rank_] - window;
    return {size, room < 0 ? 0 : room / strides_[i] + 1, kernel_[i], strides_[i], dilations_[i], pads_[i]};
  }

  const int64_t group_;
};

class DepthwiseConvNode final : public DepthwiseNode {
 public:
  using DepthwiseNode::DepthwiseNode;

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    const DepthwiseShape s = ShapeOf(types.data, c.ShapeOf(0), c.ShapeOf(1));
    const void* const w = c.Data(1, c.ShapeOf(1), "");
    void* const y = c.Output(0, OutputShape(s));
    if (y != nullptr) DepthwiseConv(s, c.DataLikeX(0), w, nullptr, y, *ActiveIsa().table, parallel);
  }
};

class DepthwiseConvGradNode final : public DepthwiseNode {
 public:
  using DepthwiseNode::DepthwiseNode;

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    const Shape& w = c.ShapeOf(2);
    const DepthwiseShape s = ShapeOf(types.data, c.ShapeOf(1), w);
    const void* const dy = c.Data(0, OutputShape(s), "the shape of the output of DepthwiseConv");
    DepthwiseConvGrad(s, dy, c.DataLikeX(1), c.Data(2, w, ""), c.OutputLikeX(0), c.Output(1, w),
                      *ActiveIsa().table, parallel);
  }
};

}  // namespace

OpDefinition DepthwiseConvDefinition() {
  return {"DepthwiseConv",
          {{"X", Role::kWide}, {"W", Role::kWide}},
          {{"Y", Role::kWide}},
          0,
          false,
          MakeNode<DepthwiseConvNode>,
          Variadic::kNone,
          true};
}

// ONNX Runtime below 1.27 takes the last function of an op for all of its nodes, but what computes the
// gradients fastest depends on shapes. So the op has several names.
std::vector<OpDefinition> DepthwiseConvGradDefinitions() {
  constexpr size_t kNames = 32;
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (size_t i = 1; i <= kNames; ++i) result.push_back("DepthwiseConvGrad_" + std::to_string(i));
    return result;
  }();
  std::vector<OpDefinition> definitions;
  for (const std::string& name : names) {
    definitions.push_back({name.c_str(),
                           {{"dY", Role::kWide}, {"X", Role::kWide}, {"W", Role::kWide}},
                           {{"dX", Role::kWide}, {"dW", Role::kWide}},
                           1,
                           true,
                           MakeNode<DepthwiseConvGradNode>,
                           Variadic::kNone,
                           true});
  }
  return definitions;
}

}  // namespace bngrad
