#include "cuda/conv_grad.hpp"

#include <algorithm>

#include "cuda/batch_norm.hpp"
#include "cuda/conv_copies.hpp"

namespace bngrad::cuda {
namespace {

// The sum of each channel by the kernels of a batch norm's dbias: in double, in a fixed order. What they read
// beside dY has no effect on it.
void SumChannels(const ConvGradArguments& a, Device& device) {
  Shape shape = a.dy_shape, axes = bngrad::Vector(0);
  if (a.channels_last) std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  const size_t first = a.channels_last ? 1 : 2;
  for (size_t i = 0; i + 2 < shape.size(); ++i) axes.push_back(static_cast<int64_t>(first + i));
  GradArguments sums = {};
  sums.types = {a.type, a.type, a.type};
  sums.dy = sums.x = sums.scale = sums.mean = sums.inv_std = a.dy;
  sums.dbias = a.db;
  Grad(MakeLayout(shape, axes), sums, device);
}

}  // namespace

ConvGrad::ConvGrad(const ConvAttributes& attributes) : attributes_(attributes) {}
ConvGrad::~ConvGrad() = default;

const ConvPlan& ConvGrad::PlanFor(const ConvGradArguments& a, const CudnnRun& run) const {
  return plans_[a.channels_last ? 1 : 0].Get(a.x_shape, a.w_shape,
                                             [&] { return MakePlan(attributes_, a, run); });
}

// The gradients of some samples; `adds`: dW is added to that of samples before.
void ConvGrad::RunSamples(const ConvGradArguments& a, bool adds, Device& device) const {
  const CudnnRun run = device.cudnn();
  const ConvPlan& plan = PlanFor(a, run);
  const Factors factors(a.type);
  const size_t size = SizeOf(a.type);
  const size_t filter_bytes = plan.filter ? plan.filter->workspace : 0;
  const size_t data_bytes = plan.data ? plan.data->workspace : 0;
  void* const work = device.Scratch(std::max(filter_bytes, data_bytes));
  const void* x = a.x;
  void* dx = a.dx;
  const ViewDims outside = BoxDims(a.x_shape, a.x_shape, a.channels_last);
  const ViewDims inside = BoxDims(a.x_shape, plan.padded.shape, a.channels_last);
  char* inner = nullptr;
  if (plan.padded.shape != a.x_shape) {
    const size_t bytes = static_cast<size_t>(CountOf(plan.padded.shape)) * size;
    // For X, and then for dX.
    char* const padded = static_cast<char*>(device.Scratch(bytes));
    inner = padded + static_cast<size_t>(plan.padded.offset) * size;
    if (a.dw != nullptr) {
      device.Zero(padded, bytes);
      CopyBox(a.type, outside, a.x, inside, inner, device);
      x = padded;
    }
    if (a.dx != nullptr) dx = padded;
  }
  if (a.dw != nullptr) {
    BNGRAD_CUDNN(run.cudnn, cudnnConvolutionBackwardFilter, run.handle, factors.unit, plan.x.get(), x,
                 plan.dy.get(), a.dy, plan.filter->convolution.get(), plan.filter->algorithm, work,
                 filter_bytes, adds ? factors.unit : factors.zero, plan.w.get(), a.dw);
  }
  if (a.dx == nullptr) return;
  BNGRAD_CUDNN(run.cudnn, cudnnConvolutionBackwardData, run.handle, factors.unit, plan.w.get(), a.w,
               plan.dy.get(), a.dy, plan.data->convolution.get(), plan.data->algorithm, work, data_bytes,
               factors.zero, plan.x.get(), dx);
  if (dx != a.dx) CopyBox(a.type, inside, inner, outside, a.dx, device);
}

// dX and dW of a batch, in as many parts as cuDNN needs.
void ConvGrad::RunBatch(const ConvGradArguments& a, Device& device) const {
  const size_t size = SizeOf(a.type);
  const int64_t x_sample = CountOf(a.x_shape) / a.x_shape[0];
  const int64_t dy_sample = CountOf(a.dy_shape) / a.dy_shape[0];
  const int64_t most = SamplesPerCall(attributes_, a.x_shape, a.w_shape, a.dy_shape, "dY", "--conv-grad");
  const int64_t chunk = std::min(most, a.x_shape[0]), rest = a.x_shape[0] % chunk;
  ConvGradArguments samples = a;
  if (a.channels_last) {
    if (!MayTakeChannelsLast(attributes_, a.type)) return RunTransposed(a, device);
    const CudnnRun run = device.cudnn();
    for (const int64_t count : {chunk, rest == 0 ? chunk : rest}) {
      samples.x_shape[0] = samples.dy_shape[0] = count;
      if (!PlanFor(samples, run).is_supported) return RunTransposed(a, device);
    }
  }
  for (int64_t first = 0; first < a.x_shape[0]; first += chunk) {
    samples.x_shape[0] = samples.dy_shape[0] = std::min(chunk, a.x_shape[0] - first);
    const size_t x_offset = static_cast<size_t>(first * x_sample) * size;
    samples.x = static_cast<const char*>(a.x) + x_offset;
    samples.dy = static_cast<const char*>(a.dy) + static_cast<size_t>(first * dy_sample) * size;
    if (a.dx != nullptr) samples.dx = static_cast<char*>(a.dx) + x_offset;
    RunSamples(samples, first > 0, device);
  }
}

// A batch with channels last, by way of channels first.
void ConvGrad::RunTransposed(const ConvGradArguments& a, Device& device) const {
  const auto memory = [&](const Shape& shape) {
    return device.Scratch(static_cast<size_t>(CountOf(shape)) * SizeOf(a.type));
  };
  const auto transposed = [&](const Shape& shape, const void* array) {
    void* const result = memory(shape);
    ChannelsFirst(a.type, shape, array, result, device);
    return result;
  };
  ConvGradArguments first = a;
  first.channels_last = false;
  first.dy = transposed(a.dy_shape, a.dy);
  // X, and then dX: a sample of X is not read after its dX is written.
  void* const images = a.dw == nullptr ? memory(a.x_shape) : transposed(a.x_shape, a.x);
  first.x = images;
  if (a.dw != nullptr) first.dw = memory(a.w_shape);
  if (a.dx != nullptr) {
    first.dx = images;
    first.w = transposed(a.w_shape, a.w);
  }
  RunBatch(first, device);
  if (a.dx != nullptr) ChannelsLast(a.type, a.x_shape, first.dx, a.dx, device);
  if (a.dw != nullptr) ChannelsLast(a.type, a.w_shape, first.dw, a.dw, device);
}

void ConvGrad::Run(const ConvGradArguments& a, Device& device) const {
  const size_t size = SizeOf(a.type);
  const int64_t x_count = CountOf(a.x_shape), w_count = CountOf(a.w_shape), dy_count = CountOf(a.dy_shape);
  const auto zero = [&](void* data, int64_t count) {
    if (data != nullptr) device.Zero(data, static_cast<size_t>(count) * size);
  };
  if (x_count == 0 || w_count == 0 || dy_count == 0) {
    zero(a.dx, x_count);
    zero(a.dw, w_count);
  } else if (a.dx != nullptr || a.dw != nullptr) {
    RunBatch(a, device);
  }
  // Last, so that the workspace is the same memory in every node.
  if (dy_count == 0) {
    zero(a.db, a.w_shape[0]);
  } else if (a.db != nullptr) {
    SumChannels(a, device);
  }
}

}  // namespace bngrad::cuda
