// The op of core/adam.hpp on a device; the coefficients are in its memory, too.
#pragma once
#include "core/adam.hpp"
#include "cuda/device.hpp"

namespace bngrad::cuda {

void AdamUpdate(const AdamArguments& arguments, Device& device);

}  // namespace bngrad::cuda
