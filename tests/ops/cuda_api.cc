// The C ABI with the CUDA kernels on the CPU, for kernel_fuzz.cc: its ops run on the emulated device.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "c_api/call.hpp"
#include "core/adam.hpp"
#include "core/grad.hpp"
#include "core/grad_grad.hpp"
#include "core/training.hpp"
#include "cuda/batch_norm.hpp"
#include "cuda/group_update.hpp"
#include "cuda/ptx.hpp"
#include "cuda_emulation.hpp"

namespace bngrad {
namespace {

class EmulatedDevice final : public cuda::Device {
 public:
  int processors() const override { return 5; }  // more than blocks, so that channels are divided

  void* Scratch(size_t bytes) override {
    scratch_.emplace_back(new unsigned char[bytes + 1]);
    std::memset(scratch_.back().get(), 0xff, bytes);  // NaN: nothing may rely on zeros
    return scratch_.back().get();
  }

  void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
              const void* argument) override {
    cuda::RunGrid(cuda::FindKernel(cuda::ModuleText(module), kernel), blocks, splits, argument);
  }

  void Zero(void* memory, size_t bytes) override { std::memset(memory, 0, bytes); }
  cuda::CudnnRun cudnn() override { throw Failure("there is no cuDNN"); }

 private:
  std::vector<std::unique_ptr<unsigned char[]>> scratch_;
};

}  // namespace

// c_api/api.cc calls these, because they fit its arguments better than those of core/.
template <class Arguments, void (*kOp)(const Layout&, const Arguments&, cuda::Device&)>
void RunEmulated(const Layout& layout, const Arguments& arguments) {
  EmulatedDevice device;
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
  EmulatedDevice device;
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
