// Converts between OrtStatus and exceptions.
#pragma once
#include <string>

#include "core/error.hpp"
#include "ort/abi.hpp"

namespace bngrad {

// Throws Failure with the message of a failed call of ONNX Runtime. Releases the status.
inline void Check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  std::string message;
  try {
    message = ort::GetErrorMessage(api, status);
  } catch (...) {
    ort::ReleaseStatus(api, status);
    throw;
  }
  ort::ReleaseStatus(api, status);
  throw Failure(message);
}

// Runs body. Returns null, or for an exception a status whose message starts with where().
template <class Where, class Body>
OrtStatus* Guard(const OrtApi* api, const Where& where, const Body& body) noexcept {
  return ReportErrors(body, [&](ErrorKind kind, const char* what) {
    const ort::ErrorCode code = kind == ErrorKind::kInvalidArgument ? ort::kInvalidArgument : ort::kFail;
    try {
      return ort::CreateStatus(api, code, (where() + ": " + what).c_str());
    } catch (...) {
      return ort::CreateStatus(api, code, what);
    }
  });
}

}  // namespace bngrad
