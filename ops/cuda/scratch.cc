#include "cuda/scratch.hpp"

#include <algorithm>

namespace bngrad::cuda {
namespace {

constexpr size_t kMaxSpare = size_t{64} << 20;

}  // namespace

StreamScratch::~StreamScratch() {
  for (void* const memory : outgrown_) allocator_.Free(memory);
  for (const auto& stream : buffers_) {
    for (const Buffer& buffer : stream.second) {
      if (buffer.memory != nullptr) allocator_.Free(buffer.memory);
    }
  }
}

void* StreamScratch::Run::Take(size_t size) {
  if (taken_ == buffers_.size()) buffers_.emplace_back();
  Buffer& buffer = buffers_[taken_];
  if (buffer.memory == nullptr || buffer.size < size) {
    const size_t grown = std::max({size, std::min(2 * buffer.size, size + kMaxSpare), size_t{1}});
    scratch_.outgrown_.reserve(scratch_.outgrown_.size() + 1);
    void* const memory = scratch_.allocator_.Allocate(grown);
    if (buffer.memory != nullptr) scratch_.outgrown_.push_back(buffer.memory);
    buffer = {memory, grown};
  }
  ++taken_;
  return buffer.memory;
}

}  // namespace bngrad::cuda
