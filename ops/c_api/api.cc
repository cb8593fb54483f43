// The C ABI of bngrad.h: checks arguments and runs the ops on the library's own threads.
#include <string>

#include "bngrad.h"
#include "c_api/call.hpp"
#include "c_api/crash_handler.hpp"
#include "c_api/guard.hpp"
#include "core/adam.hpp"
#include "core/bandwidth.hpp"
#include "core/dispatch.hpp"
#include "core/grad.hpp"
#include "core/grad_grad.hpp"
#include "core/training.hpp"
#include "cuda/ptx.hpp"

namespace bngrad {
namespace {

// Statistics have the type that X is computed in.
void CheckStatisticsType(const Types& types) {
  const ElementType expected = ArithmeticOf(types.data);
  if (types.stat == expected) return;
  const auto number = [](ElementType type) { return std::to_string(static_cast<int32_t>(type)); };
  throw InvalidArgument("stat_type is " + number(types.stat) + "; expected " + number(expected) +
                        " for X of type " + number(types.data));
}

// The arguments that both gradient functions have; the caller sets dy and z.
GradArguments ToGradArguments(Call& call, int32_t training_mode, const void* x, const void* scale,
                              const void* mean, const void* inv_std, void* dx, void* dscale, void* dbias) {
  GradArguments arguments = {};
  arguments.types = call.types;
  arguments.training = ToBool("training_mode", training_mode);
  arguments.x = call.arrays.DataInput("x", x);
  arguments.scale = call.arrays.ScaleInput("scale", scale);
  arguments.mean = call.arrays.StatInput("mean", mean);
  arguments.inv_std = call.arrays.StatInput("inv_std", inv_std);
  arguments.dx = call.arrays.DataOutput("dx", dx);
  arguments.dscale = call.arrays.ScaleOutput("dscale", dscale);
  arguments.dbias = call.arrays.ScaleOutput("dbias", dbias);
  return arguments;
}

}  // namespace
}  // namespace bngrad

using namespace bngrad;

const char* bngrad_version() { return BNGRAD_VERSION; }

int32_t bngrad_isa_count() { return IsaCount(); }

const char* bngrad_isa_name(int32_t i) { return i >= 0 && i < IsaCount() ? IsaAt(i).name : nullptr; }

int32_t bngrad_isa_supported(int32_t i) { return i >= 0 && i < IsaCount() && IsaAt(i).supported() ? 1 : 0; }

int32_t bngrad_active_isa(const char** name, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Isa& isa = ActiveIsa();
    if (name != nullptr) *name = isa.name;
  });
}

int32_t bngrad_has_cuda() { return cuda::HasKernels() ? 1 : 0; }

