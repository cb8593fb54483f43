// The callbacks of OrtCustomOp, which are the same for every op and read its definition.
#include "ort/op.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "core/cpu_cores.hpp"
#include "core/dispatch.hpp"
#include "ort/cuda.hpp"
#include "ort/status.hpp"

namespace bngrad {
namespace {

struct Kernel {
  const CustomOp* op;
  std::string node_name;
  std::unique_ptr<Node> node;
  std::unique_ptr<CudaNode> on_cuda;  // null on the CPU
};

const CustomOp& Op(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

// "bngrad.BatchNormalizationGrad, node 'bn1'"
std::string Where(const CustomOp& op, const std::string& node_name) {
  return std::string("bngrad.") + op.definition->name + ", node '" + node_name + "'";
}

size_t IndexOf(const OpDefinition& definition, const char* input) {
  const auto begin = definition.inputs.begin();
  const auto named = [&](const Parameter& p) { return std::strcmp(p.name, input) == 0; };
  return static_cast<size_t>(std::find_if(begin, definition.inputs.end(), named) - begin);
}

// The thread pool of the session.
class SessionThreads final : public Parallel {
 public:
  SessionThreads(const OrtApi* api, const OrtKernelContext* context) : api_(api), context_(context) {}
  // The size of the session's pool is not available to kernels; by default it is a thread per core.
  size_t threads() const override { return CpuCores(); }
  void Run(size_t count, void (*task)(void*, size_t), void* argument) override {
    constexpr size_t kNoLimit = 0;
    Check(api_, ort::KernelContext_ParallelFor(api_, context_, task, count, kNoLimit, argument));
  }

 private:
  const OrtApi* api_;
  const OrtKernelContext* context_;
};

std::string NodeName(const OrtApi* api, const OrtKernelInfo* info) {
  size_t size = 0;
  Check(api, ort::KernelInfo_GetNodeName(api, info, nullptr, &size));
  std::string name(size, '\0');
  Check(api, ort::KernelInfo_GetNodeName(api, info, name.data(), &size));
  if (!name.empty()) name.pop_back();  // the terminating zero
  return name;
}

OrtStatus* MakeKernel(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** out) {
  const CustomOp& self = Op(op);
  std::string node_name = "?";
  return Guard(
      self.api, [&] { return Where(self, node_name); },
      [&] {
        node_name = NodeName(self.api, info);
        std::unique_ptr<Node> node = self.definition->node.make(NodeAttributes(self.api, info));
        std::unique_ptr<CudaNode> on_cuda;
        if (self.device_api != nullptr) on_cuda = std::make_unique<CudaNode>(self.device_api, info);
        *out = new Kernel{&self, node_name, std::move(node), std::move(on_cuda)};
      });
}

OrtStatus* RunKernel(void* kernel, OrtKernelContext* context) {
  const Kernel& self = *static_cast<const Kernel*>(kernel);
  const CustomOp& op = *self.op;
  return Guard(
      op.api, [&] { return Where(op, self.node_name); },
      [&] {
        const RunContext run(op, context);
        if (self.on_cuda != nullptr) {
          self.on_cuda->Run(static_cast<const DeviceNode&>(*self.node), run, op.types, context);
          return;
        }
        SessionThreads threads(op.api, context);
        self.node->Run(run, op.types, threads);
      });
}

// True if the rank is known and each dimension has a value or a name. An unknown rank is passed as rank 0, an
// unknown dimension as -1 without a name.
bool IsKnown(const OrtApi* api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  Check(api, ort::GetDimensionsCount(api, info, &rank));
  std::vector<int64_t> shape(rank);
  std::vector<const char*> names(rank, "");
  Check(api, ort::GetDimensions(api, info, shape.data(), rank));
  Check(api, ort::GetSymbolicDimensions(api, info, names.data(), rank));
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] < 0 && (names[i] == nullptr || names[i][0] == '\0')) return false;
  }
  return rank > 0;
}

