// The arguments that all op functions of the C ABI share, checked.
#pragma once
#include <cstdint>
#include <string>

#include "bngrad.h"
#include "c_api/arrays.hpp"
#include "core/element_type.hpp"
#include "core/error.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"

namespace bngrad {

inline Layout ToLayout(const bngrad_layout* layout) {
  if (layout == nullptr) throw InvalidArgument("layout is null; expected a bngrad_layout");
  const auto check_count = [](const char* name, int32_t count, int32_t least, int32_t most) {
    if (count >= least && count <= most) return;
    throw InvalidArgument(std::string(name) + " is " + std::to_string(count) + "; expected " +
                          std::to_string(least) + " to " + std::to_string(most));
  };
  const auto read = [](const char* name, const int64_t* values, int32_t count) {
    if (count > 0 && values == nullptr) {
      throw InvalidArgument(std::string(name) + " is null; expected an array of " + std::to_string(count) +
                            " values");
    }
    return MakeShape(name, values, count);
  };
  // Both counts before any array is read: a count that is wrong says nothing about the size of its array.
  check_count("rank", layout->rank, 1, kMaxRank);
  check_count("axes_count", layout->axes_count, 0, layout->rank);
  return MakeLayout(read("dims", layout->dims, layout->rank), read("axes", layout->axes, layout->axes_count));
}

inline Types ToTypes(const bngrad_layout& layout) {
  const Types types = {static_cast<ElementType>(layout.type), static_cast<ElementType>(layout.scale_type),
                       static_cast<ElementType>(layout.stat_type)};
  if (!IsSupported(types)) {
    throw InvalidArgument("types " + std::to_string(layout.type) + ", " + std::to_string(layout.scale_type) +
                          ", " + std::to_string(layout.stat_type) +
                          " of X, scale and mean are not supported; expected 1 (float), 10 (float16), 11 "
                          "(double) or 16 (bfloat16) for X, and the same or 1 for scale and mean");
  }
  return types;
}

// The flag as a bool. Throws unless it is 0 or 1.
inline bool ToBool(const char* name, int32_t value) {
  if (value == 0 || value == 1) return value == 1;
  throw InvalidArgument(std::string(name) + " is " + std::to_string(value) + "; expected 0 or 1");
}

struct Call {
  // Throws InvalidArgument.
  Call(const bngrad_layout* c_layout, int32_t num_threads)
      : layout(ToLayout(c_layout)), types(ToTypes(*c_layout)), arrays(layout, types), threads(num_threads) {}

  const Layout layout;
  const Types types;
  Arrays arrays;
  PoolThreads threads;
};

}  // namespace bngrad
