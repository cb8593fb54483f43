// The part of ONNX Runtime's custom-op ABI that this library uses, declared here so that building does not
// need ONNX Runtime. The ABI is append-only: function indices and member offsets are the same in every
// release that supports the requested API version.
//
// 64-bit targets only: 32-bit Windows uses another calling convention.
#pragma once
#include <cstddef>
#include <cstdint>

static_assert(sizeof(void*) == 8, "the offsets below are those of 64-bit targets");

extern "C" {

struct OrtAllocator;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtLogger;
struct OrtMemoryInfo;
struct OrtOp;
struct OrtOpAttr;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtValue;

// The function table; ort::Function below gives each entry its type.
struct OrtApi {
  void (*functions[415])();  // fewer in older releases: see kShapeReferenceVersion
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null: not supported by this ONNX Runtime
  const char* (*GetVersionString)();
};

// The callbacks of an op. A null member is an unused feature.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // extern "C"

static_assert(offsetof(OrtCustomOp, KernelDestroy) == 72);
static_assert(offsetof(OrtCustomOp, CreateKernelV2) == 136);
static_assert(offsetof(OrtCustomOp, GetEndVersion) == 168);
static_assert(sizeof(OrtCustomOp) == 208);

namespace ort {

// The first version with KernelContext_ParallelFor and GetStartVersion. Requesting the oldest sufficient
// version makes one binary work with every later ONNX Runtime.
constexpr uint32_t kApiVersion = 17;
constexpr const char* kApiVersionName = "1.17";

// The version with GetTensorElementTypeAndShapeDataReference, which is used if the running ONNX Runtime has
// it.
constexpr uint32_t kShapeReferenceVersion = 24;

// The version with KernelInfoGetAllocator, without which no op is registered for a GPU.
constexpr uint32_t kAllocatorVersion = 18;

enum ErrorCode { kFail = 1, kInvalidArgument = 2 };
enum TensorType { kTensorFloat = 1, kTensorInt64 = 7, kTensorBool = 9, kTensorDouble = 11 };
enum Characteristic { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum MemoryType { kCpuInput = -2, kDefaultMemory = 0 };

enum AllocatorType { kDeviceAllocator = 0 };
enum AttributeType { kAttributeInt = 1, kAttributeInts = 2, kAttributeFloat = 3 };

// Resources of the CUDA provider: the same numbers in every release since kAllocatorVersion.
constexpr int kCudaResourceVersion = 3;
enum CudaResource { kCudnnHandle = 10001, kUseTf32 = 10011 };

template <size_t kIndex, class Signature>
struct Function;
template <size_t kIndex, class Result, class... Arguments>
struct Function<kIndex, Result(Arguments...)> {
  Result operator()(const OrtApi* api, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(api->functions[kIndex])(arguments...);
  }
};

constexpr Function<0, OrtStatus*(int code, const char* message)> CreateStatus;
constexpr Function<2, const char*(const OrtStatus*)> GetErrorMessage;
constexpr Function<93, void(OrtStatus*)> ReleaseStatus;

constexpr Function<26, OrtStatus*(const char* name, OrtCustomOpDomain**)> CreateCustomOpDomain;
constexpr Function<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)> CustomOpDomain_Add;
constexpr Function<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)> AddCustomOpDomain;
constexpr Function<101, void(OrtCustomOpDomain*)> ReleaseCustomOpDomain;

// *size: that of the value, in and out. An error if there is no entry.
constexpr Function<238, OrtStatus*(const OrtSessionOptions*, const char* key, char* value, size_t* size)>
    GetSessionConfigEntry;

constexpr Function<51, OrtStatus*(OrtValue*, void**)> GetTensorMutableData;
constexpr Function<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*)> GetDimensionsCount;
constexpr Function<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)> GetDimensions;
constexpr Function<63, OrtStatus*(const OrtTensorTypeAndShapeInfo*, const char**, size_t)>
    GetSymbolicDimensions;
constexpr Function<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)> GetTensorTypeAndShape;
constexpr Function<99, void(OrtTensorTypeAndShapeInfo*)> ReleaseTensorTypeAndShapeInfo;

// Since kShapeReferenceVersion. The dimensions are owned by the value.
constexpr Function<414, OrtStatus*(const OrtValue*, int* type, const int64_t** dims, size_t* rank)>
    GetTensorElementTypeAndShapeDataReference;

constexpr Function<75, OrtStatus*(OrtAllocator*, size_t, void**)> AllocatorAlloc;
constexpr Function<76, OrtStatus*(OrtAllocator*, void*)> AllocatorFree;
constexpr Function<132, void(OrtAllocator*)> ReleaseAllocator;

