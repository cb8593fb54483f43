#include "core/adam.hpp"

#include <algorithm>

#include "kernels/tuning.h"

namespace bngrad {
namespace {

template <class T>
void Update(const AdamArguments& a, AdamFunction update, Parallel& parallel) {
  T coefficients[kAdamCoefficients];
  for (int k = 0; k < kAdamCoefficients; ++k) coefficients[k] = static_cast<T>(a.coefficients[k]);
  const int64_t tasks = (a.count + kAdamTaskElements - 1) / kAdamTaskElements;
  ForEach(parallel, a.count < kSingleThreadElements, tasks, [&](int64_t task) {
    const int64_t first = task * kAdamTaskElements;
    const void* inputs[kAdamInputs];
    void* outputs[kAdamOutputs];
    for (int k = 0; k < kAdamInputs; ++k) inputs[k] = static_cast<const T*>(a.inputs[k]) + first;
    for (int k = 0; k < kAdamOutputs; ++k) {
      outputs[k] = a.outputs[k] == nullptr ? nullptr : static_cast<T*>(a.outputs[k]) + first;
    }
    update(std::min(kAdamTaskElements, a.count - first), inputs, coefficients, outputs);
  });
}

}  // namespace

void AdamUpdate(const AdamArguments& a, const KernelTable& table, Parallel& parallel) {
  const AdamFunction update = KernelsFor(table, a.type).adam_update;
  if (a.type == ElementType::kDouble) {
    Update<double>(a, update, parallel);
  } else {
    Update<float>(a, update, parallel);
  }
}

}  // namespace bngrad