// Infers the shape of output 0 only. A node may omit trailing outputs, the context does not report their
// number, and setting the shape of an omitted output writes out of bounds in ONNX Runtime (seen up to 1.23).
OrtStatus* InferShapes(const OrtCustomOp* op, OrtShapeInferContext* context) {
  const CustomOp& self = Op(op);
  return Guard(
      self.api, [&] { return std::string("bngrad.") + self.definition->name; },
      [&] {
        const size_t x = self.definition->x;
        size_t count = 0;
        Check(self.api, ort::ShapeInferContext_GetInputCount(self.api, context, &count));
        if (!self.definition->first_output_is_data || x >= count) return;
        OrtTensorTypeAndShapeInfo* info = nullptr;
        Check(self.api, ort::ShapeInferContext_GetInputTypeShape(self.api, context, x, &info));
        if (!IsKnown(self.api, info)) return;
        Check(self.api, ort::ShapeInferContext_SetOutputTypeShape(self.api, context, 0, info));
      });
}

}  // namespace

int TensorTypeOf(const Types& types, Role role) {
  switch (role) {
    case Role::kT:
    case Role::kWide:
      return static_cast<int>(types.data);
    case Role::kT1:
      return static_cast<int>(types.scale);
    case Role::kT2:
      return static_cast<int>(types.stat);
    case Role::kDouble:
      return ort::kTensorDouble;
    case Role::kFloat:
      return ort::kTensorFloat;
    case Role::kBool:
      return ort::kTensorBool;
    case Role::kAxes:
      break;
  }
  return ort::kTensorInt64;
}

CustomOp::CustomOp(const OrtApi* ort_api, const OrtApi* ort_shape_api, const OrtApi* ort_device_api,
                   const OpDefinition& op_definition, const Types& op_types)
    : OrtCustomOp{},
      api(ort_api),
      shape_api(ort_shape_api),
      device_api(ort_device_api),
      definition(&op_definition),
      types(op_types),
      axes(IndexOf(op_definition, "axes")) {
  version = ort::kApiVersion;
  GetName = [](const OrtCustomOp* op) { return Op(op).definition->name; };
  GetExecutionProviderType = [](const OrtCustomOp* op) {
    return Op(op).device_api != nullptr ? kCudaProvider : "CPUExecutionProvider";
  };
  GetInputTypeCount = [](const OrtCustomOp* op) { return Op(op).definition->inputs.size(); };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    return TensorTypeOf(Op(op).types, Op(op).definition->inputs[i].role);
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) -> int {
    const OpDefinition& definition = *Op(op).definition;
    if (i >= definition.single_inputs()) return ort::kVariadic;
    return definition.inputs[i].role == Role::kBool ? ort::kOptional : ort::kRequired;
  };
  // Of a variadic input or output: at least one tensor, and all of one type.
  GetVariadicInputMinArity = GetVariadicInputHomogeneity = GetVariadicOutputMinArity =
      GetVariadicOutputHomogeneity = [](const OrtCustomOp*) -> int { return 1; };
  GetInputMemoryType = [](const OrtCustomOp* op, size_t i) -> int {
    return Op(op).device_api != nullptr && i == Op(op).axes ? ort::kCpuInput : ort::kDefaultMemory;
  };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return Op(op).definition->outputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    return TensorTypeOf(Op(op).types, Op(op).definition->outputs[i].role);
  };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) -> int {
    const OpDefinition& definition = *Op(op).definition;
    const bool is_last = i + 1 == definition.outputs.size();
    return is_last && definition.variadic == Variadic::kBoth ? ort::kVariadic : ort::kOptional;
  };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return INT_MAX; };
  InferOutputShapeFn = InferShapes;
  CreateKernelV2 = MakeKernel;
  KernelComputeV2 = RunKernel;
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

}  // namespace bngrad
