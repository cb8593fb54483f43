// The library is never unloaded: sessions and ort/register.cc keep pointers into it, the threads of the pool
// sleep in it, and so does the crash handler. On Linux the linker's -z nodelete says it (CMakeLists.txt).
#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

namespace {

[[maybe_unused]] const bool kept = [] {
  constexpr DWORD kFlags = GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
  HMODULE module = nullptr;
  return GetModuleHandleExW(kFlags, reinterpret_cast<LPCWSTR>(&kept), &module) != 0;
}();

}  // namespace

#elif defined(__APPLE__)

#include <dlfcn.h>

namespace {

// RTLD_NOLOAD finds the loaded library. The handle is not closed.
[[maybe_unused]] const bool kept = [] {
  Dl_info info = {};
  return dladdr(&kept, &info) != 0 &&
         dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}();

}  // namespace

#endif
