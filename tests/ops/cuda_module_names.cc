// In place of the PTX of a module its name, by which the emulation finds its kernels.
#include "cuda/ptx.hpp"

namespace bngrad::cuda {

bool HasKernels() { return true; }

std::string ModuleText(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return "float32";
    case ElementType::kDouble:
      return "float64";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBFloat16:
      break;
  }
  return "bfloat16";
}

}  // namespace bngrad::cuda