int32_t bngrad_batch_normalization_grad(const bngrad_layout* layout, int32_t training_mode, const void* dy,
                                        const void* x, const void* scale, const void* mean,
                                        const void* inv_std, void* dx, void* dscale, void* dbias,
                                        int32_t num_threads, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    GradArguments arguments =
        ToGradArguments(call, training_mode, x, scale, mean, inv_std, dx, dscale, dbias);
    arguments.dy = call.arrays.DataInput("dy", dy);
    Grad(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_relu_grad(const bngrad_layout* layout, int32_t training_mode,
                                             const void* dz, const void* z, const void* x, const void* scale,
                                             const void* mean, const void* inv_std, void* dx, void* dscale,
                                             void* dbias, int32_t num_threads, char* error,
                                             size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    GradArguments arguments =
        ToGradArguments(call, training_mode, x, scale, mean, inv_std, dx, dscale, dbias);
    arguments.dy = call.arrays.DataInput("dz", dz);
    arguments.z = call.arrays.DataInput("z", z);
    Grad(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_grad_grad(const bngrad_layout* layout, int32_t training_mode,
                                             const void* ddx, const void* ddscale, const void* ddbias,
                                             const void* dy, const void* x, const void* scale,
                                             const void* mean, const void* inv_std, void* d_dy, void* d_x,
                                             void* d_scale, int32_t num_threads, char* error,
                                             size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    const GradGradArguments arguments = {call.types,
                                         ToBool("training_mode", training_mode),
                                         call.arrays.DataInput("ddx", ddx),
                                         call.arrays.ScaleInput("ddscale", ddscale),
                                         call.arrays.ScaleInput("ddbias", ddbias),
                                         call.arrays.DataInput("dy", dy),
                                         call.arrays.DataInput("x", x),
                                         call.arrays.ScaleInput("scale", scale),
                                         call.arrays.StatInput("mean", mean),
                                         call.arrays.StatInput("inv_std", inv_std),
                                         call.arrays.DataOutput("d_dy", d_dy),
                                         call.arrays.DataOutput("d_x", d_x),
                                         call.arrays.ScaleOutput("d_scale", d_scale)};
    GradGrad(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_training(const bngrad_layout* layout, double epsilon, double momentum,
                                            int32_t unbiased_running_var, const void* x, const void* scale,
                                            const void* bias, const void* running_mean,
                                            const void* running_var, void* y, void* new_running_mean,
                                            void* new_running_var, void* saved_mean, void* saved_inv_std,
                                            int32_t num_threads, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    CheckEpsilon(epsilon);
    CheckMomentum(momentum);
    const TrainingArguments arguments = {call.types,
                                         epsilon,
                                         momentum,
                                         ToBool("unbiased_running_var", unbiased_running_var),
                                         call.arrays.DataInput("x", x),
                                         call.arrays.ScaleInput("scale", scale),
                                         call.arrays.ScaleInput("bias", bias),
                                         call.arrays.StatInput("running_mean", running_mean),
                                         call.arrays.StatInput("running_var", running_var),
                                         call.arrays.DataOutput("y", y),
                                         call.arrays.StatOutput("new_running_mean", new_running_mean),
                                         call.arrays.StatOutput("new_running_var", new_running_var),
                                         call.arrays.StatOutput("saved_mean", saved_mean),
                                         call.arrays.StatOutput("saved_inv_std", saved_inv_std)};
    Training(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_batch_normalization_statistics(const bngrad_layout* layout, double epsilon, const void* x,
                                              void* mean, void* inv_std, int32_t num_threads, char* error,
                                              size_t error_size) {
  return Guard({error, error_size}, [&] {
    Call call(layout, num_threads);
    CheckEpsilon(epsilon);
    CheckStatisticsType(call.types);
    const StatisticsArguments arguments = {call.types, epsilon, call.arrays.DataInput("x", x),
                                           call.arrays.StatOutput("mean", mean),
                                           call.arrays.StatOutput("inv_std", inv_std)};
    Statistics(call.layout, arguments, *ActiveIsa().table, call.threads);
  });
}

int32_t bngrad_adam_update(int64_t count, int32_t type, const double* coefficients, const void* weight,
                           const void* gradient, const void* exp_avg, const void* exp_avg_sq,
                           void* new_weight, void* new_exp_avg, void* new_exp_avg_sq, int32_t num_threads,
                           char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    CheckCount(count);
    const ElementType element = ToFloatOrDouble(type);
    Arrays arrays({}, {});
    arrays.Input("coefficients", coefficients, kAdamCoefficients, ElementType::kDouble);
    const AdamArguments arguments = {
        element,
        count,
        {arrays.Input("weight", weight, count, element), arrays.Input("gradient", gradient, count, element),
         arrays.Input("exp_avg", exp_avg, count, element),
         arrays.Input("exp_avg_sq", exp_avg_sq, count, element)},
        coefficients,
        {arrays.Output("new_weight", new_weight, count, element),
         arrays.Output("new_exp_avg", new_exp_avg, count, element),
         arrays.Output("new_exp_avg_sq", new_exp_avg_sq, count, element)}};
    PoolThreads threads(num_threads);
    AdamUpdate(arguments, *ActiveIsa().table, threads);
  });
}

int32_t bngrad_add_arrays(int64_t count, const float* a, const float* b, float* c, int32_t num_threads,
                          char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    CheckCount(count);
    Arrays arrays({}, {});
    arrays.Input("a", a, count, ElementType::kFloat);
    arrays.Input("b", b, count, ElementType::kFloat);
    arrays.RequiredOutput("c", c, count, ElementType::kFloat);
    PoolThreads threads(num_threads);
    AddArrays(count, a, b, c, threads);
  });
}

int32_t bngrad_exit_on_fault(const char* message, int32_t exit_code, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] { InstallCrashHandler(message, exit_code); });
}
