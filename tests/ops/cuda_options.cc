// The library with the CUDA ops for the CPU's provider, to which that provider seems to have an option of
// CUDA's:
//   FAKE_CUDA_USE_TF32=1   use_tf32; 0 otherwise
// It registers the ops with copies of ONNX Runtime's function tables, in which one function differs.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "ort/abi.hpp"

namespace {

// Declared here as in ONNX Runtime's headers, and not by ort/abi.hpp.
constexpr int kResourceVersion = 3, kUseTf32 = 10011;
constexpr size_t kGetResource = 265;
// The sizes of the tables of the versions that the library asks for.
constexpr size_t kFunctions = 279, kFunctionsOf24 = 415;

const OrtApiBase* base_of_runtime = nullptr;
const OrtApi* api_of_runtime = nullptr;

OrtStatus* GetResource(const OrtKernelContext* context, int version, int id, void** resource) {
  if (version != kResourceVersion || id != kUseTf32) {
    return ort::KernelContext_GetResource(api_of_runtime, context, version, id, resource);
  }
  const char* const text = std::getenv("FAKE_CUDA_USE_TF32");
  const bool tf32 = text != nullptr && std::strcmp(text, "1") == 0;
  std::memset(resource, 0x5a, sizeof *resource);
  std::memcpy(resource, &tf32, sizeof tf32);
  return nullptr;
}

const OrtApi* GetApi(uint32_t version) {
  static std::map<uint32_t, OrtApi>& tables = *new std::map<uint32_t, OrtApi>;
  api_of_runtime = base_of_runtime->GetApi(version);
  if (api_of_runtime == nullptr) return nullptr;
  OrtApi& table = tables[version];
  std::copy_n(api_of_runtime->functions, version >= 24 ? kFunctionsOf24 : kFunctions, table.functions);
  table.functions[kGetResource] = reinterpret_cast<void (*)()>(GetResource);
  return &table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  base_of_runtime = base;
  static const OrtApiBase own = {GetApi, base->GetVersionString};
  void* const library = dlopen(BNGRAD_LIBRARY, RTLD_NOW);
  if (library == nullptr) std::abort();
  const auto registers = reinterpret_cast<OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*)>(
      dlsym(library, "RegisterCustomOps"));
  return registers(options, &own);
}
