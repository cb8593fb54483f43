#include "cuda/conv_channels_last.hpp"

#include <algorithm>

#include "cuda/conv_copies.hpp"

namespace bngrad::cuda {
namespace {

constexpr int kImplicitGemm = 0;  // a deterministic algorithm for all shapes

}  // namespace

struct ConvChannelsLast::Plan {
  bool channels_last;
  PaddedX padded;
  Descriptor x, w, y;
  Algorithm algorithm;
};

ConvChannelsLast::ConvChannelsLast(const ConvAttributes& attributes) : attributes_(attributes) {}
ConvChannelsLast::~ConvChannelsLast() = default;

// Null if cuDNN does not take the arrays with channels last.
std::unique_ptr<ConvChannelsLast::Plan> ConvChannelsLast::MakePlan(const ConvChannelsLastArguments& a,
                                                                   const CudnnRun& run,
                                                                   bool channels_last) const {
  const Cudnn& cudnn = run.cudnn;
  const int type = DataTypeOf(a.type), sums = DataTypeOf(bngrad::ArithmeticOf(a.type));
  PaddedX padded = PaddedFor(attributes_, a.x_shape, a.w_shape, true);
  Descriptor x = Tensor(cudnn, type, padded.shape, channels_last);
  Descriptor w = Filter(cudnn, type, a.w_shape, channels_last);
  Descriptor y = Tensor(cudnn, type, a.y_shape, channels_last);
  std::optional<Algorithm> algorithm = Choose(
      run, a.type, channels_last, "Forward", Convolution(cudnn, sums, attributes_, padded.pads),
      kImplicitGemm,
      [&](void* convolution, int count, int* returned, CudnnAlgorithm* algorithms) {
        return cudnn.cudnnGetConvolutionForwardAlgorithm_v7(run.handle, x.get(), w.get(), convolution,
                                                            y.get(), count, returned, algorithms);
      },
      [&](void* convolution, int chosen, size_t* bytes) {
        return cudnn.cudnnGetConvolutionForwardWorkspaceSize(run.handle, x.get(), w.get(), convolution,
                                                             y.get(), chosen, bytes);
      });
  if (!algorithm) return nullptr;
  return std::unique_ptr<Plan>(new Plan{channels_last, std::move(padded), std::move(x), std::move(w),
                                        std::move(y), std::move(*algorithm)});
}

void ConvChannelsLast::RunSamples(const ConvChannelsLastArguments& a, Device& device) const {
  const CudnnRun run = device.cudnn();
  const Plan& plan = plans_.Get(a.x_shape, a.w_shape, [&] {
    std::unique_ptr<Plan> last;
    if (MayTakeChannelsLast(attributes_, a.type)) last = MakePlan(a, run, true);
    return last != nullptr ? std::move(last) : MakePlan(a, run, false);
  });
  const size_t size = SizeOf(a.type);
  const auto scratch = [&](const Shape& shape) {
    return static_cast<char*>(device.Scratch(static_cast<size_t>(CountOf(shape)) * size));
  };
  void* const work = device.Scratch(plan.algorithm.workspace);
  const void *x = a.x, *w = a.w;
  void* y = a.y;
  const Shape& x_shape = plan.padded.shape;
  if (x_shape != a.x_shape) {
    char* const padded = scratch(x_shape);
    device.Zero(padded, static_cast<size_t>(CountOf(x_shape)) * size);
    CopyBox(a.type, BoxDims(a.x_shape, a.x_shape, true), a.x, BoxDims(a.x_shape, x_shape, true),
            padded + static_cast<size_t>(plan.padded.offset) * size, device);
    x = padded;
  }
  if (!plan.channels_last) {
    void *const x_first = scratch(x_shape), *const w_first = scratch(a.w_shape);
    ChannelsFirst(a.type, x_shape, x, x_first, device);
    ChannelsFirst(a.type, a.w_shape, w, w_first, device);
    x = x_first;
    w = w_first;
    y = scratch(a.y_shape);
  }
  const Factors factors(a.type);
  BNGRAD_CUDNN(run.cudnn, cudnnConvolutionForward, run.handle, factors.unit, plan.x.get(), x, plan.w.get(), w,
               plan.algorithm.convolution.get(), plan.algorithm.algorithm, work, plan.algorithm.workspace,
               factors.zero, plan.y.get(), y);
  if (y != a.y) ChannelsLast(a.type, a.y_shape, y, a.y, device);
}

void ConvChannelsLast::Run(const ConvChannelsLastArguments& a, Device& device) const {
  const size_t size = SizeOf(a.type);
  const int64_t x_count = CountOf(a.x_shape), y_count = CountOf(a.y_shape);
  if (y_count == 0) return;
  if (x_count == 0 || CountOf(a.w_shape) == 0) {
    device.Zero(a.y, static_cast<size_t>(y_count) * size);
    return;
  }
  const int64_t batch = a.x_shape[0];
  const int64_t chunk = SamplesPerCall(attributes_, a.x_shape, a.w_shape, a.y_shape, "Y", "--channels-last");
  for (int64_t first = 0; first < batch; first += chunk) {
    ConvChannelsLastArguments samples = a;
    samples.x_shape[0] = samples.y_shape[0] = std::min(chunk, batch - first);
    samples.x = static_cast<const char*>(a.x) + static_cast<size_t>(first * (x_count / batch)) * size;
    samples.y = static_cast<char*>(a.y) + static_cast<size_t>(first * (y_count / batch)) * size;
    RunSamples(samples, device);
  }
}

}  // namespace bngrad::cuda
