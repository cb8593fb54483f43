// MaxPoolInputGrad as an ONNX Runtime op: core/max_pool_grad.hpp.
#include "core/max_pool_grad.hpp"

#include "cuda/max_pool_grad.hpp"
#include "ort/window_node.hpp"

namespace bngrad {
namespace {

class MaxPoolGradNode final : public WindowNode<DeviceNode> {
 public:
  explicit MaxPoolGradNode(const NodeAttributes& a)
      : WindowNode(a, kMaxPoolAxes), ceil_mode_(a.GetFlag("ceil_mode")) {}

  void Run(const RunContext& c, const Types& types, Parallel& parallel) const override {
    const MaxPoolGradArguments a = Arguments(c, types);
    if (a.dX != nullptr) MaxPoolGrad(a, parallel);
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const MaxPoolGradArguments a = Arguments(c, types);
    if (a.dX != nullptr) cuda::MaxPoolGrad(a, device);
  }

 private:
  MaxPoolGradArguments Arguments(const RunContext& c, const Types& types) const {
    const Shape& x = c.ShapeOfX();
    if (x.size() != rank_ + 2) {
      throw InvalidArgument("X has shape " + ToString(x) + "; expected [N, C] and " + std::to_string(rank_) +
                            " spatial dimensions");
    }
    MaxPoolGradArguments a = {types.data, x[0] * x[1], {}, nullptr, nullptr, nullptr};
    std::fill(a.axes, a.axes + kMaxPoolAxes, PoolAxis{1, 1, 1, 1, 1, 0});
    Shape dy = Vector(x[0]);
    dy.push_back(x[1]);
    for (size_t i = 0; i < rank_; ++i) {
      PoolAxis& axis = a.axes[kMaxPoolAxes - rank_ + i];
      axis = {x[i + 2], 0, kernel_[i], strides_[i], dilations_[i], pads_[i]};
      axis.windows = Windows(axis, pads_[rank_ + i]);
      dy.push_back(axis.windows);
    }
    a.dY = c.Data(0, dy, "the shape of the output of MaxPool");
    a.X = c.DataLikeX(1);
    a.dX = c.OutputLikeX(0);
    return a;
  }

  // With ceil_mode, a last window may extend beyond the padding, but begins before the end of X.
  int64_t Windows(const PoolAxis& axis, int64_t end) const {
    const int64_t room = axis.size + axis.begin + end - (axis.kernel - 1) * axis.dilation - 1;
    if (room < 0) return 0;
    int64_t count = (ceil_mode_ ? room + axis.stride - 1 : room) / axis.stride + 1;
    if (ceil_mode_ && (count - 1) * axis.stride >= axis.size + axis.begin) --count;
    return count;
  }

  const bool ceil_mode_;
};

}  // namespace

OpDefinition MaxPoolGradDefinition() {
  return {"MaxPoolInputGrad",
          {{"dY", Role::kWide}, {"X", Role::kWide}},
          {{"dX", Role::kWide}},
          1,
          true,
          MakeNode<MaxPoolGradNode>,
          Variadic::kNone,
          true};
}

}  // namespace bngrad
