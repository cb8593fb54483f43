// Libraries of NVIDIA's, found at run time.
#pragma once

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace bngrad::cuda {

// Null if there is no such library. A loaded library is never closed.
#if defined(_WIN32)
inline void* OpenLibrary(const char* name) { return reinterpret_cast<void*>(LoadLibraryA(name)); }
// The library if the process has loaded it.
inline void* LoadedLibrary(const char* name) { return reinterpret_cast<void*>(GetModuleHandleA(name)); }
inline void* SymbolOf(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
inline void* OpenLibrary(const char* name) { return dlopen(name, RTLD_NOW); }
inline void* LoadedLibrary(const char* name) { return dlopen(name, RTLD_NOW | RTLD_NOLOAD); }
inline void* SymbolOf(void* library, const char* name) { return dlsym(library, name); }
#endif

}  // namespace bngrad::cuda
