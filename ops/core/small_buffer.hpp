// Room for values without an allocation if they are few: an op of a few elements has little else to do.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/kernel.h"

namespace bngrad {

// The values are uninitialized. They begin at a cache line, for vectors that cross one are slow to load and
// store.
template <class T, size_t kFew>
class FewOrMany {
 public:
  void Allocate(size_t count) {
    if (count <= kFew) {
      all_ = few_;
      return;
    }
    many_.reset(new T[count + kCacheLine / sizeof(T)]);
    const uintptr_t past = reinterpret_cast<uintptr_t>(many_.get()) % kCacheLine;
    all_ = many_.get() + (kCacheLine - past) / sizeof(T);
  }
  T* get() { return all_; }

 private:
  alignas(kCacheLine) T few_[kFew];
  std::unique_ptr<T[]> many_;
  T* all_ = nullptr;
};

}  // namespace bngrad
