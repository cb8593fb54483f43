// What a sweep keeps of the tiles that it works on: their sums, centers and factors, in a slot for each tile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "few_or_many.hpp"

namespace bngrad {

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

  double* Sums(int64_t slot) { return sums_.get() + slot * sums_size_; }
  double* Center(int64_t slot) { return center_.get() + slot * center_size_; }
  Arithmetic* Factors(int64_t slot) { return factors_.get() + slot * factors_size_; }

 private:
  static constexpr int64_t kPair = 32;  // of cache lines, in floats
  static constexpr size_t kFew = 2 * kPair;

  // Numbers for slots of at least so many that no two of them, which are of different threads, share a pair
  // of cache lines: a core that writes to one takes it from the other.
  static constexpr int64_t Apart(int64_t numbers) { return (numbers + kPair - 1) / kPair * kPair + kPair; }

  const int64_t sums_size_, center_size_, factors_size_;  // of a slot
  FewOrMany<double, kFew> sums_, center_;
  FewOrMany<Arithmetic, kFew> factors_;
};

}  // namespace bngrad
