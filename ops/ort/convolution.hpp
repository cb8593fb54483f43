// Attributes of the ops that are convolutions, and the shapes of their arrays.
#pragma once
#include "cuda/descriptors.hpp"
#include "ort/op.hpp"

namespace bngrad {

// Shapes have channels as the second dimension, except those of arrays of the node.
class ConvolutionShapes {
 public:
  // Throws InvalidArgument, which says to leave out `option`.
  ConvolutionShapes(const NodeAttributes& a, bool channels_last, const char* option);

  const cuda::ConvAttributes& attributes() const { return attributes_; }
  // The shape of an array of the node.
  Shape InMemory(Shape shape) const;
  // Of X and W from those of the arrays. Throw InvalidArgument.
  Shape X(Shape x) const;
  Shape W(const Shape& x, const Shape& w) const;
  Shape Output(const Shape& x, const Shape& w) const;

 private:
  const cuda::ConvAttributes attributes_;
  const Shape kernel_;
  const bool channels_last_;
};

}  // namespace bngrad
