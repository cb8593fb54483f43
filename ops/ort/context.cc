// Access to the attributes, inputs and outputs of a node, with checks.
#include <cstring>

#include "ort/op.hpp"
#include "ort/status.hpp"

namespace bngrad {
namespace {

template <class Value, class Getter>
Value GetAttribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, const char* type,
                   const Getter& getter) {
  Value value = {};
  try {
    Check(api, getter(api, info, name, &value));
  } catch (const Failure& e) {
    throw InvalidArgument(std::string("attribute ") + name + " is missing or not of type " + type + ": " +
                          e.what());
  }
  return value;
}

size_t ElementSize(const Types& types, Role role) {
  if (role == Role::kAxes) return sizeof(int64_t);
  if (role == Role::kBool) return sizeof(bool);
  return SizeOf(static_cast<ElementType>(TensorTypeOf(types, role)));
}

void CheckRank(size_t rank, const char* name) {
  if (rank <= kMaxRank) return;
  throw InvalidArgument(std::string(name) + " has rank " + std::to_string(rank) + "; expected 1 to " +
                        std::to_string(kMaxRank));
}

// Slower than ReadShapeReference: ONNX Runtime allocates an object for the copy.
void ReadShapeCopy(const OrtApi* api, const char* name, const OrtValue* value, Shape& shape) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api, ort::GetTensorTypeAndShape(api, value, &info));
  const auto release = [api](OrtTensorTypeAndShapeInfo* p) { ort::ReleaseTensorTypeAndShapeInfo(api, p); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  size_t rank = 0;
  Check(api, ort::GetDimensionsCount(api, info, &rank));
  CheckRank(rank, name);
  shape.resize(rank);
  Check(api, ort::GetDimensions(api, info, shape.data(), rank));
}

void ReadShapeReference(const OrtApi* api, const char* name, const OrtValue* value, Shape& shape) {
  int type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  Check(api, ort::GetTensorElementTypeAndShapeDataReference(api, value, &type, &dims, &rank));
  CheckRank(rank, name);
  shape.resize(rank);
  std::copy_n(dims, rank, shape.begin());
}

}  // namespace

bool NodeAttributes::Has(const char* name) const {
  float real = 0;
  int64_t integer = 0;
  size_t size = 0;
  bool has = false;
  for (OrtStatus* const status :
       {ort::KernelInfoGetAttribute_float(api_, info_, name, &real),
        ort::KernelInfoGetAttribute_int64(api_, info_, name, &integer),
        ort::KernelInfoGetAttribute_string(api_, info_, name, nullptr, &size),
        ort::KernelInfoGetAttributeArray_int64(api_, info_, name, nullptr, &size)}) {
    has = has || status == nullptr;
    ort::ReleaseStatus(api_, status);
  }
  return has;
}

double NodeAttributes::GetFloat(const char* name) const {
  return GetAttribute<float>(api_, info_, name, "float", ort::KernelInfoGetAttribute_float);
}

bool NodeAttributes::GetFlag(const char* name) const {
  const int64_t value = GetAttribute<int64_t>(api_, info_, name, "int", ort::KernelInfoGetAttribute_int64);
  if (value != 0 && value != 1) {
    throw InvalidArgument(std::string("attribute ") + name + " is " + std::to_string(value) +
                          "; expected 0 or 1");
  }
  return value == 1;
}

std::string NodeAttributes::GetString(const char* name) const {
  size_t size = 0;
  std::string value;
  const auto getter = [&](const OrtApi* api, const OrtKernelInfo* info, const char* n, size_t* out) {
    return ort::KernelInfoGetAttribute_string(api, info, n, nullptr, out);
  };
  size = GetAttribute<size_t>(api_, info_, name, "string", getter);
  value.resize(size);
  Check(api_, ort::KernelInfoGetAttribute_string(api_, info_, name, value.data(), &size));
  value.resize(size > 0 ? size - 1 : 0);  // without the terminating zero
  return value;
}

int64_t NodeAttributes::GetInt(const char* name) const {
  return GetAttribute<int64_t>(api_, info_, name, "int", ort::KernelInfoGetAttribute_int64);
}

Shape NodeAttributes::GetInts(const char* name) const {
  const auto getter = [&](const OrtApi* api, const OrtKernelInfo* info, const char* n, size_t* out) {
    return ort::KernelInfoGetAttributeArray_int64(api, info, n, nullptr, out);
  };
  size_t size = GetAttribute<size_t>(api_, info_, name, "ints", getter);
  std::vector<int64_t> values(size);
  if (size > 0) Check(api_, ort::KernelInfoGetAttributeArray_int64(api_, info_, name, values.data(), &size));
  return MakeShape(name, values.data(), static_cast<int64_t>(size));
}

RunContext::RunContext(const CustomOp& op, OrtKernelContext* context)
    : op_(op),
      api_(op.api),
      context_(context),
      input_count_(CountInputs()),
      output_count_(CountOutputs()),
      inputs_(ReadInputs()),
      variadic_(ReadVariadic()),
      axes_(ReadAxes()),
      layout_(has_axes() ? MakeLayout(ShapeOfX(), axes_) : Layout()) {}

size_t RunContext::CountInputs() const {
  size_t count = 0;
  Check(api_, ort::KernelContext_GetInputCount(api_, context_, &count));
  return count;
}

size_t RunContext::CountOutputs() const {
  size_t count = 0;
  Check(api_, ort::KernelContext_GetOutputCount(api_, context_, &count));
  return count;
}

RunContext::Inputs RunContext::ReadInputs() {
  Inputs inputs;
  for (size_t i = 0; i < op_.definition->single_inputs(); ++i) ReadInput(i, inputs.append_uninitialized());
  return inputs;
}

