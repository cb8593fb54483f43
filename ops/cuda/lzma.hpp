// Decompresses LZMA, in which the library has the text of its CUDA kernels: modules of different element
// types repeat each other beyond the 32 KB in which DEFLATE looks back, and take a third of the space.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace bngrad::cuda {

// A raw stream (Python: lzma.FORMAT_RAW) of `size` bytes of text, with lc = lp = pb = 0. Throws Failure if it
// is not one.
std::string DecompressLzma(const uint8_t* stream, size_t stream_size, size_t size);

}  // namespace bngrad::cuda
