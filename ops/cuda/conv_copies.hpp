// Copies of images by the kernel copy_box: into padding and out of it, and between layouts.
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "cuda/device.hpp"
#include "cuda/kernels/copy.h"

namespace bngrad::cuda {

// Some images of [N, C, *spatial] in memory of larger ones of `outer`, which have channels first or last.
ViewDims BoxDims(const Shape& box, const Shape& outer, bool channels_last);

void CopyBox(ElementType type, const ViewDims& from_dims, const void* from, const ViewDims& to_dims, void* to,
             Device& device);

// Of an array of [N, C, *spatial], between memory with channels first and memory with channels last.
void ChannelsFirst(ElementType type, const Shape& shape, const void* from, void* to, Device& device);
void ChannelsLast(ElementType type, const Shape& shape, const void* from, void* to, Device& device);

}  // namespace bngrad::cuda
