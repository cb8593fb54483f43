// Element types, numbered as in ONNX (TensorProto.DataType) and ONNX Runtime, and arrays of one value a
// channel whose type is known at run time only: scale, mean and the like, always computed in double.
#pragma once
#include <cstddef>
#include <cstdint>

#include "error.hpp"
#include "kernels/kernel.h"

namespace bngrad {

enum class ElementType : int32_t { kFloat = 1, kDouble = 11 };

// The types of an op's X, scale and mean: T, T1, T2 of the ONNX specification.
struct Types {
  ElementType data, scale, stat;
};

inline bool IsSupported(const Types& types) {
  const bool known = types.data == ElementType::kFloat || types.data == ElementType::kDouble;
  return known && types.scale == types.data && types.stat == types.data;
}

inline size_t SizeOf(ElementType type) {
  return type == ElementType::kFloat ? sizeof(float) : sizeof(double);
}

inline const TypeKernels& KernelsFor(const KernelTable& table, ElementType type) {
  return type == ElementType::kFloat ? table.float32 : table.float64;
}

class ConstValues {
 public:
  ConstValues(const void* data, ElementType type) : data_(data), type_(type) {}
  double operator[](int64_t i) const {
    return type_ == ElementType::kFloat ? static_cast<double>(static_cast<const float*>(data_)[i])
                                        : static_cast<const double*>(data_)[i];
  }

 private:
  const void* data_;
  ElementType type_;
};

// An output that nobody asked for has no data, and swallows what is set.
class Values {
 public:
  Values(void* data, ElementType type) : data_(data), type_(type) {}
  bool wanted() const { return data_ != nullptr; }
  void Set(int64_t i, double value) const {
    if (!wanted()) return;
    if (type_ == ElementType::kFloat) {
      static_cast<float*>(data_)[i] = static_cast<float>(value);
    } else {
      static_cast<double*>(data_)[i] = value;
    }
  }

 private:
  void* data_;
  ElementType type_;
};

}  // namespace bngrad