constexpr Function<85, OrtStatus*(const OrtKernelInfo*, const char*, float*)> KernelInfoGetAttribute_float;
constexpr Function<86, OrtStatus*(const OrtKernelInfo*, const char*, int64_t*)> KernelInfoGetAttribute_int64;
// Without a buffer, sets *size to that of the string with its terminating zero.
constexpr Function<87, OrtStatus*(const OrtKernelInfo*, const char*, char*, size_t* size)>
    KernelInfoGetAttribute_string;
// Without a buffer, sets *size to the number of values.
constexpr Function<163, OrtStatus*(const OrtKernelInfo*, const char*, int64_t*, size_t* size)>
    KernelInfoGetAttributeArray_int64;
constexpr Function<244, OrtStatus*(const OrtKernelInfo*, char*, size_t*)> KernelInfo_GetNodeName;
// That of the session, which owns it.
constexpr Function<245, OrtStatus*(const OrtKernelInfo*, const OrtLogger**)> KernelInfo_GetLogger;
// Since kAllocatorVersion. The allocator has to be released.
constexpr Function<278, OrtStatus*(const OrtKernelInfo*, int memory_type, OrtAllocator**)>
    KernelInfoGetAllocator;

constexpr Function<88, OrtStatus*(const OrtKernelContext*, size_t*)> KernelContext_GetInputCount;
constexpr Function<89, OrtStatus*(const OrtKernelContext*, size_t*)> KernelContext_GetOutputCount;
constexpr Function<90, OrtStatus*(const OrtKernelContext*, size_t, const OrtValue**)> KernelContext_GetInput;
constexpr Function<91, OrtStatus*(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**)>
    KernelContext_GetOutput;
// Null on a provider without streams.
constexpr Function<193, OrtStatus*(const OrtKernelContext*, void** stream)> KernelContext_GetGPUComputeStream;
// A handle or a value of the provider's stream; an error, or null, if it has none.
constexpr Function<265, OrtStatus*(const OrtKernelContext*, int version, int id, void** resource)>
    KernelContext_GetResource;
// The allocator of the session for such memory; it has to be released.
constexpr Function<253, OrtStatus*(const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator**)>
    KernelContext_GetAllocator;
constexpr Function<274, OrtStatus*(const OrtKernelContext*, void (*)(void*, size_t), size_t total,
                                   size_t batches, void* argument)>
    KernelContext_ParallelFor;

// Creates the kernel that the provider of the node has for an op; the types are those of type constraints.
constexpr Function<213, OrtStatus*(const OrtKernelInfo*, const char* op, const char* domain, int version,
                                   const char** constraints, const int* types, int type_count,
                                   const OrtOpAttr* const* attributes, int attribute_count, int inputs,
                                   int outputs, OrtOp**)>
    CreateOp;
constexpr Function<211, OrtStatus*(const char* name, const void* values, int count, int type, OrtOpAttr**)>
    CreateOpAttr;
constexpr Function<212, void(OrtOpAttr*)> ReleaseOpAttr;
// Runs it with the threads and the allocator of the context.
constexpr Function<214, OrtStatus*(const OrtKernelContext*, const OrtOp*, const OrtValue* const* inputs,
                                   int input_count, OrtValue* const* outputs, int output_count)>
    InvokeOp;
constexpr Function<215, void(OrtOp*)> ReleaseOp;

constexpr Function<69, OrtStatus*(int allocator_type, int memory_type, OrtMemoryInfo**)> CreateCpuMemoryInfo;
constexpr Function<94, void(OrtMemoryInfo*)> ReleaseMemoryInfo;
// The data stay those of the caller.
constexpr Function<49, OrtStatus*(const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* shape,
                                  size_t rank, int type, OrtValue**)>
    CreateTensorWithDataAsOrtValue;
constexpr Function<96, void(OrtValue*)> ReleaseValue;

constexpr Function<267, OrtStatus*(const OrtShapeInferContext*, size_t*)> ShapeInferContext_GetInputCount;
// The info is owned by the context.
constexpr Function<268, OrtStatus*(const OrtShapeInferContext*, size_t, OrtTensorTypeAndShapeInfo**)>
    ShapeInferContext_GetInputTypeShape;
constexpr Function<270, OrtStatus*(const OrtShapeInferContext*, size_t, const OrtTensorTypeAndShapeInfo*)>
    ShapeInferContext_SetOutputTypeShape;

}  // namespace ort
