// MaxPoolInputGrad on a device, with the bits of core/max_pool_grad.hpp: the same arguments, with pointers to
// the device's memory.
#pragma once
#include "core/max_pool_grad.hpp"
#include "cuda/device.hpp"

namespace bngrad::cuda {

// Throws InvalidArgument for a plane of 2^31 elements or windows.
void MaxPoolGrad(const MaxPoolGradArguments& arguments, Device& device);

}  // namespace bngrad::cuda