std::vector<RunContext::Input> RunContext::ReadVariadic() {
  const size_t first = op_.definition->single_inputs();
  std::vector<Input> inputs(
      op_.definition->variadic != Variadic::kNone && input_count_ > first ? input_count_ - first : 0);
  for (size_t i = 0; i < inputs.size(); ++i) ReadInput(first + i, inputs[i]);
  return inputs;
}

std::string RunContext::NameOf(size_t i) const {
  const OpDefinition& definition = *op_.definition;
  const size_t first = definition.single_inputs();
  if (i < first) return definition.inputs[i].name;
  return std::string(definition.inputs[first].name) + "[" + std::to_string(i - first) + "]";
}

const Shape& RunContext::ShapeOfX() const { return inputs_[op_.definition->x].shape; }

bool RunContext::has_axes() const { return op_.axes < inputs_.size(); }

int64_t RunContext::count() const { return CountOf(ShapeOfX()); }

Shape RunContext::ReadAxes() const {
  if (!has_axes()) return {};
  const Input& axes = inputs_[op_.axes];
  if (axes.shape.size() != 1) {
    throw InvalidArgument("axes has shape " + ToString(axes.shape) + "; expected a 1-D tensor");
  }
  return MakeShape("axes", static_cast<const int64_t*>(axes.data), axes.shape[0]);
}

bool RunContext::Has(size_t i) const { return ValueOf(i) != nullptr; }

const OrtValue* RunContext::ValueOf(size_t i) const {
  const OrtValue* value = nullptr;
  if (i < input_count_) Check(api_, ort::KernelContext_GetInput(api_, context_, i, &value));
  return value;
}

void RunContext::ReadInput(size_t i, Input& input) {
  const Parameter& parameter = op_.definition->inputs[std::min(i, op_.definition->inputs.size() - 1)];
  const OrtValue* const value = ValueOf(i);
  input.data = nullptr;
  if (value == nullptr && parameter.role == Role::kBool) return;
  if (value == nullptr)
    throw InvalidArgument(std::string("required input ") + parameter.name + " is missing");
  if (op_.shape_api != nullptr) {
    ReadShapeReference(op_.shape_api, parameter.name, value, input.shape);
  } else {
    ReadShapeCopy(api_, parameter.name, value, input.shape);
  }
  void* data = nullptr;
  Check(api_, ort::GetTensorMutableData(api_, const_cast<OrtValue*>(value), &data));
  input.data = Aligned(parameter.name, data, input.shape, ElementSize(op_.types, parameter.role),
                       op_.device_api != nullptr && i != op_.axes);
}

// Returns the data, or a copy if it is not aligned: ONNX Runtime passes on arrays of the caller and
// memory-mapped weights at any address. Arrays of a device cannot be copied here.
const void* RunContext::Aligned(const char* name, const void* data, const Shape& shape, size_t element_size,
                                bool on_device) {
  if (reinterpret_cast<uintptr_t>(data) % element_size == 0) return data;
  if (on_device) {
    throw InvalidArgument(std::string(name) + " begins at an address that is no multiple of " +
                          std::to_string(element_size) + ", the size of its elements; on a GPU it has to");
  }
  size_t size = element_size;
  for (const int64_t dim : shape) size *= static_cast<size_t>(dim);
  copies_.emplace_back(new char[size]);
  return std::memcpy(copies_.back().get(), data, size);
}

const void* RunContext::DataLikeX(size_t i) const {
  if (inputs_[i].shape != ShapeOfX())
    ThrowShape(i, ShapeOfX(), std::string("the shape of ") + op_.definition->inputs[op_.definition->x].name);
  return inputs_[i].data;
}

const void* RunContext::Data(size_t i, const Shape& shape, const char* what) const {
  const Input& input = InputAt(i);
  if (input.shape != shape) ThrowShape(i, shape, what);
  return input.data;
}

const double* RunContext::Gathered(size_t i, int64_t rows, int64_t channels, int64_t* ranks) const {
  const Shape& shape = inputs_[i].shape;
  if (shape.size() != 3 || shape[0] < 1 || shape[1] != rows || shape[2] != channels) {
    throw InvalidArgument(std::string(op_.definition->inputs[i].name) + " has shape " + ToString(shape) +
                          "; expected [R," + std::to_string(rows) + "," + std::to_string(channels) +
                          "], the values of R ranks, 1 or more, for each channel");
  }
  *ranks = shape[0];
  return static_cast<const double*>(inputs_[i].data);
}

const void* RunContext::ChannelData(size_t i) const {
  if (inputs_[i].shape != layout_.kept_shape) {
    ThrowShape(i, layout_.kept_shape,
               "the shape " + ToString(ShapeOfX()) + " of X without axes " + ToString(axes_));
  }
  return inputs_[i].data;
}

void RunContext::ThrowShape(size_t i, const Shape& expected, const std::string& why) const {
  throw InvalidArgument(NameOf(i) + " has shape " + ToString(ShapeOf(i)) + "; expected " +
                        ToString(expected) + ", " + why);
}

void* RunContext::OutputLikeX(size_t i) const { return Output(i, ShapeOfX()); }

void* RunContext::ChannelOutput(size_t i) const { return Output(i, layout_.kept_shape); }

void* RunContext::Output(size_t i, const int64_t* dims, size_t rank) const {
  if (i >= output_count_) return nullptr;
  OrtValue* value = nullptr;
  Check(api_, ort::KernelContext_GetOutput(api_, context_, i, dims, rank, &value));
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  Check(api_, ort::GetTensorMutableData(api_, value, &data));
  return data;
}

}  // namespace bngrad
