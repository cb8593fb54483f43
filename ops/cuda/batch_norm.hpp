// The ops of core/training.hpp, core/grad.hpp and core/grad_grad.hpp on a device: the same arguments, with
// pointers to the device's memory, and the same formulas.
//
// Each op is up to three launches: partial sums of each channel, their totals with what follows from them,
// and the elements. Sums are added in a fixed order and without atomics, so that every run on one kind of
// device has the same bits.
#pragma once
#include <string>

#include "core/grad.hpp"
#include "core/grad_grad.hpp"
#include "core/layout.hpp"
#include "core/training.hpp"

namespace bngrad::cuda {

// What runs kernels; calls return before their work is done, which is in the order of the calls.
class Device {
 public:
  virtual ~Device() = default;

  // The number of multiprocessors.
  virtual int processors() const = 0;

  // Memory of the device until the op returns.
  virtual void* Scratch(size_t bytes) = 0;

  // Starts a kernel of a module (cuda/kernels/kernels.cu) with its one argument, a struct.
  virtual void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
                      const void* argument) = 0;
};

void Training(const Layout& layout, const TrainingArguments& arguments, Device& device);
void Statistics(const Layout& layout, const StatisticsArguments& arguments, Device& device);
void Grad(const Layout& layout, const GradArguments& arguments, Device& device);
void GradGrad(const Layout& layout, const GradGradArguments& arguments, Device& device);

}  // namespace bngrad::cuda
