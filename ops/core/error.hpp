// Inside the library errors are exceptions; the two doors (register.cc's ops, c_api.cc) turn every one of
// them into a status, so that none crosses an ABI.
#pragma once
#include <stdexcept>

namespace bngrad {

// The caller's fault: the message says what was expected and what came.
struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Anything else that stops an op.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace bngrad
