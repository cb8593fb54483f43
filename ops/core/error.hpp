// Errors are exceptions inside the library. The two interfaces (ort/ and c_api/) turn every exception into a
// status with ReportErrors, so that none crosses an ABI.
#pragma once
#include <exception>
#include <new>
#include <stdexcept>

namespace bngrad {

// An argument of the caller is wrong. The message states what was got and what was expected.
struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Any other error.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class ErrorKind { kInvalidArgument, kFailure };

// Runs body(). For an exception returns report(kind, message), else a value-initialized result.
template <class Body, class Report>
auto ReportErrors(const Body& body, const Report& report) noexcept -> decltype(report(ErrorKind(), "")) {
  try {
    body();
    return {};
  } catch (const InvalidArgument& e) {
    return report(ErrorKind::kInvalidArgument, e.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorKind::kFailure, "out of memory");
  } catch (const std::exception& e) {
    return report(ErrorKind::kFailure, e.what());
  } catch (...) {
    return report(ErrorKind::kFailure, "unknown error: an exception that is not a std::exception");
  }
}

}  // namespace bngrad
