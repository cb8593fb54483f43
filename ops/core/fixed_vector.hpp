// A list of a few values that needs no memory of its own: allocation is most of what a small op costs.
#pragma once
#include <algorithm>
#include <cstddef>

namespace bngrad {

template <class T, size_t kCapacity>
class ShortList {
 public:
  static constexpr size_t capacity() { return kCapacity; }

  // Only values that are there are ever written: an op of a few elements makes some ten lists.
  ShortList() {}
  // `size` zeros, to be filled.
  explicit ShortList(size_t size) : size_(size) { std::fill_n(values_, size, T()); }

  // At most the capacity, as all sizes; new values hold what they held, and are to be written to.
  void resize(size_t size) { size_ = size; }
  T& grow() { return values_[size_++]; }
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

  friend bool operator!=(const ShortList& a, const ShortList& b) {
    return !std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  T values_[kCapacity];
  size_t size_ = 0;
};

}  // namespace bngrad
