// Descriptors of cuDNN: the shapes and layouts of arrays, and the attributes of a convolution.
#pragma once
#include <memory>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "cuda/cudnn.hpp"

namespace bngrad::cuda {

// Of the 1 to 3 spatial dimensions.
struct ConvAttributes {
  Shape strides, dilations, begins, ends;  // begins and ends: of the padding
  int64_t group;
};

class Descriptor {
 public:
  // Throws Failure.
  Descriptor(const Cudnn& cudnn, int (*create)(void**), const char* name, int (*destroy)(void*));
  void* get() const { return value_.get(); }

 private:
  std::unique_ptr<void, int (*)(void*)> value_;
};

int DataTypeOf(ElementType type);

// cuDNN's convolutions have two spatial dimensions at least: one of size 1 is put before a single one. Shapes
// have channels second, and `channels_last` is the order in memory. Throw Failure.
Descriptor Tensor(const Cudnn& cudnn, int type, const Shape& shape, bool channels_last);
Descriptor Filter(const Cudnn& cudnn, int type, const Shape& shape, bool channels_last);
// `pads`: those of both sides. `type`: that of sums.
Descriptor Convolution(const Cudnn& cudnn, int type, const ConvAttributes& attributes, const Shape& pads);

}  // namespace bngrad::cuda
