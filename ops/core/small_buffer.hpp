// A buffer with inline storage for small sizes: allocation is most of the cost of a small op.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/kernel.h"

namespace bngrad {

// Up to kInlineSize values are stored in the object, more on the heap. Values are uninitialized. They start
// at a cache line: vector loads and stores that cross one are slow.
template <class T, size_t kInlineSize>
class SmallBuffer {
 public:
  // Throws std::bad_alloc.
  void Allocate(size_t count) {
    if (count <= kInlineSize) {
      data_ = inline_;
      return;
    }
    heap_.reset(new T[count + kCacheLine / sizeof(T)]);
    const uintptr_t past = reinterpret_cast<uintptr_t>(heap_.get()) % kCacheLine;
    data_ = heap_.get() + (kCacheLine - past) / sizeof(T);
  }
  T* data() { return data_; }

 private:
  alignas(kCacheLine) T inline_[kInlineSize];
  std::unique_ptr<T[]> heap_;
  T* data_ = nullptr;
};

}  // namespace bngrad
