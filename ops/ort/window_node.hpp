// The attributes of convolutions and pools that describe windows.
#pragma once
#include <string>

#include "ort/attribute_checks.hpp"
#include "ort/op.hpp"

namespace bngrad {

// A node with the windows of a convolution or a pool; Base is Node or a class of nodes.
template <class Base>
class WindowNode : public Base {
 protected:
  // Throws InvalidArgument unless each attribute has its values for 1 to `most` axes.
  WindowNode(const NodeAttributes& a, size_t most)
      : kernel_(a.GetInts("kernel_shape")),
        strides_(a.GetInts("strides")),
        dilations_(a.GetInts("dilations")),
        pads_(a.GetInts("pads")),
        rank_(kernel_.size()) {
    if (rank_ < 1 || rank_ > most) {
      throw InvalidArgument("attribute kernel_shape is " + ToString(kernel_) + "; expected 1 to " +
                            std::to_string(most) + " values");
    }
    CheckEach("kernel_shape", kernel_, rank_, 1);
    CheckEach("strides", strides_, rank_, 1);
    CheckEach("dilations", dilations_, rank_, 1);
    CheckEach("pads", pads_, 2 * rank_, 0);
  }

  // The elements from the first to the last of a window.
  int64_t Extent(size_t axis) const { return (kernel_[axis] - 1) * dilations_[axis] + 1; }

  const Shape kernel_, strides_, dilations_, pads_;
  const size_t rank_;
};

}  // namespace bngrad
