// Checks of the attributes of convolutions and pools.
#pragma once
#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "core/layout.hpp"

namespace bngrad {

// Throws InvalidArgument unless there are `count` values, of `least` or more.
inline void CheckEach(const char* name, const Shape& values, size_t count, int64_t least) {
  bool fits = values.size() == count;
  for (const int64_t value : values) fits = fits && value >= least && value <= INT32_MAX;
  if (fits) return;
  throw InvalidArgument(std::string("attribute ") + name + " is " + ToString(values) + "; expected " +
                        std::to_string(count) + " values of " + std::to_string(least) + " or more");
}

}  // namespace bngrad
