// Inside the library errors are exceptions; the two doors (register.cc's ops, c_api.cc) turn every one of
// them into a status, so that none crosses an ABI.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace bngrad {

// The caller's fault: the message says what was expected and what came.
struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Anything else that stops an op.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Shape = std::vector<int64_t>;

// "[2,3,4]"
inline std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace bngrad
