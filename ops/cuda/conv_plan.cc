#include "cuda/conv_plan.hpp"

#include <algorithm>
#include <string>

namespace bngrad::cuda {
namespace {

// The largest workspace of an algorithm that is chosen among several.
constexpr size_t kMaxWorkspace = size_t{512} << 20;

// Enumerations of cuDNN.
constexpr int kDefaultMath = 0, kTensorOpMath = 1, kConvertingMath = 2, kFmaMath = 3;
constexpr int kBadParam = 2000, kNotSupported = 3000, kInternalError = 4000;  // the first statuses of kinds
constexpr int kMaxAlgorithms = 8;

// Arithmetic of float is exact products, unless TF32 is allowed; that of 16 bits is float.
int MathOf(ElementType type, bool tf32) {
  if (type == ElementType::kFloat) return tf32 ? kDefaultMath : kFmaMath;
  return type == ElementType::kDouble ? kDefaultMath : kTensorOpMath;
}

// Chooses the algorithm of a gradient. `query` and `size` are cuDNN's functions for it. Of channels last,
// there are types and shapes that cuDNN does not take: false then.
template <class Query, class Size>
bool Choose(const Cudnn& cudnn, int math, bool channels_last, const std::string& name, const Query& query,
            const Size& size, ConvPlan::Gradient* gradient) {
  const auto refuses = [&](int status) {
    return status >= (channels_last ? kBadParam : kNotSupported) && status < kInternalError;
  };
  CudnnAlgorithm candidates[kMaxAlgorithms] = {};
  int count = 0;
  const int status = query(kMaxAlgorithms, &count, candidates);
  if (refuses(status)) {
    count = 0;
  } else {
    cudnn.Check(status, ("cudnnGetConvolution" + name + "Algorithm_v7").c_str());
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
  const int status_of_size = size(gradient->algorithm, &gradient->workspace);
  if (channels_last && refuses(status_of_size)) return false;
  cudnn.Check(status_of_size, ("cudnnGetConvolution" + name + "WorkspaceSize").c_str());
  return true;
}

}  // namespace

std::unique_ptr<ConvPlan> MakePlan(const ConvAttributes& attributes, const ConvGradArguments& a,
                                   const CudnnRun& run) {
  const Cudnn& cudnn = run.cudnn;
  const int type = DataTypeOf(a.type), sums = DataTypeOf(bngrad::ArithmeticOf(a.type));
  Shape pads, padded = a.x_shape;
  int64_t offset = 0;
  for (size_t i = 0; i < attributes.begins.size(); ++i) {
    const int64_t begin = attributes.begins[i], end = attributes.ends[i];
    // Less than a window: not every algorithm takes more.
    const int64_t window = attributes.dilations[i] * (a.w_shape[i + 2] - 1) + 1;
    pads.push_back(std::min({begin, end, window - 1}));
    padded[i + 2] += begin + end - 2 * pads[i];
    offset = offset * padded[i + 2] + begin - pads[i];
  }
  if (a.channels_last) offset *= a.x_shape[1];
  const bool last = a.channels_last;
  auto plan = std::unique_ptr<ConvPlan>(new ConvPlan{padded,
                                                     offset,
                                                     Tensor(cudnn, type, padded, last),
                                                     Filter(cudnn, type, a.w_shape, last),
                                                     Tensor(cudnn, type, a.dy_shape, last),
                                                     {Convolution(cudnn, sums, attributes, pads)},
                                                     {Convolution(cudnn, sums, attributes, pads)},
                                                     true});
  void *const x = plan->x.get(), *const w = plan->w.get(), *const dy = plan->dy.get();
  void *const filter = plan->filter.convolution.get(), *const data = plan->data.convolution.get();
  const int math = MathOf(a.type, run.tf32);
  for (void* const convolution : {filter, data}) {
    BNGRAD_CUDNN(cudnn, cudnnSetConvolutionMathType, convolution, math);
  }
  if (a.dw != nullptr) {
    plan->is_supported &= Choose(
        cudnn, math, last, "BackwardFilter",
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
    plan->is_supported &= Choose(
        cudnn, math, last, "BackwardData",
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
  return plan;
}

}  // namespace bngrad::cuda
