#include "cuda/descriptors.hpp"

#include <vector>

namespace bngrad::cuda {
namespace {

// Enumerations of cuDNN.
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBFloat16 = 9;
constexpr int kChannelsFirst = 0, kChannelsLast = 1, kCrossCorrelation = 1;

std::vector<int> ToInts(const Shape& sizes, size_t first, int filler) {
  std::vector<int> ints(sizes.begin(), sizes.begin() + first);
  if (sizes.size() == first + 1) ints.push_back(filler);
  for (size_t i = first; i < sizes.size(); ++i) ints.push_back(static_cast<int>(sizes[i]));
  return ints;
}

}  // namespace

Descriptor::Descriptor(const Cudnn& cudnn, int (*create)(void**), const char* name, int (*destroy)(void*))
    : value_(nullptr, destroy) {
  void* value = nullptr;
  cudnn.Check(create(&value), name);
  value_.reset(value);
}

int DataTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return kFloat;
    case ElementType::kDouble:
      return kDouble;
    case ElementType::kFloat16:
      return kHalf;
    case ElementType::kBFloat16:
      break;
  }
  return kBFloat16;
}

#define BNGRAD_DESCRIPTOR(cudnn, Kind) \
  Descriptor((cudnn), (cudnn).cudnnCreate##Kind, "cudnnCreate" #Kind, (cudnn).cudnnDestroy##Kind)

Descriptor Tensor(const Cudnn& cudnn, int type, const Shape& shape, bool channels_last) {
  Descriptor tensor = BNGRAD_DESCRIPTOR(cudnn, TensorDescriptor);
  const std::vector<int> dims = ToInts(shape, 2, 1);
  std::vector<int> strides(dims.size(), 1);
  int stride = channels_last ? dims[1] : 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (i == 1 && channels_last) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  BNGRAD_CUDNN(cudnn, cudnnSetTensorNdDescriptor, tensor.get(), type, static_cast<int>(dims.size()),
               dims.data(), strides.data());
  return tensor;
}

Descriptor Filter(const Cudnn& cudnn, int type, const Shape& shape, bool channels_last) {
  Descriptor filter = BNGRAD_DESCRIPTOR(cudnn, FilterDescriptor);
  const std::vector<int> dims = ToInts(shape, 2, 1);
  BNGRAD_CUDNN(cudnn, cudnnSetFilterNdDescriptor, filter.get(), type,
               channels_last ? kChannelsLast : kChannelsFirst, static_cast<int>(dims.size()), dims.data());
  return filter;
}

Descriptor Convolution(const Cudnn& cudnn, int type, const ConvAttributes& attributes, const Shape& pads) {
  Descriptor convolution = BNGRAD_DESCRIPTOR(cudnn, ConvolutionDescriptor);
  const std::vector<int> padding = ToInts(pads, 0, 0);
  BNGRAD_CUDNN(cudnn, cudnnSetConvolutionNdDescriptor, convolution.get(), static_cast<int>(padding.size()),
               padding.data(), ToInts(attributes.strides, 0, 1).data(),
               ToInts(attributes.dilations, 0, 1).data(), kCrossCorrelation, type);
  BNGRAD_CUDNN(cudnn, cudnnSetConvolutionGroupCount, convolution.get(), static_cast<int>(attributes.group));
  return convolution;
}

}  // namespace bngrad::cuda
