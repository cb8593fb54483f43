#include "cuda/conv_plan.hpp"

namespace bngrad::cuda {
namespace {

constexpr int kImplicitGemm = 1;  // a deterministic algorithm of both gradients, for all shapes

}  // namespace

std::unique_ptr<ConvPlan> MakePlan(const ConvAttributes& attributes, const ConvGradArguments& a,
                                   const CudnnRun& run) {
  const Cudnn& cudnn = run.cudnn;
  const int type = DataTypeOf(a.type), sums = DataTypeOf(bngrad::ArithmeticOf(a.type));
  const bool last = a.channels_last;
  const PaddedX padded = PaddedFor(attributes, a.x_shape, a.w_shape, last);
  auto plan = std::unique_ptr<ConvPlan>(new ConvPlan{padded,
                                                     Tensor(cudnn, type, padded.shape, last),
                                                     Filter(cudnn, type, a.w_shape, last),
                                                     Tensor(cudnn, type, a.dy_shape, last),
                                                     {},
                                                     {},
                                                     true});
  void *const x = plan->x.get(), *const w = plan->w.get(), *const dy = plan->dy.get();
  const auto choose = [&](const char* name, const Proposer& propose, const Sizer& size) {
    auto algorithm = Choose(run, a.type, last, name, Convolution(cudnn, sums, attributes, padded.pads),
                            kImplicitGemm, propose, size);
    plan->is_supported &= algorithm.has_value();
    return algorithm;
  };
  if (a.dw != nullptr) {
    plan->filter = choose(
        "BackwardFilter",
        [&](void* convolution, int count, int* returned, CudnnAlgorithm* algorithms) {
          return cudnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7(run.handle, x, dy, convolution, w, count,
                                                                     returned, algorithms);
        },
        [&](void* convolution, int algorithm, size_t* bytes) {
          return cudnn.cudnnGetConvolutionBackwardFilterWorkspaceSize(run.handle, x, dy, convolution, w,
                                                                      algorithm, bytes);
        });
  }
  if (a.dx != nullptr) {
    plan->data = choose(
        "BackwardData",
        [&](void* convolution, int count, int* returned, CudnnAlgorithm* algorithms) {
          return cudnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(run.handle, w, dy, convolution, x, count,
                                                                   returned, algorithms);
        },
        [&](void* convolution, int algorithm, size_t* bytes) {
          return cudnn.cudnnGetConvolutionBackwardDataWorkspaceSize(run.handle, w, dy, convolution, x,
                                                                    algorithm, bytes);
        });
  }
  return plan;
}

}  // namespace bngrad::cuda
