// Custom ops with the tensors of BatchNormalizationGrad that do nothing with them: the cheapest that ONNX
// Runtime can have of that shape. `Nothing` copies its inputs' shapes, as every ONNX Runtime lets it;
// `NothingLent` borrows them, where there is that. For bench_session.py, which compiles this.
#include <algorithm>

#include "ort/abi.hpp"

namespace {

const OrtApi *g_api = nullptr, *g_lending_api = nullptr;

constexpr size_t kInputs = 6, kOutputs = 3, kAxes = 5;

void CopyShape(const OrtValue* value, int64_t* shape, size_t* rank) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ort::GetTensorTypeAndShape(g_api, value, &info);
  ort::GetDimensionsCount(g_api, info, rank);
  ort::GetDimensions(g_api, info, shape, *rank);
  ort::ReleaseTensorTypeAndShapeInfo(g_api, info);
}

void BorrowShape(const OrtValue* value, int64_t* shape, size_t* rank) {
  int type = 0;
  const int64_t* extents = nullptr;
  ort::GetTensorElementTypeAndShapeDataReference(g_lending_api, value, &type, &extents, rank);
  std::copy_n(extents, *rank, shape);
}

// Looks at every input and makes every output, as an op must; statuses are null here, or this crashes.
template <void (*kReadShape)(const OrtValue*, int64_t*, size_t*)>
OrtStatus* Compute(void*, OrtKernelContext* context) {
  int64_t shapes[kInputs][8];
  size_t ranks[kInputs];
  void* data = nullptr;
  for (size_t i = 0; i < kInputs; ++i) {
    const OrtValue* value = nullptr;
    ort::KernelContext_GetInput(g_api, context, i, &value);
    kReadShape(value, shapes[i], &ranks[i]);
    ort::GetTensorMutableData(g_api, const_cast<OrtValue*>(value), &data);
  }
  for (size_t i = 0; i < kOutputs; ++i) {
    OrtValue* value = nullptr;
    const size_t like = i == 0 ? 0 : 2;
    ort::KernelContext_GetOutput(g_api, context, i, shapes[like], ranks[like], &value);
    ort::GetTensorMutableData(g_api, value, &data);
  }
  return nullptr;
}

OrtCustomOp Nothing(const char* (*name)(const OrtCustomOp*),
                    OrtStatus* (*compute)(void*, OrtKernelContext*)) {
  OrtCustomOp op = {};
  op.version = ort::kApiVersion;
  op.GetName = name;
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return kInputs; };
  op.GetInputType = [](const OrtCustomOp*, size_t i) -> int {
    return i == kAxes ? ort::kTensorInt64 : ort::kTensorFloat;
  };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return ort::kRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return kOutputs; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) -> int { return ort::kTensorFloat; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return ort::kRequired; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**) -> OrtStatus* {
    return nullptr;
  };
  op.KernelComputeV2 = compute;
  op.KernelDestroy = [](void*) {};
  return op;
}

}  // namespace

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  static const OrtCustomOp copying =
      Nothing([](const OrtCustomOp*) { return "Nothing"; }, Compute<CopyShape>);
  static const OrtCustomOp borrowing =
      Nothing([](const OrtCustomOp*) { return "NothingLent"; }, Compute<BorrowShape>);
  g_api = base->GetApi(ort::kApiVersion);
  g_lending_api = base->GetApi(ort::kShapeReferenceVersion);
  OrtCustomOpDomain* domain = nullptr;
  ort::CreateCustomOpDomain(g_api, "nothing", &domain);
  ort::CustomOpDomain_Add(g_api, domain, &copying);
  if (g_lending_api != nullptr) ort::CustomOpDomain_Add(g_api, domain, &borrowing);
  return ort::AddCustomOpDomain(g_api, options, domain);
}
