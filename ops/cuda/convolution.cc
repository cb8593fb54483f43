#include "cuda/convolution.hpp"

#include <algorithm>

#include "core/error.hpp"

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
constexpr int kBadParam = 2000, kNotSupported = 3000, kInternalError = 4000;  // the first statuses of kinds
constexpr int kMaxAlgorithms = 8;

// Arithmetic of float is exact products, unless TF32 is allowed; that of 16 bits is float.
int MathOf(ElementType type, bool tf32) {
  if (type == ElementType::kFloat) return tf32 ? kDefaultMath : kFmaMath;
  return type == ElementType::kDouble ? kDefaultMath : kTensorOpMath;
}

}  // namespace

PaddedX PaddedFor(const ConvAttributes& attributes, const Shape& x, const Shape& w, bool channels_last) {
  PaddedX padded = {{}, x, 0};
  for (size_t i = 0; i < attributes.begins.size(); ++i) {
    const int64_t begin = attributes.begins[i], end = attributes.ends[i];
    // Less than a window: not every algorithm takes more.
    const int64_t window = attributes.dilations[i] * (w[i + 2] - 1) + 1;
    const int64_t pad = std::min({begin, end, window - 1});
    padded.pads.push_back(pad);
    padded.shape[i + 2] += begin + end - 2 * pad;
    padded.offset = padded.offset * padded.shape[i + 2] + begin - pad;
  }
  if (channels_last) padded.offset *= x[1];
  return padded;
}

std::optional<Algorithm> Choose(const CudnnRun& run, ElementType type, bool channels_last,
                                const std::string& name, Descriptor convolution, int fallback,
                                const Proposer& propose, const Sizer& size) {
  const Cudnn& cudnn = run.cudnn;
  const auto refuses = [&](int status) {
    return status >= (channels_last ? kBadParam : kNotSupported) && status < kInternalError;
  };
  Algorithm chosen = {std::move(convolution), fallback, 0};
  void* const descriptor = chosen.convolution.get();
  int math = MathOf(type, run.tf32);
  BNGRAD_CUDNN(cudnn, cudnnSetConvolutionMathType, descriptor, math);
  CudnnAlgorithm candidates[kMaxAlgorithms] = {};
  int count = 0;
  const int status = propose(descriptor, kMaxAlgorithms, &count, candidates);
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
    chosen.algorithm = candidate.algorithm;
    if (math != kFmaMath) math = candidate.math;
    break;
  }
  BNGRAD_CUDNN(cudnn, cudnnSetConvolutionMathType, descriptor, math);
  const int status_of_size = size(descriptor, chosen.algorithm, &chosen.workspace);
  if (channels_last && refuses(status_of_size)) return std::nullopt;
  cudnn.Check(status_of_size, ("cudnnGetConvolution" + name + "WorkspaceSize").c_str());
  return chosen;
}

bool MayTakeChannelsLast(const ConvAttributes& attributes, ElementType type) {
  return attributes.group == 1 && attributes.strides.size() <= 2 && type != ElementType::kDouble;
}

Factors::Factors(ElementType type) {
  static const double doubles[] = {1, 0};
  static const float floats[] = {1, 0};
  const bool is_double = type == ElementType::kDouble;
  unit = is_double ? static_cast<const void*>(&doubles[0]) : &floats[0];
  zero = is_double ? static_cast<const void*>(&doubles[1]) : &floats[1];
}

int64_t SamplesPerCall(const ConvAttributes& attributes, const Shape& x, const Shape& w, const Shape& y,
                       const char* y_name, const char* option) {
  int64_t padded = x[1];
  for (size_t i = 0; i < attributes.begins.size(); ++i) {
    padded = std::min(padded, kMaxElements + 1) * (x[i + 2] + attributes.begins[i] + attributes.ends[i]);
  }
  const int64_t sample = std::max(padded, CountOf(y) / y[0]), w_count = CountOf(w);
  if (std::max(sample, w_count) > kMaxElements) {
    throw InvalidArgument("a padded sample of X or a sample of " + std::string(y_name) + " has " +
                          std::to_string(sample) + " elements, and W " + std::to_string(w_count) +
                          "; cuDNN takes at most " + std::to_string(kMaxElements) + ". Leave out " + option);
  }
  return kMaxElements / sample;
}

}  // namespace bngrad::cuda
