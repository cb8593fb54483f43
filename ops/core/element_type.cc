#include "core/element_type.hpp"

#include <cmath>
#include <cstring>

namespace bngrad {
namespace {

#include "kernels/float16-inl.h"

// The float next to value in the direction of zero, with its last bit set unless it is exact: rounded
// further, to half the bits or fewer, it gives what value itself would.
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

// Where they are float, the loops are the compiler's to make vectors of: hence no call in them.
void ConstValues::Read(int64_t first, int64_t count, double* values) const {
  if (type_ == ElementType::kFloat) {
    const float* const floats = static_cast<const float*>(data_) + first;
    for (int64_t i = 0; i < count; ++i) values[i] = floats[i];
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = Other(first + i);
  }
}

double ConstValues::Other(int64_t i) const {
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
  if (!wanted()) return;
  if (type_ == ElementType::kFloat) {
    float* const floats = static_cast<float*>(data_) + first;
    for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) SetOther(first + i, values[i]);
  }
}

void Values::SetOther(int64_t i, double value) const {
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
