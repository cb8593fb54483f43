// The errors of all functions of the C ABI: exceptions become a status and a message. Checks of plain
// arguments.
#pragma once
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "bngrad.h"
#include "core/element_type.hpp"
#include "core/error.hpp"

namespace bngrad {

struct ErrorBuffer {
  char* text;
  size_t size;
  int32_t Set(bngrad_status status, const char* message) const {
    if (text != nullptr && size > 0) std::snprintf(text, size, "%s", message);
    return status;
  }
};

template <class Body>
int32_t Guard(const ErrorBuffer& error, const Body& body) noexcept {
  return ReportErrors(body, [&](ErrorKind kind, const char* message) {
    return error.Set(kind == ErrorKind::kInvalidArgument ? BNGRAD_INVALID_ARGUMENT : BNGRAD_FAILED, message);
  });
}

inline void CheckCount(int64_t count) {
  constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(double));
  if (count >= 0 && count <= kMaxCount) return;
  throw InvalidArgument("count is " + std::to_string(count) + "; expected 0 to " + std::to_string(kMaxCount));
}

inline ElementType ToFloatOrDouble(int32_t type) {
  if (type == BNGRAD_FLOAT || type == BNGRAD_DOUBLE) return static_cast<ElementType>(type);
  throw InvalidArgument("type is " + std::to_string(type) + "; expected 1 (float) or 11 (double)");
}

}  // namespace bngrad
