// What a sweep keeps of the tiles that it works on: their sums, centers and factors, in a slot for each tile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/kernel.h"

namespace bngrad {

// Uninitialized numbers, without an allocation if they are few: an op of a few elements has little else to
// do. They begin at a cache line, for vectors that cross one are slow to load and store.
template <class T, size_t kFew>
class Numbers {
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
  T* operator+(int64_t i) { return all_ + i; }

 private:
  alignas(kCacheLine) T few_[kFew];
  std::unique_ptr<T[]> many_;
  T* all_ = nullptr;
};

template <class Arithmetic>
class Scratch {
 public:
  // How many numbers of each kind a slot has. Every task writes its own before it reads them.
  Scratch(int64_t sums, int64_t center, int64_t factors)
      : sums_size_(Apart(sums)), center_size_(Apart(center)), factors_size_(Apart(factors)) {}

  // Throws if there is no memory; nothing else does.
  void Allocate(int64_t slots) {
    sums_.Allocate(static_cast<size_t>(slots * sums_size_));
    center_.Allocate(static_cast<size_t>(slots * center_size_));
    factors_.Allocate(static_cast<size_t>(slots * factors_size_));
  }

  double* Sums(int64_t slot) { return sums_ + slot * sums_size_; }
  double* Center(int64_t slot) { return center_ + slot * center_size_; }
  Arithmetic* Factors(int64_t slot) { return factors_ + slot * factors_size_; }

 private:
  static constexpr int64_t kPair = 32;  // of cache lines, in floats
  static constexpr size_t kFew = 2 * kPair;

  // Numbers for slots of at least so many that no two of them, which are of different threads, share a pair
  // of cache lines: a core that writes to one takes it from the other.
  static constexpr int64_t Apart(int64_t numbers) { return (numbers + kPair - 1) / kPair * kPair + kPair; }

  const int64_t sums_size_, center_size_, factors_size_;  // of a slot
  Numbers<double, kFew> sums_, center_;
  Numbers<Arithmetic, kFew> factors_;
};

}  // namespace bngrad
