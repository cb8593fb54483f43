#include "ort/convolution.hpp"

#include <algorithm>
#include <string>

#include "ort/attribute_checks.hpp"

namespace bngrad {
namespace {

constexpr size_t kMaxSpatialRank = 3;

cuda::ConvAttributes Attributes(const NodeAttributes& a) {
  const Shape pads = a.GetInts("pads");
  cuda::ConvAttributes attributes = {a.GetInts("strides"), a.GetInts("dilations"), {}, {}, a.GetInt("group")};
  for (size_t i = 0; i < pads.size(); ++i) {
    (i < pads.size() / 2 ? attributes.begins : attributes.ends).push_back(pads[i]);
  }
  return attributes;
}

}  // namespace

ConvolutionShapes::ConvolutionShapes(const NodeAttributes& a, bool channels_last, const char* option)
    : attributes_(Attributes(a)), kernel_(a.GetInts("kernel_shape")), channels_last_(channels_last) {
  const size_t rank = kernel_.size();
  CheckEach("kernel_shape", kernel_, rank, 1);
  CheckEach("strides", attributes_.strides, rank, 1);
  CheckEach("dilations", attributes_.dilations, rank, 1);
  CheckEach("pads", a.GetInts("pads"), 2 * rank, 0);
  if (attributes_.group < 1) {
    throw InvalidArgument("attribute group is " + std::to_string(attributes_.group) + "; expected 1 or more");
  }
  if (rank < 1 || rank > kMaxSpatialRank) {
    throw InvalidArgument("attribute kernel_shape is " + ToString(kernel_) +
                          "; on a GPU it has 1 to 3 values. Leave out " + option);
  }
}

Shape ConvolutionShapes::InMemory(Shape shape) const {
  if (channels_last_) std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  return shape;
}

Shape ConvolutionShapes::X(Shape x) const {
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

Shape ConvolutionShapes::W(const Shape& x, const Shape& w) const {
  if (w.empty() || w[0] % attributes_.group != 0) {
    throw InvalidArgument("W has shape " + ToString(w) +
                          "; expected a first dimension that is a multiple of group, " +
                          std::to_string(attributes_.group));
  }
  Shape expected = Vector(w[0]);
  expected.push_back(x[1] / attributes_.group);
  for (const int64_t size : kernel_) expected.push_back(size);
  return expected;
}

Shape ConvolutionShapes::Output(const Shape& x, const Shape& w) const {
  Shape y = Vector(x[0]);
  y.push_back(w[0]);
  for (size_t i = 0; i < kernel_.size(); ++i) {
    const int64_t window = attributes_.dilations[i] * (kernel_[i] - 1) + 1;
    const int64_t room = x[i + 2] + attributes_.begins[i] + attributes_.ends[i] - window;
    y.push_back(room < 0 ? 0 : room / attributes_.strides[i] + 1);
  }
  return y;
}

}  // namespace bngrad
