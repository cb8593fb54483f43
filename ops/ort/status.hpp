// OrtStatus on one side, exceptions on the other.
#pragma once
#include <exception>
#include <new>
#include <string>

#include "core/error.hpp"
#include "ort/abi.hpp"

namespace bngrad {

// Throws what a call of ONNX Runtime's failed with.
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

// Runs body; an exception becomes a status whose message begins with where().
template <class Where, class Body>
OrtStatus* Guard(const OrtApi* api, const Where& where, const Body& body) noexcept {
  const auto status = [&](ort::ErrorCode code, const char* what) {
    try {
      return ort::CreateStatus(api, code, (where() + ": " + what).c_str());
    } catch (...) {
      return ort::CreateStatus(api, code, what);
    }
  };
  try {
    body();
    return nullptr;
  } catch (const InvalidArgument& e) {
    return status(ort::kInvalidArgument, e.what());
  } catch (const std::bad_alloc&) {
    return status(ort::kFail, "out of memory");
  } catch (const std::exception& e) {
    return status(ort::kFail, e.what());
  } catch (...) {
    return status(ort::kFail, "unknown error");
  }
}

}  // namespace bngrad
