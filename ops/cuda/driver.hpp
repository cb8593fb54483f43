// NVIDIA's driver, found at run time: the library is built without a CUDA toolkit, and loads where there is
// no card.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/element_type.hpp"

namespace bngrad::cuda {

class Driver {
 public:
  // `library` is that of the driver: kDriverLibrary. Throws Failure, which says what to install.
  // `text` returns the PTX of an element type.
  Driver(const char* library, std::string (*text)(ElementType type));

  // The number of multiprocessors of the device of the calling thread's context. Throws Failure.
  int Processors() const;

  // Starts a kernel in the calling thread's context, which compiles its module at the first use. `argument`
  // is the kernel's one argument. Throws Failure.
  void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits, void* stream,
              const void* argument);

  // Sets memory to zero, in the order of the stream. Throws Failure.
  void Zero(void* memory, size_t bytes, void* stream) const;

  using Context = void*;
  // That of the calling thread. Throws Failure if there is none.
  Context CurrentContext() const;

 private:
  using Function = void*;

  struct Module {
    void* handle = nullptr;
    std::map<std::string, Function> functions;
  };

  // The functions of the driver that are called, by their names there.
  struct Api {
    int (*cuInit)(unsigned flags);
    int (*cuDriverGetVersion)(int* version);
    int (*cuGetErrorName)(int error, const char** name);
    int (*cuGetErrorString)(int error, const char** text);
    int (*cuCtxGetCurrent)(Context* context);
    int (*cuCtxGetDevice)(int* device);
    int (*cuDeviceGetAttribute)(int* value, int attribute, int device);
    int (*cuModuleLoadDataEx)(void** module, const void* text, unsigned count, int* options, void** values);
    int (*cuModuleGetFunction)(Function* function, void* module, const char* name);
    int (*cuLaunchKernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void* stream,
                          void** arguments, void** extra);
    int (*cuMemsetD8Async)(void* memory, unsigned char value, size_t bytes, void* stream);
  };

  void Check(int error, const std::string& what) const;
  Function FunctionOf(ElementType module, const std::string& kernel);
  void* Compile(ElementType module) const;

  Api api_ = {};
  std::string (*const text_)(ElementType type);
  std::mutex mutex_;
  std::map<std::pair<Context, ElementType>, Module> modules_;
};

#if defined(BNGRAD_CUDA_DRIVER)
constexpr const char* kDriverLibrary = BNGRAD_CUDA_DRIVER;  // the tests
#elif defined(_WIN32)
constexpr const char* kDriverLibrary = "nvcuda.dll";
#else
constexpr const char* kDriverLibrary = "libcuda.so.1";
#endif

}  // namespace bngrad::cuda
