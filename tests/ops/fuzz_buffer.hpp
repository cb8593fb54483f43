// Arrays for calls of bngrad.h, of every element type, in heap blocks of exactly their size.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "bngrad.h"

// splitmix64: a case is a function of its seed and index on every platform.
class Random {
 public:
  Random(uint64_t seed, uint64_t index) : state_(seed * 0x9e3779b97f4a7c15u + index) { Next(); }
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  double From0To1() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  template <class T, size_t kSize>
  const T& Of(const T (&values)[kSize]) {
    return values[Below(static_cast<int64_t>(kSize))];
  }

 private:
  uint64_t state_;
};

// Out-of-bounds writes are detected by the address sanitizer or, without it, by a margin with a pattern.
// `skip` bytes before the data vary its alignment.
class Buffer {
 public:
  explicit Buffer(size_t size, size_t skip = 0)
      : base_(static_cast<unsigned char*>(std::malloc(skip + size + kMargin))), size_(size), skip_(skip) {
    if (base_ == nullptr) std::abort();
    std::memset(base_, kPattern, skip_ + size_ + kMargin);
  }
  ~Buffer() { std::free(base_); }
  Buffer(Buffer&& other) noexcept : base_(other.base_), size_(other.size_), skip_(other.skip_) {
    other.base_ = nullptr;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;

  unsigned char* data() const { return base_ + skip_; }
  size_t size() const { return size_; }
  bool MarginsIntact() const { return Is(0, skip_) && Is(skip_ + size_, kMargin); }
  bool Untouched() const { return Is(skip_, size_); }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kMargin = 0;
#else
  static constexpr size_t kMargin = 64;
#endif
  static constexpr unsigned char kPattern = 0x5a;
  bool Is(size_t begin, size_t count) const {
    for (size_t i = begin; i < begin + count; ++i) {
      if (base_[i] != kPattern) return false;
    }
    return true;
  }
  unsigned char* base_;
  size_t size_, skip_;
};

inline size_t SizeOf(int32_t type) {
  return type == BNGRAD_DOUBLE ? sizeof(double) : type == BNGRAD_FLOAT ? sizeof(float) : sizeof(uint16_t);
}

// The unit roundoff of a type.
inline double UnitOf(int32_t type) {
  return type == BNGRAD_DOUBLE    ? 0x1p-53
         : type == BNGRAD_FLOAT   ? 0x1p-24
         : type == BNGRAD_FLOAT16 ? 0x1p-11
                                  : 0x1p-8;
}

template <class T>
T Read(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Element i as a double, decoded by the definition of its format.
inline double Get(const unsigned char* data, int32_t type, int64_t i) {
  const unsigned char* const at = data + static_cast<size_t>(i) * SizeOf(type);
  if (type == BNGRAD_DOUBLE) return Read<double>(at);
  if (type == BNGRAD_FLOAT) return Read<float>(at);
  const unsigned bits = Read<uint16_t>(at);
  const int exponent_bits = type == BNGRAD_FLOAT16 ? 5 : 8, mantissa_bits = 15 - exponent_bits;
  const int most = (1 << exponent_bits) - 1, bias = most / 2;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & most;
  const double mantissa = (bits & ((1u << mantissa_bits) - 1)) * std::ldexp(1.0, -mantissa_bits);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == most) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return sign * (exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, exponent - bias));
}

// Stores a value of moderate size, truncated to the type, which needs no correct rounding.
inline void Put(unsigned char* data, int32_t type, int64_t i, double value) {
  unsigned char* const at = data + static_cast<size_t>(i) * SizeOf(type);
  const float single = static_cast<float>(value);
  const uint32_t bits = Read<uint32_t>(reinterpret_cast<const unsigned char*>(&single));
  if (type == BNGRAD_DOUBLE) {
    std::memcpy(at, &value, sizeof(value));
  } else if (type == BNGRAD_FLOAT) {
    std::memcpy(at, &single, sizeof(single));
  } else if (type == BNGRAD_BFLOAT16) {
    const uint16_t upper = static_cast<uint16_t>(bits >> 16);
    std::memcpy(at, &upper, sizeof(upper));
  } else {
    const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
    const uint32_t half = exponent <= 0 ? 0 : static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 1023);
    const uint16_t whole = static_cast<uint16_t>(bits >> 31 << 15 | half);
    std::memcpy(at, &whole, sizeof(whole));
  }
}

// Stores a special value: zero, the smallest subnormal and normal, the largest finite, infinity, NaN.
inline void PutSpecial(unsigned char* data, int32_t type, int64_t i, Random& random) {
  unsigned char* const at = data + static_cast<size_t>(i) * SizeOf(type);
  const size_t bytes = SizeOf(type);
  const int mantissa_bits = type == BNGRAD_DOUBLE    ? 52
                            : type == BNGRAD_FLOAT   ? 23
                            : type == BNGRAD_FLOAT16 ? 10
                                                     : 7;
  const uint64_t sign_bit = uint64_t{1} << (8 * bytes - 1), lowest = uint64_t{1} << mantissa_bits;
  const uint64_t infinity = sign_bit - lowest;
  const uint64_t choices[] = {0, 1, lowest, infinity - 1, infinity, infinity | lowest >> 1};
  const uint64_t bits = random.Of(choices) | (random.OneIn(2) ? sign_bit : 0);
  std::memcpy(at, &bits, bytes);  // little-endian machines only
}
