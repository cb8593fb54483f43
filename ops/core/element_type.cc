#include "core/element_type.hpp"

#include <cmath>
#include <cstring>

namespace bngrad {
namespace {

#include "kernels/float16-inl.h"

// Round to odd: truncates toward zero and sets the last bit if inexact. Rounding the result again to half the
// bits or fewer gives the same as rounding the value directly.
float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = BitsOf(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return FloatOf(bits | 1);
}

template <class T>
void SetAs(void* data, int64_t i, double value) {
  FromFloat(RoundToOdd(value), static_cast<T*>(data) + i);
}

}  // namespace

bool IsSupported(const Types& types) {
  bool known = false;
  for (const ElementType type : kElementTypes) known = known || types.data == type;
  const auto fits = [&](ElementType type) { return type == types.data || type == ElementType::kFloat; };
  return known && fits(types.scale) && fits(types.stat);
}

size_t SizeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return sizeof(float);
    case ElementType::kDouble:
      return sizeof(double);
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      break;
  }
  return sizeof(uint16_t);
}

const TypeKernels& KernelsFor(const KernelTable& table, ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return table.float32;
    case ElementType::kDouble:
      return table.float64;
    case ElementType::kFloat16:
      return table.float16;
    case ElementType::kBFloat16:
      break;
  }
  return table.bfloat16;
}

// No function calls in the float loops: the compiler vectorizes them.
void ConstValues::Read(int64_t first, int64_t count, double* values) const {
  if (type_ == ElementType::kFloat) {
    const float* const floats = static_cast<const float*>(data_) + first;
    for (int64_t i = 0; i < count; ++i) values[i] = floats[i];
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = Converted(first + i);
  }
}

double ConstValues::Converted(int64_t i) const {
  switch (type_) {
    case ElementType::kDouble:
      return static_cast<const double*>(data_)[i];
    case ElementType::kFloat16:
      return ToFloat(static_cast<const Float16*>(data_)[i]);
    case ElementType::kFloat:
    case ElementType::kBFloat16:
      break;
  }
  return ToFloat(static_cast<const BFloat16*>(data_)[i]);
}

void Values::Write(int64_t first, int64_t count, const double* values) const {
  if (!requested()) return;
  if (type_ == ElementType::kFloat) {
    float* const floats = static_cast<float*>(data_) + first;
    for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) SetConverted(first + i, values[i]);
  }
}

void Values::SetConverted(int64_t i, double value) const {
  switch (type_) {
    case ElementType::kFloat:
      return;
    case ElementType::kDouble:
      static_cast<double*>(data_)[i] = value;
      return;
    case ElementType::kFloat16:
      return SetAs<Float16>(data_, i, value);
    case ElementType::kBFloat16:
      return SetAs<BFloat16>(data_, i, value);
  }
}

}  // namespace bngrad
