// What a sweep keeps of the tiles that it works on: their sums, centers and factors, in a slot for each tile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/small_buffer.hpp"

namespace bngrad {

template <class Arithmetic>
class Scratch {
 public:
  // How many numbers of each kind a slot has. Every task writes its own before it reads them.
  Scratch(int64_t sums, int64_t center, int64_t factors)
      : center_at_(Lines(sums * kDouble)),
        factors_at_(center_at_ + Lines(center * kDouble)),
        slot_size_(Apart(factors_at_ + Lines(factors * static_cast<int64_t>(sizeof(Arithmetic))))) {}

  // Throws if there is no memory; nothing else does.
  void Allocate(int64_t slots) { bytes_.Allocate(static_cast<size_t>(slots * slot_size_)); }

  double* Sums(int64_t slot) { return At<double>(slot, 0); }
  double* Center(int64_t slot) { return At<double>(slot, center_at_); }
  Arithmetic* Factors(int64_t slot) { return At<Arithmetic>(slot, factors_at_); }

 private:
  static constexpr int64_t kDouble = sizeof(double), kLine = kCacheLine, kPair = 2 * kLine;
  static constexpr size_t kFew = 12 * kPair;

  static constexpr int64_t Lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  // Bytes for slots of at least so many that no two of them, which are of different threads, share a pair of
  // cache lines: a core that writes to one takes it from the other.
  static constexpr int64_t Apart(int64_t bytes) { return (bytes + kPair - 1) / kPair * kPair + kPair; }

  template <class T>
  T* At(int64_t slot, int64_t offset) {
    return reinterpret_cast<T*>(bytes_.get() + slot * slot_size_ + offset);
  }

  const int64_t center_at_, factors_at_, slot_size_;  // in bytes
  FewOrMany<unsigned char, kFew> bytes_;
};

}  // namespace bngrad
