// Element types, numbered as in ONNX (TensorProto.DataType) and ONNX Runtime, and arrays of one value a
// channel whose type is known at run time only: scale, mean and the like, always computed in double.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "kernels/kernel.h"

namespace bngrad {

enum class ElementType : int32_t { kFloat = 1, kFloat16 = 10, kDouble = 11, kBFloat16 = 16 };

constexpr ElementType kElementTypes[] = {ElementType::kFloat, ElementType::kDouble, ElementType::kFloat16,
                                         ElementType::kBFloat16};

// The types of an op's X, scale and mean: T, T1, T2 of the ONNX specification.
struct Types {
  ElementType data, scale, stat;
};

// T is any of kElementTypes, T1 and T2 are T or float each.
bool IsSupported(const Types& types);

// What T is computed in: double for double, else float.
constexpr ElementType ArithmeticOf(ElementType type) {
  return type == ElementType::kDouble ? ElementType::kDouble : ElementType::kFloat;
}

size_t SizeOf(ElementType type);

const TypeKernels& KernelsFor(const KernelTable& table, ElementType type);

class ConstValues {
 public:
  ConstValues(const void* data, ElementType type) : data_(data), type_(type) {}
  // Nearly always float, of which a call would take longer than the rest.
  double operator[](int64_t i) const {
    return type_ == ElementType::kFloat ? static_cast<const float*>(data_)[i] : Other(i);
  }
  // values[i] of channel first + i.
  void Read(int64_t first, int64_t count, double* values) const;

 private:
  double Other(int64_t i) const;

  const void* data_;
  ElementType type_;
};

// An output that nobody asked for has no data, and swallows what is set. What is set is rounded once.
class Values {
 public:
  Values(void* data, ElementType type) : data_(data), type_(type) {}
  bool wanted() const { return data_ != nullptr; }
  void Set(int64_t i, double value) const {
    if (wanted() && type_ == ElementType::kFloat) {
      static_cast<float*>(data_)[i] = static_cast<float>(value);
    } else if (wanted()) {
      SetOther(i, value);
    }
  }
  // values[i] is channel first + i's.
  void Write(int64_t first, int64_t count, const double* values) const;

 private:
  void SetOther(int64_t i, double value) const;

  void* data_;
  ElementType type_;
};

}  // namespace bngrad
