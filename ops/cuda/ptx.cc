#include "cuda/ptx.hpp"

#include "cuda/lzma.hpp"

namespace bngrad::cuda {

bool HasKernels() { return kPtxSize > 0; }

std::string ModuleText(ElementType type) {
  const std::string modules = DecompressLzma(kPtx, kPtxSize, kPtxTextSize);
  const char* text = modules.c_str();
  for (const ElementType other : kElementTypes) {
    if (other == type) break;
    text += std::char_traits<char>::length(text) + 1;
  }
  return text;
}

}  // namespace bngrad::cuda
