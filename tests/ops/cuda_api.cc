// The C ABI with the CUDA kernels on the CPU, for kernel_fuzz.cc: its ops run on the emulated device.
#include <algorithm>

#include "c_api/call.hpp"
#include "core/adam.hpp"
#include "core/grad.hpp"
#include "core/grad_grad.hpp"
#include "core/training.hpp"
#include "cuda/batch_norm.hpp"
#include "cuda/group_update.hpp"
#include "emulated_device.hpp"

namespace bngrad {
// c_api/api.cc calls these, because they fit its arguments better than those of core/.
template <class Arguments, void (*kOp)(const Layout&, const Arguments&, cuda::Device&)>
void RunEmulated(const Layout& layout, const Arguments& arguments) {
  cuda::EmulatedDevice device;
  kOp(layout, arguments, device);
}
static void Grad(const Layout& layout, const GradArguments& arguments, const KernelTable&, PoolThreads&) {
  RunEmulated<GradArguments, cuda::Grad>(layout, arguments);
}
static void GradGrad(const Layout& layout, const GradGradArguments& arguments, const KernelTable&,
                     PoolThreads&) {
  RunEmulated<GradGradArguments, cuda::GradGrad>(layout, arguments);
}
static void Training(const Layout& layout, const TrainingArguments& arguments, const KernelTable&,
                     PoolThreads&) {
  RunEmulated<TrainingArguments, cuda::Training>(layout, arguments);
}
static void AdamUpdate(const AdamArguments& arguments, const KernelTable&, PoolThreads&) {
  cuda::EmulatedDevice device;
  cuda::GroupTensor<cuda::AdamFormula> tensor = {arguments.count, {}, {}};
  std::copy_n(arguments.inputs, kAdamInputs, tensor.inputs);
  std::copy_n(arguments.outputs, kAdamOutputs, tensor.outputs);
  cuda::GroupUpdate(arguments.type, cuda::AdamFormula{arguments.coefficients}, nullptr, {tensor}, device);
}
static void Statistics(const Layout& layout, const StatisticsArguments& arguments, const KernelTable&,
                       PoolThreads&) {
  RunEmulated<StatisticsArguments, cuda::Statistics>(layout, arguments);
}

}  // namespace bngrad

#include "c_api/api.cc"
