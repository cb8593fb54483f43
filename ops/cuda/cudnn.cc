#include "cuda/cudnn.hpp"

#include <string>

#include "core/error.hpp"
#include "cuda/library.hpp"

namespace bngrad::cuda {
namespace {

constexpr size_t kOldestVersion = 90000;  // 9.0.0

template <class Signature>
void Find(void* library, const char* library_name, const char* name, Signature* function) {
  *function = reinterpret_cast<Signature>(SymbolOf(library, name));
  if (*function != nullptr) return;
  throw Failure(std::string(library_name) + " has no " + name +
                ": expected cuDNN 9.0 or newer. Install it, or leave out --conv-grad");
}

// Of 9 and later; before, a major version was 1000.
std::string VersionText(size_t version) {
  const size_t major = version >= 10000 ? 10000 : 1000;
  return std::to_string(version / major) + "." + std::to_string(version % major / 100);
}

}  // namespace

Cudnn::Cudnn(const char* library, const char* other) {
  void* handle = LoadedLibrary(library);
  if (handle == nullptr) handle = OpenLibrary(library);
  if (handle == nullptr) {
    throw Failure(std::string("cuDNN is not installed: ") + library +
                  " cannot be loaded. Install cuDNN 9, or leave out --conv-grad");
  }
  size_t (*version)() = nullptr;
  Find(handle, library, "cudnnGetVersion", &version);
  if (version() < kOldestVersion) {
    throw Failure("cuDNN has version " + VersionText(version()) +
                  "; expected 9.0 or newer. Install it, or leave out --conv-grad");
  }
  Find(handle, library, "cudnnGetErrorString", &cudnnGetErrorString);
#define BNGRAD_FIND(name, ...) Find(handle, library, #name, &name);
  BNGRAD_CUDNN_FUNCTIONS(BNGRAD_FIND)
#undef BNGRAD_FIND
  is_only_ = LoadedLibrary(other) == nullptr;
}

void Cudnn::Check(int status, const char* function) const {
  if (status == 0) return;
  const char* const text = cudnnGetErrorString(status);
  throw Failure(std::string(function) + " failed with " + (text == nullptr ? "unknown error" : text) + " (" +
                std::to_string(status) + ")");
}

void* Cudnn::HandleOf(void* context, void* stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  void*& kept = handles_[{context, stream}];
  if (kept == nullptr) {
    void* handle = nullptr;
    BNGRAD_CUDNN(*this, cudnnCreate, &handle);
    kept = handle;
  }
  return kept;
}

}  // namespace bngrad::cuda
