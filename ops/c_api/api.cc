// The C ABI of bngrad.h: checks what C cannot, and runs the ops on threads of its own.
#include <cmath>
#include <cstdio>
#include <limits>
#include <new>
#include <string>

#include "bngrad.h"
#include "c_api/arrays.hpp"
#include "c_api/crash_handler.hpp"
#include "core/bandwidth.hpp"
#include "core/dispatch.hpp"
#include "core/grad.hpp"
#include "core/grad_grad.hpp"
#include "core/training.hpp"

namespace bngrad {
namespace {

struct ErrorBuffer {
  char* text;
  size_t size;
  int32_t Set(bngrad_status status, const char* message) const {
    if (text != nullptr && size > 0) std::snprintf(text, size, "%s", message);
    return status;
  }
};

template <class Body>
int32_t Guard(const ErrorBuffer& error, const Body& body) noexcept {
  try {
    body();
    return BNGRAD_OK;
  } catch (const InvalidArgument& e) {
    return error.Set(BNGRAD_INVALID_ARGUMENT, e.what());
  } catch (const std::bad_alloc&) {
    return error.Set(BNGRAD_FAILED, "out of memory");
  } catch (const std::exception& e) {
    return error.Set(BNGRAD_FAILED, e.what());
  } catch (...) {
    return error.Set(BNGRAD_FAILED, "unknown error");
  }
}

Layout ToLayout(const bngrad_layout* layout) {
  if (layout == nullptr) throw InvalidArgument("layout is null");
  // Counts that cannot be right say nothing about how much there is to read.
  if (layout->rank == 0 || layout->rank > kMaxRank) {
    throw InvalidArgument("rank is " + std::to_string(layout->rank) + ", expected 1 to " +
                          std::to_string(kMaxRank));
  }
  const auto list = [](const char* name, const int64_t* values, int32_t count) {
    if (count < 0 || (count > 0 && values == nullptr)) {
      throw InvalidArgument(std::string(name) + ": expected a count and, unless it is 0, an array");
    }
    return MakeShape(name, values, count);
  };
  const Shape dims = list("dims", layout->dims, layout->rank);
  if (layout->axes_count > layout->rank && layout->axes != nullptr) {
    throw InvalidArgument("axes_count is " + std::to_string(layout->axes_count) + ", expected at most " +
                          std::to_string(layout->rank) + ", the rank of X");
  }
  return MakeLayout(dims, list("axes", layout->axes, layout->axes_count));
}

Types ToTypes(const bngrad_layout& layout) {
  const Types types = {static_cast<ElementType>(layout.type), static_cast<ElementType>(layout.scale_type),
                       static_cast<ElementType>(layout.stat_type)};
  if (!IsSupported(types)) {
    throw InvalidArgument("types " + std::to_string(layout.type) + ", " + std::to_string(layout.scale_type) +
                          ", " + std::to_string(layout.stat_type) +
                          " of X, scale and mean: expected 1 (float), 10 (float16), 11 (double) or "
                          "16 (bfloat16) for X, and that or 1 for each of the others");
  }
  return types;
}

// The statistics of X alone have the type that X is computed in.
Types ToStatisticsTypes(const bngrad_layout& layout) {
  const Types types = ToTypes(layout);
  if (types.stat != ArithmeticOf(types.data)) {
    throw InvalidArgument("stat_type is " + std::to_string(layout.stat_type) + ", expected " +
                          std::to_string(static_cast<int32_t>(ArithmeticOf(types.data))) + " for X of type " +
                          std::to_string(layout.type));
  }
  return types;
}

void CheckFlag(const char* name, int32_t value) {
  if (value != 0 && value != 1) {
    throw InvalidArgument(std::string(name) + " is " + std::to_string(value) + ", expected 0 or 1");
  }
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

int32_t bngrad_batch_normalization_grad(const bngrad_layout* layout, int32_t training_mode, const void* dy,
                                        const void* x, const void* scale, const void* mean,
                                        const void* inv_std, void* dx, void* dscale, void* dbias,
                                        int32_t num_threads, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Layout l = ToLayout(layout);
    CheckFlag("training_mode", training_mode);
    const Types types = ToTypes(*layout);
    Arrays arrays(l, types);
    const GradArguments arguments = {types,
                                     training_mode == 1,
                                     arrays.DataInput("dy", dy),
                                     nullptr,
                                     arrays.DataInput("x", x),
                                     arrays.ScaleInput("scale", scale),
                                     arrays.StatInput("mean", mean),
                                     arrays.StatInput("inv_std", inv_std),
                                     arrays.DataOutput("dx", dx),
                                     arrays.ScaleOutput("dscale", dscale),
                                     arrays.ScaleOutput("dbias", dbias)};
    OwnThreads threads(num_threads);
    Grad(l, arguments, *ActiveIsa().table, threads);
  });
}

int32_t bngrad_batch_normalization_relu_grad(const bngrad_layout* layout, int32_t training_mode,
                                             const void* dz, const void* z, const void* x, const void* scale,
                                             const void* mean, const void* inv_std, void* dx, void* dscale,
                                             void* dbias, int32_t num_threads, char* error,
                                             size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Layout l = ToLayout(layout);
    CheckFlag("training_mode", training_mode);
    const Types types = ToTypes(*layout);
    Arrays arrays(l, types);
    const GradArguments arguments = {types,
                                     training_mode == 1,
                                     arrays.DataInput("dz", dz),
                                     arrays.DataInput("z", z),
                                     arrays.DataInput("x", x),
                                     arrays.ScaleInput("scale", scale),
                                     arrays.StatInput("mean", mean),
                                     arrays.StatInput("inv_std", inv_std),
                                     arrays.DataOutput("dx", dx),
                                     arrays.ScaleOutput("dscale", dscale),
                                     arrays.ScaleOutput("dbias", dbias)};
    OwnThreads threads(num_threads);
    Grad(l, arguments, *ActiveIsa().table, threads);
  });
}

