#include "ort/stock_op.hpp"

#include "ort/status.hpp"

namespace bngrad {

StockOp::Owner<OrtOpAttr> StockOp::Attribute::Create(const OrtApi* api) const {
  const bool is_float = type_ == ort::kAttributeFloat;
  const void* const values = is_float ? static_cast<const void*>(&float_) : ints_.data();
  OrtOpAttr* attribute = nullptr;
  Check(api, ort::CreateOpAttr(api, name_, values, is_float ? 1 : static_cast<int>(ints_.size()), type_,
                               &attribute));
  return Owner<OrtOpAttr>(attribute, {api});
}

StockOp::StockOp(const NodeAttributes& node, const char* name, int version,
                 const std::vector<Attribute>& attributes)
    : api_(node.api()), op_(nullptr, {api_}), memory_(nullptr, {api_}) {
  std::vector<Owner<OrtOpAttr>> owners;
  std::vector<const OrtOpAttr*> pointers;
  for (const Attribute& attribute : attributes) {
    owners.push_back(attribute.Create(api_));
    pointers.push_back(owners.back().get());
  }
  const char* constraint = "T";
  const int type = ort::kTensorFloat;
  OrtOp* op = nullptr;
  Check(api_, ort::CreateOp(api_, node.info(), name, "", version, &constraint, &type, 1, pointers.data(),
                            static_cast<int>(pointers.size()), 2, 1, &op));
  op_.reset(op);
  OrtMemoryInfo* memory = nullptr;
  Check(api_, ort::CreateCpuMemoryInfo(api_, ort::kDeviceAllocator, ort::kDefaultMemory, &memory));
  memory_.reset(memory);
}

void StockOp::Run(const RunContext& context, const FloatArray& x, const FloatArray& w,
                  const FloatArray& y) const {
  const Owner<OrtValue> x_view = View(x), w_view = View(w), y_view = View(y);
  const OrtValue* const inputs[] = {x_view.get(), w_view.get()};
  OrtValue* const output = y_view.get();
  Check(api_, ort::InvokeOp(api_, context.of_ort(), op_.get(), inputs, 2, &output, 1));
}

StockOp::Owner<OrtValue> StockOp::View(const FloatArray& array) const {
  size_t bytes = sizeof(float);
  for (const int64_t size : array.shape) bytes *= static_cast<size_t>(size);
  OrtValue* value = nullptr;
  Check(api_, ort::CreateTensorWithDataAsOrtValue(api_, memory_.get(), array.data, bytes, array.shape.data(),
                                                  array.shape.size(), ort::kTensorFloat, &value));
  return Owner<OrtValue>(value, {api_});
}

StockOp::Scratch::Scratch(const StockOp& op, const RunContext& context, int64_t count)
    : allocator_(nullptr, {op.api_}), data_(nullptr, {op.api_, nullptr}) {
  OrtAllocator* allocator = nullptr;
  Check(op.api_, ort::KernelContext_GetAllocator(op.api_, context.of_ort(), op.memory_.get(), &allocator));
  allocator_.reset(allocator);
  void* data = nullptr;
  Check(op.api_, ort::AllocatorAlloc(op.api_, allocator, static_cast<size_t>(count) * sizeof(float), &data));
  data_ = std::unique_ptr<void, Free>(data, {op.api_, allocator});
}

void StockOp::Scratch::Free::operator()(void* data) const {
  ort::ReleaseStatus(api, ort::AllocatorFree(api, allocator, data));
}

}  // namespace bngrad
