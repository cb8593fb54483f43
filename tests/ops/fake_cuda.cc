// A library with the functions of libcuda that the ops call. It fails where the environment says so:
//   FAKE_CUDA_FAIL=cuInit      this function returns an error
//   FAKE_CUDA_VERSION=8000     the version of the driver
//   FAKE_CUDA_CONTEXT=none     no context is current
// FAKE_CUDA_MISSING, when compiled, leaves out cuLaunchKernel. What is launched is printed; with
// FAKE_CUDA_RUNS it is run instead, by the emulation.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(FAKE_CUDA_RUNS)
#include <mutex>
#include <set>
#include <string>

#include "cuda_emulation.hpp"
#endif

namespace {

constexpr int kError = 2;  // CUDA_ERROR_OUT_OF_MEMORY
int a_context;

int Result(const char* function) {
  const char* const failing = std::getenv("FAKE_CUDA_FAIL");
  return failing != nullptr && std::strcmp(failing, function) == 0 ? kError : 0;
}

struct Launch {
  unsigned x, y, z, threads;
  void *stream, *argument;
};

#if defined(FAKE_CUDA_RUNS)
using namespace bngrad::cuda;

void* Load(const char* name) {
  static std::set<std::string> modules;
  return const_cast<std::string*>(&*modules.insert(name).first);
}
void* Find(void* module, const char* name) {
  return reinterpret_cast<void*>(FindKernel(*static_cast<std::string*>(module), name));
}
void Start(void* function, const Launch& launch) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  RunGrid(reinterpret_cast<Kernel>(function), launch.x, launch.y, launch.argument);
}
#else
int a_module;

void* Load(const char* name) {
  std::printf("module %s\n", name);
  return &a_module;
}
void* Find(void*, const char* name) {
  std::printf("function %s\n", name);
  return const_cast<char*>(name);
}
[[maybe_unused]] void Start(void*, const Launch& launch) {
  std::printf("launch %ux%ux%u of %u threads, stream %p, argument %d\n", launch.x, launch.y, launch.z,
              launch.threads, launch.stream, *static_cast<int*>(launch.argument));
}
#endif

}  // namespace

#define FAKE(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

FAKE(cuInit, unsigned) { return Result("cuInit"); }
FAKE(cuDriverGetVersion, int* version) {
  const char* const text = std::getenv("FAKE_CUDA_VERSION");
  *version = text == nullptr ? 12090 : std::atoi(text);
  return Result("cuDriverGetVersion");
}
FAKE(cuGetErrorName, int error, const char** name) {
  if (error != kError) return 1;
  *name = "CUDA_ERROR_OUT_OF_MEMORY";
  return 0;
}
FAKE(cuGetErrorString, int error, const char** text) {
  if (error != kError) return 1;
  *text = "out of memory";
  return 0;
}
FAKE(cuCtxGetCurrent, void** context) {
  *context = std::getenv("FAKE_CUDA_CONTEXT") == nullptr ? &a_context : nullptr;
  return Result("cuCtxGetCurrent");
}
FAKE(cuCtxGetDevice, int* device) {
  *device = 0;
  return Result("cuCtxGetDevice");
}
FAKE(cuDeviceGetAttribute, int* value, int attribute, int) {
  *value = attribute == 16 ? 132 : 0;
  return Result("cuDeviceGetAttribute");
}
FAKE(cuModuleLoadDataEx, void** module, const void* text, unsigned count, int* options, void** values) {
  *module = Load(static_cast<const char*>(text));
  for (unsigned i = 0; Result("cuModuleLoadDataEx") != 0 && i < count; ++i) {
    if (options[i] == 5) std::strcpy(static_cast<char*>(values[i]), "line 1: syntax error");
  }
  return Result("cuModuleLoadDataEx");
}
FAKE(cuModuleGetFunction, void** function, void* module, const char* name) {
  *function = Find(module, name);
  return Result("cuModuleGetFunction");
}
FAKE(cuMemsetD8Async, void* memory, unsigned char value, size_t bytes, void*) {
  const int result = Result("cuMemsetD8Async");
  if (result == 0) std::memset(memory, value, bytes);
  return result;
}
#if !defined(FAKE_CUDA_MISSING)
// The number of launches until now.
extern "C" {
__attribute__((visibility("default"))) int fake_cuda_launches = 0;
}

FAKE(cuLaunchKernel, void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
     unsigned, void* stream, void** arguments, void**) {
  const int result = Result("cuLaunchKernel");
  if (result == 0) Start(function, {x, y, z, threads, stream, arguments[0]});
  ++fake_cuda_launches;
  return result;
}
#endif
