// The scratch memory of a sweep: a slot per active tile with its sums, centers and factors.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/small_buffer.hpp"

namespace bngrad {

template <class Arithmetic>
class Scratch {
 public:
  // The number of values of each kind per slot. They are uninitialized.
  Scratch(int64_t sums, int64_t center, int64_t factors)
      : center_at_(Lines(sums * kDouble)),
        factors_at_(center_at_ + Lines(center * kDouble)),
        slot_size_(Apart(factors_at_ + Lines(factors * static_cast<int64_t>(sizeof(Arithmetic))))) {}

  // Throws std::bad_alloc.
  void Allocate(int64_t slots) { bytes_.Allocate(static_cast<size_t>(slots * slot_size_)); }

  double* Sums(int64_t slot) { return At<double>(slot, 0); }
  double* Center(int64_t slot) { return At<double>(slot, center_at_); }
  Arithmetic* Factors(int64_t slot) { return At<Arithmetic>(slot, factors_at_); }

 private:
  static constexpr int64_t kDouble = sizeof(double), kLine = kCacheLine, kPair = 2 * kLine;
  static constexpr size_t kInlineBytes = 12 * kPair;

  static constexpr int64_t Lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  // Rounds up so that slots of different threads do not share a pair of cache lines, which would be false
  // sharing: prefetchers fetch lines in pairs.
  static constexpr int64_t Apart(int64_t bytes) { return (bytes + kPair - 1) / kPair * kPair + kPair; }

  template <class T>
  T* At(int64_t slot, int64_t offset) {
    return reinterpret_cast<T*>(bytes_.data() + slot * slot_size_ + offset);
  }

  const int64_t center_at_, factors_at_, slot_size_;  // in bytes
  SmallBuffer<unsigned char, kInlineBytes> bytes_;
};

}  // namespace bngrad
