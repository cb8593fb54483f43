#include "cuda/conv_copies.hpp"

namespace bngrad::cuda {
namespace {

// Transposes `count` matrices.
void Transpose(ElementType type, int64_t count, int64_t rows, int64_t columns, const void* from, void* to,
               Device& device) {
  const int64_t size = rows * columns;
  CopyBox(type, {3, {rows, columns, count, 1}, {columns, 1, size, 0}}, from,
          {3, {rows, columns, count, 1}, {1, rows, size, 0}}, to, device);
}

int64_t SpatialSize(const Shape& shape) {
  int64_t size = 1;
  for (size_t i = 2; i < shape.size(); ++i) size *= shape[i];
  return size;
}

}  // namespace

ViewDims BoxDims(const Shape& box, const Shape& outer, bool channels_last) {
  ViewDims dims = {0, {1, 1, 1, 1}, {}};
  int64_t stride = 1, adjacent = channels_last ? box[1] : 1;
  for (size_t i = box.size(); i-- > 2; ++dims.count) {
    dims.size[dims.count] = box[i] * adjacent;
    dims.stride[dims.count] = stride;
    stride *= outer[i] * adjacent;
    adjacent = 1;
  }
  dims.size[dims.count] = channels_last ? box[0] : box[0] * box[1];
  dims.stride[dims.count++] = stride;
  return dims;
}

void CopyBox(ElementType type, const ViewDims& from_dims, const void* from, const ViewDims& to_dims, void* to,
             Device& device) {
  CopyBoxArguments box = {1, from_dims, to_dims, from, to, 0};
  for (const int64_t size : from_dims.size) box.count *= size;
  box.blocks = device.BlocksOfLoop(box.count);
  device.Launch(type, "copy_box", box.blocks, 1, &box);
}

void ChannelsFirst(ElementType type, const Shape& shape, const void* from, void* to, Device& device) {
  Transpose(type, shape[0], SpatialSize(shape), shape[1], from, to, device);
}

void ChannelsLast(ElementType type, const Shape& shape, const void* from, void* to, Device& device) {
  Transpose(type, shape[0], shape[1], SpatialSize(shape), from, to, device);
}

}  // namespace bngrad::cuda
