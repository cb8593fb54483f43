// Elements of X, a vector at a time, and values of channels, whose type is an argument. What is computed for
// a channel is double, and rounded once.
#pragma once
#include "cuda/kernels/device.h"

namespace bngrad::cuda {

template <class T>
struct ArithmeticOf {
  using Type = float;
};
template <>
struct ArithmeticOf<double> {
  using Type = double;
};
template <class T>
using Arithmetic = typename ArithmeticOf<T>::Type;

template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
  T values[V];
};

// Elements of a vector of the wide kernels.
template <class T>
constexpr int kWide = sizeof(T) == sizeof(double) ? 2 : 4;

template <class To, class From>
BNGRAD_DEVICE To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "of equal size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

BNGRAD_DEVICE float Widened(float value) { return value; }
BNGRAD_DEVICE double Widened(double value) { return value; }
BNGRAD_DEVICE float Widened(BFloat16 value) {
  return BitCast<float>(static_cast<uint32_t>(value.bits) << 16);
}

BNGRAD_DEVICE void Narrow(float value, float* to) { *to = value; }
BNGRAD_DEVICE void Narrow(double value, double* to) { *to = value; }
BNGRAD_DEVICE void Narrow(float value, BFloat16* to) {
  const uint32_t bits = BitCast<uint32_t>(value);
  // Rounding the bits of a NaN could carry into infinity or zero.
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if defined(__CUDA__)
BNGRAD_DEVICE float Widened(Float16 value) { return static_cast<float>(BitCast<_Float16>(value.bits)); }
BNGRAD_DEVICE void Narrow(float value, Float16* to) {
  to->bits = BitCast<uint16_t>(static_cast<_Float16>(value));
}
#else
float Widened(Float16 value);
void Narrow(float value, Float16* to);
#endif

// Round to odd: truncates toward zero and sets the last bit if inexact, so that rounding to 16 bits
// afterwards gives the same as rounding the double.
BNGRAD_DEVICE float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (value != value || back == value) return nearest;
  const uint32_t bits = BitCast<uint32_t>(nearest);
  const bool beyond = (back < 0 ? -back : back) > (value < 0 ? -value : value);
  return BitCast<float>((beyond ? bits - 1 : bits) | 1);
}

// The types of per-channel arrays, numbered as in core/element_type.hpp.
enum ValueType : int32_t { kValueFloat = 1, kValueFloat16 = 10, kValueDouble = 11, kValueBFloat16 = 16 };

// An array of a value a channel; null: an output that is not wanted.
struct Values {
  void* data;
  int32_t type;
};

// Values of channels are few: calls keep the text of the kernels short.
BNGRAD_DEVICE_CALL double GetValue(const void* data, int32_t type, int64_t i) {
  switch (type) {
    case kValueFloat:
      return static_cast<const float*>(data)[i];
    case kValueDouble:
      return static_cast<const double*>(data)[i];
    case kValueFloat16:
      return Widened(static_cast<const Float16*>(data)[i]);
    default:
      return Widened(static_cast<const BFloat16*>(data)[i]);
  }
}

BNGRAD_DEVICE_CALL void SetValue(void* data, int32_t type, int64_t i, double value) {
  switch (type) {
    case kValueFloat:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case kValueDouble:
      static_cast<double*>(data)[i] = value;
      return;
    case kValueFloat16:
      return Narrow(RoundToOdd(value), static_cast<Float16*>(data) + i);
    default:
      return Narrow(RoundToOdd(value), static_cast<BFloat16*>(data) + i);
  }
}

BNGRAD_DEVICE double Get(const Values& array, int64_t i) { return GetValue(array.data, array.type, i); }

BNGRAD_DEVICE void Set(const Values& array, int64_t i, double value) {
  if (array.data != nullptr) SetValue(array.data, array.type, i, value);
}

}  // namespace bngrad::cuda
