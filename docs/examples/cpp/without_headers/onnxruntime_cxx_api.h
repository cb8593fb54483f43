// Stands in for ONNX Runtime's header of the same name, which Python wheels lack: the part of it that
// train.cc uses, by the declarations of ops/ort/abi.hpp. With ONNX Runtime's own headers train.cc compiles
// unchanged.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ort/abi.hpp"

enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11
};
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

struct OrtEnv;
struct OrtMemoryInfo;
struct OrtModelMetadata;
struct OrtRunOptions;
struct OrtSession;

extern "C" const OrtApiBase* OrtGetApiBase();

namespace ort {

constexpr Function<3, OrtStatus*(int level, const char* id, OrtEnv**)> CreateEnv;
constexpr Function<10, OrtStatus*(OrtSessionOptions**)> CreateSessionOptions;
constexpr Function<24, OrtStatus*(OrtSessionOptions*, int)> SetIntraOpNumThreads;
constexpr Function<29, OrtStatus*(OrtSessionOptions*, const char* path, void** handle)>
    RegisterCustomOpsLibrary;
constexpr Function<7, OrtStatus*(const OrtEnv*, const char* path, const OrtSessionOptions*, OrtSession**)>
    CreateSession;
constexpr Function<9, OrtStatus*(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                                 const OrtValue* const* inputs, size_t, const char* const* output_names,
                                 size_t, OrtValue** outputs)>
    Run;
constexpr Function<30, OrtStatus*(const OrtSession*, size_t*)> SessionGetInputCount;
constexpr Function<36, OrtStatus*(const OrtSession*, size_t, OrtAllocator*, char**)> SessionGetInputName;
constexpr Function<111, OrtStatus*(const OrtSession*, OrtModelMetadata**)> SessionGetModelMetadata;
constexpr Function<116, OrtStatus*(const OrtModelMetadata*, OrtAllocator*, const char* key, char**)>
    ModelMetadataLookupCustomMetadataMap;
constexpr Function<78, OrtStatus*(OrtAllocator**)> GetAllocatorWithDefaultOptions;

}  // namespace ort

namespace Ort {

inline const OrtApi* Api() {
  static const OrtApi* const api = OrtGetApiBase()->GetApi(ort::kApiVersion);
  if (api == nullptr) throw std::runtime_error("ONNX Runtime is older than 1.17");
  return api;
}

// Calls a function of the table; its error becomes an exception.
template <class Function, class... Arguments>
void Call(const Function& function, Arguments... arguments) {
  OrtStatus* const status = function(Api(), arguments...);
  if (status == nullptr) return;
  const std::string message = ort::GetErrorMessage(Api(), status);
  ort::ReleaseStatus(Api(), status);
  throw std::runtime_error(message);
}

// Owns what a function of the table has made; kRelease is the index of the function that releases it.
template <class T, size_t kRelease>
struct Handle {
  struct Release {
    void operator()(T* object) const { ort::Function<kRelease, void(T*)>()(Api(), object); }
  };
  std::unique_ptr<T, Release> owned;

  template <class Function, class... Arguments>
  static Handle Make(const Function& create, Arguments... arguments) {
    T* made = nullptr;
    Call(create, arguments..., &made);
    Handle handle;
    handle.owned.reset(made);
    return handle;
  }
  operator T*() const { return owned.get(); }
};

struct AllocatorWithDefaultOptions {
  OrtAllocator* allocator = nullptr;
  AllocatorWithDefaultOptions() { Call(ort::GetAllocatorWithDefaultOptions, &allocator); }
  operator OrtAllocator*() const { return allocator; }
};

struct FreeString {
  OrtAllocator* allocator;
  void operator()(char* text) const { Call(ort::AllocatorFree, allocator, static_cast<void*>(text)); }
};
using AllocatedStringPtr = std::unique_ptr<char, FreeString>;

struct Env : Handle<OrtEnv, 92> {
  Env(OrtLoggingLevel level, const char* id) : Handle(Make(ort::CreateEnv, int{level}, id)) {}
};

struct SessionOptions : Handle<OrtSessionOptions, 100> {
  SessionOptions() : Handle(Make(ort::CreateSessionOptions)) {}
  void SetIntraOpNumThreads(int threads) { Call(ort::SetIntraOpNumThreads, owned.get(), threads); }
  void RegisterCustomOpsLibrary(const char* path) {
    void* handle = nullptr;
    Call(ort::RegisterCustomOpsLibrary, owned.get(), path, &handle);
  }
};

struct MemoryInfo : Handle<OrtMemoryInfo, 94> {
  static MemoryInfo CreateCpu(OrtAllocatorType allocator, OrtMemType memory) {
    return {Make(ort::CreateCpuMemoryInfo, int{allocator}, int{memory})};
  }
};

struct Value : Handle<OrtValue, 96> {
  explicit Value(std::nullptr_t) {}
  explicit Value(OrtValue* value) { owned.reset(value); }
  static Value CreateTensor(const OrtMemoryInfo* memory, void* data, size_t bytes, const int64_t* shape,
                            size_t rank, ONNXTensorElementDataType type) {
    OrtValue* value = nullptr;
    Call(ort::CreateTensorWithDataAsOrtValue, memory, data, bytes, shape, rank, int{type}, &value);
    return Value(value);
  }
  const void* GetTensorRawData() const {
    void* data = nullptr;
    Call(ort::GetTensorMutableData, owned.get(), &data);
    return data;
  }
  template <class T>
  const T* GetTensorData() const {
    return static_cast<const T*>(GetTensorRawData());
  }
};

struct ModelMetadata : Handle<OrtModelMetadata, 118> {
  AllocatedStringPtr LookupCustomMetadataMapAllocated(const char* key, OrtAllocator* allocator) const {
    char* text = nullptr;
    Call(ort::ModelMetadataLookupCustomMetadataMap, owned.get(), allocator, key, &text);
    return {text, FreeString{allocator}};
  }
};

struct RunOptions {
  OrtRunOptions* options;
};

struct Session : Handle<OrtSession, 95> {
  Session(const Env& env, const char* path, const SessionOptions& options)
      : Handle(Make(ort::CreateSession, env.owned.get(), path, options.owned.get())) {}

  ModelMetadata GetModelMetadata() const {
    return {ModelMetadata::Make(ort::SessionGetModelMetadata, owned.get())};
  }
  size_t GetInputCount() const {
    size_t count = 0;
    Call(ort::SessionGetInputCount, owned.get(), &count);
    return count;
  }
  AllocatedStringPtr GetInputNameAllocated(size_t index, OrtAllocator* allocator) const {
    char* name = nullptr;
    Call(ort::SessionGetInputName, owned.get(), index, allocator, &name);
    return {name, FreeString{allocator}};
  }
  std::vector<Value> Run(const RunOptions& options, const char* const* input_names, const Value* inputs,
                         size_t count, const char* const* output_names, size_t output_count) {
    const std::vector<const OrtValue*> fed(inputs, inputs + count);
    std::vector<OrtValue*> made(output_count, nullptr);
    Call(ort::Run, owned.get(), options.options, input_names, fed.data(), count, output_names, output_count,
         made.data());
    std::vector<Value> outputs;
    for (OrtValue* const value : made) outputs.emplace_back(value);
    return outputs;
  }
};

}  // namespace Ort
