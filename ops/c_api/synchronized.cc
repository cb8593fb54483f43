// The functions of bngrad.h for synchronized batch normalization.
#include "core/synchronized.hpp"

#include <string>

#include "bngrad.h"
#include "c_api/call.hpp"
#include "c_api/guard.hpp"
#include "core/dispatch.hpp"
#include "core/grad.hpp"
#include "core/training.hpp"

namespace bngrad {
namespace {

constexpr ElementType kDouble = ElementType::kDouble;

const double* DoubleInput(Arrays& arrays, const char* name, const double* data, int64_t count) {
  return static_cast<const double*>(arrays.Input(name, data, count, kDouble));
}

double* DoubleOutput(Arrays& arrays, const char* name, double* data, int64_t count) {
  return static_cast<double*>(arrays.Output(name, data, count, kDouble));
}

// Throws unless `ranks` arrays of `rows` doubles per channel can be addressed.
int64_t GatheredCount(int64_t ranks, int64_t rows, int64_t channels) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 64;
  if (ranks < 1) throw InvalidArgument("ranks is " + std::to_string(ranks) + "; expected 1 or more");
  if (channels < 0 || channels > kMax / rows / ranks) {
    throw InvalidArgument("channels is " + std::to_string(channels) + "; expected 0 to " +
                          std::to_string(kMax / rows / ranks) + " for " + std::to_string(ranks) + " ranks");
  }
  return ranks * rows * channels;
}

}  // namespace
}  // namespace bngrad

using namespace bngrad;

int32_t bngrad_batch_normalization_moments(const bngrad_layout* layout, const void* x, double* moments,
                                           int32_t num_threads, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    call.arrays.DataInput("x", x);
    call.arrays.RequiredOutput("moments", moments, 3 * call.layout.channels, kDouble);
    Moments(call.layout, call.types.data, x, moments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_merge_moments(int64_t ranks, int64_t channels, int32_t stat_type,
                                                 double epsilon, double momentum,
                                                 int32_t unbiased_running_var, const double* gathered_moments,
                                                 const void* running_mean, const void* running_var,
                                                 void* new_running_mean, void* new_running_var,
                                                 double* batch_mean, double* batch_inv_std,
                                                 double* batch_count, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    const int64_t gathered = GatheredCount(ranks, 3, channels);
    const ElementType stat = static_cast<ElementType>(stat_type);
    if (!IsSupported({stat, stat, stat})) {
      throw InvalidArgument("stat_type is " + std::to_string(stat_type) +
                            "; expected 1 (float), 10 (float16), 11 (double) or 16 (bfloat16)");
    }
    CheckEpsilon(epsilon);
    CheckMomentum(momentum);
    Arrays arrays({}, {});
    const MergeMomentsArguments arguments = {
        ranks,
        channels,
        stat,
        epsilon,
        momentum,
        ToBool("unbiased_running_var", unbiased_running_var),
        DoubleInput(arrays, "gathered_moments", gathered_moments, gathered),
        arrays.Input("running_mean", running_mean, channels, stat),
        arrays.Input("running_var", running_var, channels, stat),
        arrays.Output("new_running_mean", new_running_mean, channels, stat),
        arrays.Output("new_running_var", new_running_var, channels, stat),
        DoubleOutput(arrays, "batch_mean", batch_mean, channels),
        DoubleOutput(arrays, "batch_inv_std", batch_inv_std, channels),
        DoubleOutput(arrays, "batch_count", batch_count, 1)};
    MergeMoments(arguments);
  });
}

int32_t bngrad_batch_normalization_apply(const bngrad_layout* layout, const void* x, const void* scale,
                                         const void* bias, const double* batch_mean,
                                         const double* batch_inv_std, void* y, int32_t num_threads,
                                         char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    const int64_t channels = call.layout.channels;
    const ApplyArguments arguments = {call.types,
                                      call.arrays.DataInput("x", x),
                                      call.arrays.ScaleInput("scale", scale),
                                      call.arrays.ScaleInput("bias", bias),
                                      DoubleInput(call.arrays, "batch_mean", batch_mean, channels),
                                      DoubleInput(call.arrays, "batch_inv_std", batch_inv_std, channels),
                                      call.arrays.DataOutput("y", y)};
    Apply(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_grad_sums(const bngrad_layout* layout, const void* dy, const void* z,
                                             const void* x, const double* batch_mean,
                                             const double* batch_inv_std, double* sums, void* dscale,
                                             void* dbias, int32_t num_threads, char* error,
                                             size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    const int64_t channels = call.layout.channels;
    const GradSumsArguments arguments = {call.types,
                                         call.arrays.DataInput("dy", dy),
                                         z == nullptr ? nullptr : call.arrays.DataInput("z", z),
                                         call.arrays.DataInput("x", x),
                                         DoubleInput(call.arrays, "batch_mean", batch_mean, channels),
                                         DoubleInput(call.arrays, "batch_inv_std", batch_inv_std, channels),
                                         DoubleOutput(call.arrays, "sums", sums, 2 * channels),
                                         call.arrays.ScaleOutput("dscale", dscale),
                                         call.arrays.ScaleOutput("dbias", dbias)};
    GradSums(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_grad_apply(const bngrad_layout* layout, int64_t ranks, double batch_count,
                                              const void* dy, const void* z, const void* x, const void* scale,
                                              const double* batch_mean, const double* batch_inv_std,
                                              const double* gathered_sums, void* dx, int32_t num_threads,
                                              char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    const int64_t channels = call.layout.channels, gathered = GatheredCount(ranks, 2, channels);
    const GradApplyArguments arguments = {call.types,
                                          call.arrays.DataInput("dy", dy),
                                          z == nullptr ? nullptr : call.arrays.DataInput("z", z),
                                          call.arrays.DataInput("x", x),
                                          call.arrays.ScaleInput("scale", scale),
                                          DoubleInput(call.arrays, "batch_mean", batch_mean, channels),
                                          DoubleInput(call.arrays, "batch_inv_std", batch_inv_std, channels),
                                          ranks,
                                          DoubleInput(call.arrays, "gathered_sums", gathered_sums, gathered),
                                          &batch_count,
                                          call.arrays.DataOutput("dx", dx)};
    GradApply(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}
