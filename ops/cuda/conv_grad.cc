#include "cuda/conv_grad.hpp"

#include <algorithm>
#include <string>

#include "cuda/batch_norm.hpp"
#include "cuda/kernels/copy.h"

namespace bngrad::cuda {
namespace {

// The largest workspace of an algorithm that is chosen among several.
constexpr size_t kMaxWorkspace = size_t{512} << 20;
// Elements of an array in one call of cuDNN, which counts in int32.
#if defined(BNGRAD_CUDNN_ELEMENTS)
constexpr int64_t kMaxElements = BNGRAD_CUDNN_ELEMENTS;  // fewer for the tests
#else
constexpr int64_t kMaxElements = INT32_MAX;
#endif

// Enumerations of cuDNN.
constexpr int kDefaultMath = 0, kTensorOpMath = 1, kConvertingMath = 2, kFmaMath = 3;
constexpr int kNotSupported = 3000, kInternalError = 4000;  // statuses between them: not supported
constexpr int kImplicitGemm = 1;  // a deterministic algorithm of both gradients, for all shapes
constexpr int kMaxAlgorithms = 8;

// Arithmetic of float is exact products, unless TF32 is allowed; that of 16 bits is float.
int MathOf(ElementType type, bool tf32) {
  if (type == ElementType::kFloat) return tf32 ? kDefaultMath : kFmaMath;
  return type == ElementType::kDouble ? kDefaultMath : kTensorOpMath;
}

int64_t CountOf(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// The sizes and strides of a box of NC images in memory of images of `outer` sizes, as cuda/kernels/view.h.
ViewDims BoxDims(const Shape& box, const Shape& outer) {
  ViewDims dims = {0, {1, 1, 1, 1}, {}};
  int64_t stride = 1;
  for (size_t i = box.size(); i-- > 2; ++dims.count) {
    dims.size[dims.count] = box[i];
    dims.stride[dims.count] = stride;
    stride *= outer[i];
  }
  dims.size[dims.count] = box[0] * box[1];
  dims.stride[dims.count++] = stride;
  return dims;
}

// The sum of each channel by the kernels of a batch norm's dbias: in double, in a fixed order. What they read
// beside dY has no effect on it.
void SumChannels(const ConvGradArguments& a, Device& device) {
  Shape axes = bngrad::Vector(0);
  for (size_t i = 2; i < a.dy_shape.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  GradArguments sums = {};
  sums.types = {a.type, a.type, a.type};
  sums.dy = sums.x = sums.scale = sums.mean = sums.inv_std = a.dy;
  sums.dbias = a.db;
  Grad(MakeLayout(a.dy_shape, axes), sums, device);
}

}  // namespace

struct ConvGrad::Plan {
  // One of the two gradients: its descriptor has the arithmetic of the algorithm.
  struct Gradient {
    Descriptor convolution;
    int algorithm = kImplicitGemm;
    size_t workspace = 0;
  };

  Shape padded;    // the shape of X with what `pads` does not have of the padding
  int64_t offset;  // of X in it, in elements
  Descriptor x, w, dy;
  Gradient filter, data;

  bool copies(const ConvGradArguments& samples) const { return padded != samples.x_shape; }
};

namespace {

// Chooses the algorithm of a gradient. `query` and `size` are cuDNN's functions for it.
template <class Gradient, class Query, class Size>
void Choose(const Cudnn& cudnn, int math, const std::string& name, const Query& query, const Size& size,
            Gradient* gradient) {
  CudnnAlgorithm candidates[kMaxAlgorithms] = {};
  int count = 0;
  const int status = query(kMaxAlgorithms, &count, candidates);
  if (status < kNotSupported || status >= kInternalError) {
    cudnn.Check(status, ("cudnnGetConvolution" + name + "Algorithm_v7").c_str());
  } else {
    count = 0;
  }
  for (int i = 0; i < count; ++i) {
    const CudnnAlgorithm& candidate = candidates[i];
    const bool exact = candidate.math == kFmaMath || candidate.math == kDefaultMath;
    if (candidate.status != 0 || candidate.deterministic == 0 || candidate.workspace > kMaxWorkspace)
      continue;
    if (candidate.math == kConvertingMath || (math == kFmaMath && !exact)) continue;
    gradient->algorithm = candidate.algorithm;
    if (math != kFmaMath) math = candidate.math;
    break;
  }
  BNGRAD_CUDNN(cudnn, cudnnSetConvolutionMathType, gradient->convolution.get(), math);
  cudnn.Check(size(gradient->algorithm, &gradient->workspace),
              ("cudnnGetConvolution" + name + "WorkspaceSize").c_str());
}

}  // namespace

ConvGrad::ConvGrad(const ConvAttributes& attributes) : attributes_(attributes) {}
ConvGrad::~ConvGrad() = default;

const ConvGrad::Plan& ConvGrad::PlanFor(const ConvGradArguments& a, const CudnnRun& run) const {
  std::vector<int64_t> key(a.x_shape.begin(), a.x_shape.end());
  key.insert(key.end(), a.w_shape.begin(), a.w_shape.end());
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Plan>& kept = plans_[key];
  if (kept != nullptr) return *kept;
  const Cudnn& cudnn = run.cudnn;
  const int type = DataTypeOf(a.type), sums = DataTypeOf(bngrad::ArithmeticOf(a.type));
  Shape pads, padded = a.x_shape;
  int64_t offset = 0;
  for (size_t i = 0; i < attributes_.begins.size(); ++i) {
    const int64_t begin = attributes_.begins[i], end = attributes_.ends[i];
    // Less than a window: not every algorithm takes more.
    const int64_t window = attributes_.dilations[i] * (a.w_shape[i + 2] - 1) + 1;
    pads.push_back(std::min({begin, end, window - 1}));
    padded[i + 2] += begin + end - 2 * pads[i];
    offset = offset * padded[i + 2] + begin - pads[i];
  }
  auto plan = std::unique_ptr<Plan>(new Plan{padded,
                                             offset,
                                             Tensor(cudnn, type, padded),
                                             Filter(cudnn, type, a.w_shape),
                                             Tensor(cudnn, type, a.dy_shape),
                                             {Convolution(cudnn, sums, attributes_, pads)},
                                             {Convolution(cudnn, sums, attributes_, pads)}});
  void *const x = plan->x.get(), *const w = plan->w.get(), *const dy = plan->dy.get();
  void *const filter = plan->filter.convolution.get(), *const data = plan->data.convolution.get();
  const int math = MathOf(a.type, run.tf32);
  for (void* const convolution : {filter, data}) {
    BNGRAD_CUDNN(cudnn, cudnnSetConvolutionMathType, convolution, math);
  }
  if (a.dw != nullptr) {
    Choose(
        cudnn, math, "BackwardFilter",
        [&](int count, int* returned, CudnnAlgorithm* algorithms) {
          return cudnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7(run.handle, x, dy, filter, w, count,
                                                                     returned, algorithms);
        },
        [&](int algorithm, size_t* bytes) {
          return cudnn.cudnnGetConvolutionBackwardFilterWorkspaceSize(run.handle, x, dy, filter, w, algorithm,
                                                                      bytes);
        },
        &plan->filter);
  }
  if (a.dx != nullptr) {
    Choose(
        cudnn, math, "BackwardData",
        [&](int count, int* returned, CudnnAlgorithm* algorithms) {
          return cudnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(run.handle, w, dy, data, x, count,
                                                                   returned, algorithms);
        },
        [&](int algorithm, size_t* bytes) {
          return cudnn.cudnnGetConvolutionBackwardDataWorkspaceSize(run.handle, w, dy, data, x, algorithm,
                                                                    bytes);
        },
        &plan->data);
  }
  kept = std::move(plan);
  return *kept;
}

// The gradients of some samples; `adds`: dW is added to that of samples before.
void ConvGrad::RunSamples(const ConvGradArguments& a, bool adds, Device& device) const {
  const CudnnRun run = device.cudnn();
  const Plan& plan = PlanFor(a, run);
  const double doubles[] = {1, 0};
  const float floats[] = {1, 0};
  const bool is_double = a.type == ElementType::kDouble;
  const void* const unit = is_double ? static_cast<const void*>(&doubles[0]) : &floats[0];
  const void* const zero = is_double ? static_cast<const void*>(&doubles[1]) : &floats[1];
  const size_t size = SizeOf(a.type), workspace = std::max(plan.filter.workspace, plan.data.workspace);
  void* const work = device.Scratch(workspace);
  const void* x = a.x;
  void* dx = a.dx;
  CopyBoxArguments box = {CountOf(a.x_shape), {}, {}, nullptr, nullptr, 0};
  if (plan.copies(a)) {
    const size_t bytes = static_cast<size_t>(CountOf(plan.padded)) * size;
    constexpr int64_t kBlocksPerProcessor = 8;
    box.blocks = static_cast<uint32_t>(
        std::min((box.count + kThreads - 1) / kThreads, kBlocksPerProcessor * device.processors()));
    box.from_dims = BoxDims(a.x_shape, a.x_shape);
    box.to_dims = BoxDims(a.x_shape, plan.padded);
    // For X, and then for dX.
    char* const padded = static_cast<char*>(device.Scratch(bytes));
    char* const inner = padded + static_cast<size_t>(plan.offset) * size;
    if (a.dw != nullptr) {
      device.Zero(padded, bytes);
      box.from = a.x;
      box.to = inner;
      device.Launch(a.type, "copy_box", box.blocks, 1, &box);
      x = padded;
    }
    std::swap(box.from_dims, box.to_dims);
    box.from = inner;
    box.to = a.dx;
    if (a.dx != nullptr) dx = padded;
  }
  if (a.dw != nullptr) {
    BNGRAD_CUDNN(run.cudnn, cudnnConvolutionBackwardFilter, run.handle, unit, plan.x.get(), x, plan.dy.get(),
                 a.dy, plan.filter.convolution.get(), plan.filter.algorithm, work, plan.filter.workspace,
                 adds ? unit : zero, plan.w.get(), a.dw);
  }
  if (a.dx == nullptr) return;
  BNGRAD_CUDNN(run.cudnn, cudnnConvolutionBackwardData, run.handle, unit, plan.w.get(), a.w, plan.dy.get(),
               a.dy, plan.data.convolution.get(), plan.data.algorithm, work, plan.data.workspace, zero,
               plan.x.get(), dx);
  if (dx != a.dx) device.Launch(a.type, "copy_box", box.blocks, 1, &box);
}

// dX and dW of a batch, in as many parts as cuDNN needs.
void ConvGrad::RunBatch(const ConvGradArguments& a, Device& device) const {
  const size_t size = SizeOf(a.type);
  int64_t padded = a.x_shape[1];
  for (size_t i = 0; i < attributes_.begins.size(); ++i) {
    padded =
        std::min(padded, kMaxElements + 1) * (a.x_shape[i + 2] + attributes_.begins[i] + attributes_.ends[i]);
  }
  const int64_t x_sample = CountOf(a.x_shape) / a.x_shape[0];
  const int64_t dy_sample = CountOf(a.dy_shape) / a.dy_shape[0], w_count = CountOf(a.w_shape);
  const int64_t sample = std::max(padded, dy_sample);
  if (std::max(sample, w_count) > kMaxElements) {
    throw InvalidArgument("a padded sample of X or a sample of dY has " + std::to_string(sample) +
                          " elements, and W " + std::to_string(w_count) + "; cuDNN takes at most " +
                          std::to_string(kMaxElements) + ". Leave out --conv-grad");
  }
  const int64_t chunk = kMaxElements / sample;
  for (int64_t first = 0; first < a.x_shape[0]; first += chunk) {
    ConvGradArguments samples = a;
    samples.x_shape[0] = samples.dy_shape[0] = std::min(chunk, a.x_shape[0] - first);
    const size_t x_offset = static_cast<size_t>(first * x_sample) * size;
    samples.x = static_cast<const char*>(a.x) + x_offset;
    samples.dy = static_cast<const char*>(a.dy) + static_cast<size_t>(first * dy_sample) * size;
    if (a.dx != nullptr) samples.dx = static_cast<char*>(a.dx) + x_offset;
    RunSamples(samples, first > 0, device);
  }
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