int32_t bngrad_batch_normalization_grad_grad(const bngrad_layout* layout, int32_t training_mode,
                                             const void* ddx, const void* ddscale, const void* ddbias,
                                             const void* dy, const void* x, const void* scale,
                                             const void* mean, const void* inv_std, void* d_dy, void* d_x,
                                             void* d_scale, int32_t num_threads, char* error,
                                             size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Layout l = ToLayout(layout);
    CheckFlag("training_mode", training_mode);
    const Types types = ToTypes(*layout);
    Arrays arrays(l, types);
    const GradGradArguments arguments = {types,
                                         training_mode == 1,
                                         arrays.DataInput("ddx", ddx),
                                         arrays.ScaleInput("ddscale", ddscale),
                                         arrays.ScaleInput("ddbias", ddbias),
                                         arrays.DataInput("dy", dy),
                                         arrays.DataInput("x", x),
                                         arrays.ScaleInput("scale", scale),
                                         arrays.StatInput("mean", mean),
                                         arrays.StatInput("inv_std", inv_std),
                                         arrays.DataOutput("d_dy", d_dy),
                                         arrays.DataOutput("d_x", d_x),
                                         arrays.ScaleOutput("d_scale", d_scale)};
    OwnThreads threads(num_threads);
    GradGrad(l, arguments, *ActiveIsa().table, threads);
  });
}

int32_t bngrad_batch_normalization_training(const bngrad_layout* layout, double epsilon, double momentum,
                                            int32_t unbiased_running_var, const void* x, const void* scale,
                                            const void* bias, const void* running_mean,
                                            const void* running_var, void* y, void* new_running_mean,
                                            void* new_running_var, void* saved_mean, void* saved_inv_std,
                                            int32_t num_threads, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Layout l = ToLayout(layout);
    CheckEpsilon(epsilon);
    CheckMomentum(momentum);
    CheckFlag("unbiased_running_var", unbiased_running_var);
    const Types types = ToTypes(*layout);
    Arrays arrays(l, types);
    const TrainingArguments arguments = {types,
                                         epsilon,
                                         momentum,
                                         unbiased_running_var == 1,
                                         arrays.DataInput("x", x),
                                         arrays.ScaleInput("scale", scale),
                                         arrays.ScaleInput("bias", bias),
                                         arrays.StatInput("running_mean", running_mean),
                                         arrays.StatInput("running_var", running_var),
                                         arrays.DataOutput("y", y),
                                         arrays.StatOutput("new_running_mean", new_running_mean),
                                         arrays.StatOutput("new_running_var", new_running_var),
                                         arrays.StatOutput("saved_mean", saved_mean),
                                         arrays.StatOutput("saved_inv_std", saved_inv_std)};
    OwnThreads threads(num_threads);
    Training(l, arguments, *ActiveIsa().table, threads);
  });
}

int32_t bngrad_batch_normalization_statistics(const bngrad_layout* layout, double epsilon, const void* x,
                                              void* mean, void* inv_std, int32_t num_threads, char* error,
                                              size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Layout l = ToLayout(layout);
    CheckEpsilon(epsilon);
    const Types types = ToStatisticsTypes(*layout);
    Arrays arrays(l, types);
    const StatisticsArguments arguments = {types, epsilon, arrays.DataInput("x", x),
                                           arrays.StatOutput("mean", mean),
                                           arrays.StatOutput("inv_std", inv_std)};
    OwnThreads threads(num_threads);
    Statistics(l, arguments, *ActiveIsa().table, threads);
  });
}

int32_t bngrad_add_arrays(int64_t count, const float* a, const float* b, float* c, int32_t num_threads,
                          char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(double));
    if (count < 0 || count > kMost) {
      throw InvalidArgument("count is " + std::to_string(count) + ", expected 0 to " + std::to_string(kMost));
    }
    Arrays arrays({}, {});
    arrays.Input("a", a, count, ElementType::kFloat);
    arrays.Input("b", b, count, ElementType::kFloat);
    if (c == nullptr && count > 0) throw InvalidArgument("c is null");
    arrays.Output("c", c, count, ElementType::kFloat);
    OwnThreads threads(num_threads);
    AddArrays(count, a, b, c, threads);
  });
}

int32_t bngrad_exit_on_fault(const char* last_words, int32_t code, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] { ExitOnFault(last_words, code); });
}
