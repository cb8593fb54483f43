// A custom op with the tensors of BatchNormalizationGrad that does nothing with them: the cheapest that ONNX
// Runtime can have of that shape. For bench_session.py, which compiles this.
#include "../../ops/ort_abi.hpp"

namespace {

const OrtApi* g_api = nullptr;

constexpr size_t kInputs = 6, kOutputs = 3, kAxes = 5;

// Looks at every input and makes every output, as an op must; statuses are null here, or this crashes.
OrtStatus* Compute(void*, OrtKernelContext* context) {
  int64_t shapes[kInputs][8];
  size_t ranks[kInputs];
  void* data = nullptr;
  for (size_t i = 0; i < kInputs; ++i) {
    const OrtValue* value = nullptr;
    OrtTensorTypeAndShapeInfo* info = nullptr;
    ort::KernelContext_GetInput(g_api, context, i, &value);
    ort::GetTensorTypeAndShape(g_api, value, &info);
    ort::GetDimensionsCount(g_api, info, &ranks[i]);
    ort::GetDimensions(g_api, info, shapes[i], ranks[i]);
    ort::ReleaseTensorTypeAndShapeInfo(g_api, info);
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

OrtCustomOp Nothing() {
  OrtCustomOp op = {};
  op.version = ort::kApiVersion;
  op.GetName = [](const OrtCustomOp*) { return "Nothing"; };
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
  op.KernelComputeV2 = Compute;
  op.KernelDestroy = [](void*) {};
  return op;
}

}  // namespace

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  static const OrtCustomOp op = Nothing();
  g_api = base->GetApi(ort::kApiVersion);
  OrtCustomOpDomain* domain = nullptr;
  ort::CreateCustomOpDomain(g_api, "nothing", &domain);
  ort::CustomOpDomain_Add(g_api, domain, &op);
  return ort::AddCustomOpDomain(g_api, options, domain);
}
