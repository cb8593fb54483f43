// A vector of fixed capacity that never allocates: allocation is most of the cost of a small op.
#pragma once
#include <algorithm>
#include <cstddef>

namespace bngrad {

// The capacity is not checked: callers keep sizes within it.
template <class T, size_t kCapacity>
class FixedVector {
 public:
  static constexpr size_t capacity() { return kCapacity; }

  // Leaves the storage uninitialized: a run of an op constructs about ten of these.
  FixedVector() {}
  explicit FixedVector(size_t size) : size_(size) { std::fill_n(values_, size, T()); }

  // New values are uninitialized.
  void resize(size_t size) { size_ = size; }
  T& append_uninitialized() { return values_[size_++]; }
  void push_back(const T& value) { values_[size_++] = value; }
  void pop_back() { --size_; }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T* data() { return values_; }
  const T* data() const { return values_; }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  T& back() { return values_[size_ - 1]; }
  T* begin() { return values_; }
  T* end() { return values_ + size_; }
  const T* begin() const { return values_; }
  const T* end() const { return values_ + size_; }

  friend bool operator!=(const FixedVector& a, const FixedVector& b) {
    return !std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  T values_[kCapacity];
  size_t size_ = 0;
};

}  // namespace bngrad
