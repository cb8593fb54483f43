// ConvGrad as an ONNX Runtime op, for a GPU only: cuda/conv_grad.hpp.
#include "cuda/conv_grad.hpp"

#include <algorithm>
#include <string>

#include "ort/op.hpp"

namespace bngrad {
namespace {

constexpr size_t kMaxSpatialRank = 3;

class ConvGradNode final : public DeviceOnlyNode {
 public:
  explicit ConvGradNode(const NodeAttributes& a)
      : attributes_(Attributes(a)),
        kernel_(a.GetInts("kernel_shape")),
        channels_last_(a.Has("channels_last") && a.GetFlag("channels_last")),
        conv_grad_(attributes_) {
    const size_t rank = kernel_.size();
    CheckEach("kernel_shape", kernel_, rank, 1);
    CheckEach("strides", attributes_.strides, rank, 1);
    CheckEach("dilations", attributes_.dilations, rank, 1);
    CheckEach("pads", a.GetInts("pads"), 2 * rank, 0);
    if (attributes_.group < 1) {
      throw InvalidArgument("attribute group is " + std::to_string(attributes_.group) +
                            "; expected 1 or more");
    }
    if (rank < 1 || rank > kMaxSpatialRank) {
      throw InvalidArgument("attribute kernel_shape is " + ToString(kernel_) +
                            "; on a GPU it has 1 to 3 values. Leave out --conv-grad");
    }
  }

  void RunOnDevice(const RunContext& c, const Types& types, cuda::Device& device) const override {
    const Shape x = XShape(c.ShapeOfX()), w = WeightShape(x, c.ShapeOf(2)), dy = OutputShape(x, w);
    const char* const of_dy = channels_last_ ? "the shape of the output of Conv with channels last"
                                             : "the shape of the output of Conv";
    const char* const of_w =
        channels_last_ ? "[M], kernel_shape and [C / group]" : "[M, C / group] and kernel_shape";
    conv_grad_.Run(
        {types.data, channels_last_, x, w, dy, c.Data(0, InMemory(dy), of_dy), c.DataLikeX(1),
         c.Data(2, InMemory(w), of_w), c.OutputLikeX(0), c.Output(1, InMemory(w)), c.Output(2, Vector(w[0]))},
        device);
  }

 private:
  static cuda::ConvAttributes Attributes(const NodeAttributes& a) {
    const Shape pads = a.GetInts("pads");
    cuda::ConvAttributes attributes = {
        a.GetInts("strides"), a.GetInts("dilations"), {}, {}, a.GetInt("group")};
    for (size_t i = 0; i < pads.size(); ++i) {
      (i < pads.size() / 2 ? attributes.begins : attributes.ends).push_back(pads[i]);
    }
    return attributes;
  }

  static void CheckEach(const char* name, const Shape& values, size_t count, int64_t least) {
    bool fits = values.size() == count;
    for (const int64_t value : values) fits = fits && value >= least && value <= INT32_MAX;
    if (fits) return;
    throw InvalidArgument(std::string("attribute ") + name + " is " + ToString(values) + "; expected " +
                          std::to_string(count) + " values of " + std::to_string(least) + " or more");
  }

  // A shape with channels as the second dimension as that of an array of the node.
  Shape InMemory(Shape shape) const {
    if (channels_last_) std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
    return shape;
  }

  Shape XShape(Shape x) const {
    const int64_t group = attributes_.group;
    const bool has_rank = x.size() == kernel_.size() + 2;
    if (!has_rank || x[channels_last_ ? x.size() - 1 : 1] % group != 0) {
      const std::string spatial = std::to_string(kernel_.size()) + " spatial dimensions";
      throw InvalidArgument("X has shape " + ToString(x) + "; expected " +
                            (channels_last_ ? "[N], " + spatial + " and [C]" : "[N, C] and " + spatial) +
                            ", with C a multiple of group, " + std::to_string(group));
    }
    if (channels_last_) std::rotate(x.begin() + 1, x.end() - 1, x.end());
    return x;
  }

  Shape WeightShape(const Shape& x, const Shape& w) const {
    const int64_t group = attributes_.group;
    if (w.empty() || w[0] % group != 0) {
      throw InvalidArgument("W has shape " + ToString(w) +
                            "; expected a first dimension that is a multiple of group, " +
                            std::to_string(group));
    }
    Shape expected = Vector(w[0]);
    expected.push_back(x[1] / group);
    for (const int64_t size : kernel_) expected.push_back(size);
    return expected;
  }

  Shape OutputShape(const Shape& x, const Shape& w) const {
    Shape dy = Vector(x[0]);
    dy.push_back(w[0]);
    for (size_t i = 0; i < kernel_.size(); ++i) {
      const int64_t window = attributes_.dilations[i] * (kernel_[i] - 1) + 1;
      const int64_t room = x[i + 2] + attributes_.begins[i] + attributes_.ends[i] - window;
      dy.push_back(room < 0 ? 0 : room / attributes_.strides[i] + 1);
    }
    return dy;
  }

  const cuda::ConvAttributes attributes_;
  const Shape kernel_;
  const bool channels_last_;
  const cuda::ConvGrad conv_grad_;
};

}  // namespace

OpDefinition ConvGradDefinition() {
  return {"ConvGrad",
          {{"dY", Role::kT}, {"X", Role::kT}, {"W", Role::kT}},
          {{"dX", Role::kT}, {"dW", Role::kT}, {"dB", Role::kT}},
          1,
          true,
          MakeNode<ConvGradNode>};
}

}  // namespace bngrad
