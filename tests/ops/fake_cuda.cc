// A library with the functions of libcuda that the ops call. It fails where the environment says so:
//   FAKE_CUDA_FAIL=cuInit      this function returns an error
//   FAKE_CUDA_VERSION=8000     the version of the driver
//   FAKE_CUDA_CONTEXT=none     no context is current
// FAKE_CUDA_MISSING, when compiled, leaves out cuLaunchKernel. What is launched is printed.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kError = 2;  // CUDA_ERROR_OUT_OF_MEMORY
int a_context, a_module;

int Result(const char* function) {
  const char* const failing = std::getenv("FAKE_CUDA_FAIL");
  return failing != nullptr && std::strcmp(failing, function) == 0 ? kError : 0;
}

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
  std::printf("module %s\n", static_cast<const char*>(text));
  *module = &a_module;
  for (unsigned i = 0; Result("cuModuleLoadDataEx") != 0 && i < count; ++i) {
    if (options[i] == 5) std::strcpy(static_cast<char*>(values[i]), "line 1: syntax error");
  }
  return Result("cuModuleLoadDataEx");
}
FAKE(cuModuleGetFunction, void** function, void*, const char* name) {
  *function = const_cast<char*>(name);
  std::printf("function %s\n", name);
  return Result("cuModuleGetFunction");
}
#if !defined(FAKE_CUDA_MISSING)
FAKE(cuLaunchKernel, void*, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
     unsigned, void* stream, void** arguments, void**) {
  std::printf("launch %ux%ux%u of %u threads, stream %p, argument %d\n", x, y, z, threads, stream,
              *static_cast<int*>(arguments[0]));
  return Result("cuLaunchKernel");
}
#endif
