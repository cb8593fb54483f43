// Parts that the ops by cuDNN's convolutions share: padding, the choice of an algorithm, the parts of a
// batch. Shapes are [N, C, spatial dimensions], whether the channels are last in memory or not.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/descriptors.hpp"
#include "cuda/device.hpp"

namespace bngrad::cuda {

// X for cuDNN, which has one number for the padding of both sides: the rest is zeros around X.
struct PaddedX {
  Shape pads;      // of both sides
  Shape shape;     // of X with the rest of the padding
  int64_t offset;  // of X in it, in elements
};
PaddedX PaddedFor(const ConvAttributes& attributes, const Shape& x, const Shape& w, bool channels_last);

// A convolution or one of its gradients: its descriptor has the arithmetic of the algorithm.
struct Algorithm {
  Descriptor convolution;
  int algorithm;
  size_t workspace;
};

// The functions of cuDNN that propose algorithms, and that return their workspace.
using Proposer = std::function<int(void* convolution, int count, int* returned, CudnnAlgorithm* algorithms)>;
using Sizer = std::function<int(void* convolution, int algorithm, size_t* bytes)>;

// The first algorithm of those proposed that is deterministic, and for float without TF32 exact; if there is
// none, `fallback`. With channels last, there are types and shapes that cuDNN does not take: nothing then.
// `name` is that in the functions' names. Throws Failure.
std::optional<Algorithm> Choose(const CudnnRun& run, ElementType type, bool channels_last,
                                const std::string& name, Descriptor convolution, int fallback,
                                const Proposer& propose, const Sizer& size);

// False for what is transposed to channels first without asking cuDNN: what was not tried on a card.
bool MayTakeChannelsLast(const ConvAttributes& attributes, ElementType type);

// The factors 1 and 0 as cuDNN takes them.
struct Factors {
  explicit Factors(ElementType type);
  const void *unit, *zero;
};

// The number of samples in one call of cuDNN, which counts in int32. Throws InvalidArgument if there is none;
// its message has `y_name`, and `option` as what to leave out.
int64_t SamplesPerCall(const ConvAttributes& attributes, const Shape& x, const Shape& w, const Shape& y,
                       const char* y_name, const char* option);

// What is kept for the shapes of X and W.
template <class Plan>
class Plans {
 public:
  template <class Make>
  const Plan& Get(const Shape& x, const Shape& w, const Make& make) {
    std::vector<int64_t> key(x.begin(), x.end());
    key.insert(key.end(), w.begin(), w.end());
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Plan>& kept = plans_[std::move(key)];
    if (kept == nullptr) kept = make();
    return *kept;
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<int64_t>, std::unique_ptr<Plan>> plans_;
};

}  // namespace bngrad::cuda
