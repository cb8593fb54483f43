#include "cuda/driver.hpp"

#include "core/error.hpp"
#include "cuda/kernels/device.h"
#include "cuda/library.hpp"

namespace bngrad::cuda {
namespace {

constexpr int kOldestVersion = 9000;  // CUDA 9.0, the first with sm_70 and PTX 6.0
constexpr int kMultiprocessorCount = 16;
constexpr int kErrorLogBuffer = 5, kErrorLogSize = 6;  // options of cuModuleLoadDataEx

template <class Signature>
void Find(void* library, const char* library_name, const char* name, Signature* function) {
  *function = reinterpret_cast<Signature>(SymbolOf(library, name));
  if (*function != nullptr) return;
  throw Failure(std::string(library_name) + " has no " + name +
                ": the NVIDIA driver is too old; expected one for CUDA 9.0 or newer");
}

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Driver::Driver(const char* library, std::string (*text)(ElementType type)) : text_(text) {
  void* const handle = OpenLibrary(library);
  if (handle == nullptr) {
    throw Failure(std::string("the NVIDIA driver is not installed: ") + library +
                  " cannot be loaded. Install it, or run on the CPU");
  }
#define BNGRAD_FIND(name) Find(handle, library, #name, &api_.name)
  BNGRAD_FIND(cuInit);
  BNGRAD_FIND(cuDriverGetVersion);
  BNGRAD_FIND(cuGetErrorName);
  BNGRAD_FIND(cuGetErrorString);
  BNGRAD_FIND(cuCtxGetCurrent);
  BNGRAD_FIND(cuCtxGetDevice);
  BNGRAD_FIND(cuDeviceGetAttribute);
  BNGRAD_FIND(cuModuleLoadDataEx);
  BNGRAD_FIND(cuModuleGetFunction);
  BNGRAD_FIND(cuLaunchKernel);
  BNGRAD_FIND(cuMemsetD8Async);
#undef BNGRAD_FIND
  int version = 0;
  Check(api_.cuDriverGetVersion(&version), "cuDriverGetVersion");
  if (version < kOldestVersion) {
    throw Failure("the NVIDIA driver is for CUDA " + VersionText(version) + "; expected 9.0 or newer");
  }
  Check(api_.cuInit(0), "cuInit");
}

void Driver::Check(int error, const std::string& what) const {
  if (error == 0) return;
  const char *name = nullptr, *text = nullptr;
  if (api_.cuGetErrorName(error, &name) != 0 || name == nullptr) name = "unknown error";
  if (api_.cuGetErrorString(error, &text) != 0 || text == nullptr) text = "no description";
  throw Failure(what + " failed with " + name + " (" + std::to_string(error) + "): " + text);
}

Driver::Context Driver::CurrentContext() const {
  Context context = nullptr;
  Check(api_.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context != nullptr) return context;
  throw Failure("the calling thread has no CUDA context; expected that of the session's device");
}

int Driver::Processors() const {
  CurrentContext();
  int device = 0, count = 0;
  Check(api_.cuCtxGetDevice(&device), "cuCtxGetDevice");
  Check(api_.cuDeviceGetAttribute(&count, kMultiprocessorCount, device), "cuDeviceGetAttribute");
  return count;
}

void* Driver::Compile(ElementType module) const {
  std::vector<char> log(8192, '\0');
  int options[] = {kErrorLogBuffer, kErrorLogSize};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  void* handle = nullptr;
  const int error = api_.cuModuleLoadDataEx(&handle, text_(module).c_str(), 2, options, values);
  const std::string details = log[0] == '\0' ? "" : std::string(" (") + log.data() + ")";
  Check(error, "compiling the kernels" + details);
  return handle;
}

Driver::Function Driver::FunctionOf(ElementType type, const std::string& kernel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Module& module = modules_[{CurrentContext(), type}];
  if (module.handle == nullptr) module.handle = Compile(type);
  Function& function = module.functions[kernel];
  if (function == nullptr) Check(api_.cuModuleGetFunction(&function, module.handle, kernel.c_str()), kernel);
  return function;
}

void Driver::Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
                    void* stream, const void* argument) {
  void* arguments[] = {const_cast<void*>(argument)};
  Check(api_.cuLaunchKernel(FunctionOf(module, kernel), blocks, splits, 1, kThreads, 1, 1, 0, stream,
                            arguments, nullptr),
        "launching " + kernel);
}

void Driver::Zero(void* memory, size_t bytes, void* stream) const {
  if (bytes > 0) Check(api_.cuMemsetD8Async(memory, 0, bytes, stream), "cuMemsetD8Async");
}

}  // namespace bngrad::cuda
