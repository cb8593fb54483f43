// What a node is given: its attributes, its inputs and outputs, each checked before anyone reads it.
#include <cstring>

#include "ort_op.hpp"
#include "ort_status.hpp"

namespace bngrad {
namespace {

template <class Value, class Getter>
Value GetAttribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, const char* type,
                   const Getter& getter) {
  Value value = {};
  try {
    Check(api, getter(api, info, name, &value));
  } catch (const Failure& e) {
    throw InvalidArgument(std::string("attribute ") + name + " of type " + type + " is required (" +
                          e.what() + ")");
  }
  return value;
}

size_t ElementSize(const Types& types, Role role) {
  if (role == Role::kAxes) return sizeof(int64_t);
  return SizeOf(static_cast<ElementType>(TensorTypeOf(types, role)));
}

}  // namespace

double NodeAttributes::GetFloat(const char* name) const {
  return GetAttribute<float>(api_, info_, name, "float", ort::KernelInfoGetAttribute_float);
}

bool NodeAttributes::GetFlag(const char* name) const {
  const int64_t value = GetAttribute<int64_t>(api_, info_, name, "int", ort::KernelInfoGetAttribute_int64);
  if (value != 0 && value != 1) {
    throw InvalidArgument(std::string("attribute ") + name + " is " + std::to_string(value) +
                          ", expected 0 or 1");
  }
  return value == 1;
}

RunContext::RunContext(const OrtApi* api, OrtKernelContext* context, const OpDefinition& definition,
                       const Types& types)
    : api_(api), context_(context), definition_(definition), types_(types) {
  size_t count = 0;
  Check(api_, ort::KernelContext_GetInputCount(api_, context_, &count));
  for (size_t i = 0; i < definition.inputs.size(); ++i) inputs_.push_back(ReadInput(i, count));
  const Input& axes = InputNamed("axes");
  if (axes.shape.size() != 1) {
    throw InvalidArgument("axes has shape " + ToString(axes.shape) + ", expected a list (rank 1)");
  }
  const int64_t* const values = static_cast<const int64_t*>(axes.data);
  axes_ = MakeShape("axes", values, axes.shape[0]);
  shape_ = InputNamed("X").shape;
  layout_ = MakeLayout(shape_, axes_);
}

const RunContext::Input& RunContext::InputNamed(const char* name) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (std::strcmp(definition_.inputs[i].name, name) == 0) return inputs_[i];
  }
  throw Failure(std::string("no input ") + name);
}

RunContext::Input RunContext::ReadInput(size_t i, size_t count) {
  const OrtValue* value = nullptr;
  if (i < count) Check(api_, ort::KernelContext_GetInput(api_, context_, i, &value));
  if (value == nullptr)
    throw InvalidArgument(std::string("input ") + definition_.inputs[i].name + " is missing");

  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api_, ort::GetTensorTypeAndShape(api_, value, &info));
  const auto release = [this](OrtTensorTypeAndShapeInfo* p) { ort::ReleaseTensorTypeAndShapeInfo(api_, p); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  size_t rank = 0;
  Check(api_, ort::GetDimensionsCount(api_, info, &rank));
  if (rank > kMaxRank) {
    throw InvalidArgument(std::string(definition_.inputs[i].name) + " has rank " + std::to_string(rank) +
                          ", expected 1 to " + std::to_string(kMaxRank));
  }
  Input input = {nullptr, Shape(rank)};
  Check(api_, ort::GetDimensions(api_, info, input.shape.data(), rank));
  void* data = nullptr;
  Check(api_, ort::GetTensorMutableData(api_, const_cast<OrtValue*>(value), &data));
  input.data = Aligned(data, input.shape, ElementSize(types_, definition_.inputs[i].role));
  return input;
}

// ONNX Runtime hands on what it is given: an array of the caller's, or a file of weights mapped into memory,
// may begin anywhere.
const void* RunContext::Aligned(const void* data, const Shape& shape, size_t element_size) {
  if (reinterpret_cast<uintptr_t>(data) % element_size == 0) return data;
  size_t size = element_size;
  for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
  copies_.emplace_back(new char[size]);
  return std::memcpy(copies_.back().get(), data, size);
}

const void* RunContext::DataLikeX(size_t i) const {
  if (inputs_[i].shape != shape_) ThrowShape(i, shape_, "the shape of X");
  return inputs_[i].data;
}

const void* RunContext::ChannelData(size_t i) const {
  if (inputs_[i].shape != layout_.kept_shape) {
    ThrowShape(i, layout_.kept_shape,
               "the shape " + ToString(shape_) + " of X without axes " + ToString(axes_));
  }
  return inputs_[i].data;
}

void RunContext::ThrowShape(size_t i, const Shape& expected, const std::string& why) const {
  throw InvalidArgument(std::string(definition_.inputs[i].name) + " has shape " + ToString(inputs_[i].shape) +
                        ", expected " + ToString(expected) + ": " + why);
}

void* RunContext::OutputLikeX(size_t i) const { return Output(i, shape_); }

void* RunContext::ChannelOutput(size_t i) const { return Output(i, layout_.kept_shape); }

void* RunContext::Output(size_t i, const Shape& shape) const {
  size_t count = 0;
  Check(api_, ort::KernelContext_GetOutputCount(api_, context_, &count));
  if (i >= count) return nullptr;
  OrtValue* value = nullptr;
  const int64_t scalar = 0;
  const int64_t* const dims = shape.empty() ? &scalar : shape.data();
  Check(api_, ort::KernelContext_GetOutput(api_, context_, i, dims, shape.size(), &value));
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  Check(api_, ort::GetTensorMutableData(api_, value, &data));
  return data;
}

}  // namespace bngrad
