// Element types, numbered as in ONNX (TensorProto.DataType) and ONNX Runtime, and per-channel arrays (scale,
// mean, ...) whose type is known at run time only. Per-channel values are always computed in double.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "kernels/kernel.h"

namespace bngrad {

enum class ElementType : int32_t { kFloat = 1, kFloat16 = 10, kDouble = 11, kBFloat16 = 16 };

constexpr ElementType kElementTypes[] = {ElementType::kFloat, ElementType::kDouble, ElementType::kFloat16,
                                         ElementType::kBFloat16};

// The types of X, scale and mean: type variables T, T1 and T2 of the ONNX specification.
struct Types {
  ElementType data, scale, stat;
};

// T is any of kElementTypes; T1 and T2 are each T or float.
bool IsSupported(const Types& types);

// The type that elements of type T are computed in: double for double, else float.
constexpr ElementType ArithmeticOf(ElementType type) {
  return type == ElementType::kDouble ? ElementType::kDouble : ElementType::kFloat;
}

size_t SizeOf(ElementType type);

const TypeKernels& KernelsFor(const KernelTable& table, ElementType type);

class ConstValues {
 public:
  ConstValues(const void* data, ElementType type) : data_(data), type_(type) {}
  // Float, the usual type, is inlined.
  double operator[](int64_t i) const {
    return type_ == ElementType::kFloat ? static_cast<const float*>(data_)[i] : Converted(i);
  }
  // Sets values[i] to channel first + i, for i < count.
  void Read(int64_t first, int64_t count, double* values) const;

 private:
  double Converted(int64_t i) const;

  const void* data_;
  ElementType type_;
};

// An output. Without data it was not requested, and writes are ignored. Values are rounded once.
class Values {
 public:
  Values(void* data, ElementType type) : data_(data), type_(type) {}
  bool requested() const { return data_ != nullptr; }
  void Set(int64_t i, double value) const {
    if (requested() && type_ == ElementType::kFloat) {
      static_cast<float*>(data_)[i] = static_cast<float>(value);
    } else if (requested()) {
      SetConverted(i, value);
    }
  }
  // Sets channel first + i to values[i], for i < count.
  void Write(int64_t first, int64_t count, const double* values) const;

 private:
  void SetConverted(int64_t i, double value) const;

  void* data_;
  ElementType type_;
};

}  // namespace bngrad
