// The kernels as PTX, which ptx.py compiles and compresses when the library is built; see CMakeLists.txt.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/element_type.hpp"

namespace bngrad::cuda {

// Modules in the order of kElementTypes, each with a terminating zero. A size of 0: built without the
// kernels.
extern const uint8_t kPtx[];
extern const size_t kPtxSize, kPtxTextSize;

// False if the library was built without the kernels.
bool HasKernels();

// The PTX of an element type (cuda/kernels/kernels.cu).
std::string ModuleText(ElementType type);

}  // namespace bngrad::cuda
