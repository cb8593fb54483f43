// AdamUpdate and AdamGroupUpdate, the formula and the order of operations of core/adam.hpp; the bits are
// those of the CPU.
#pragma once
#include "cuda/kernels/group_update.h"

namespace bngrad::cuda {

struct AdamFormula {
  static constexpr int kInputs = kAdamInputs, kOutputs = kAdamOutputs;
  const double* coefficients;  // kAdamCoefficients, as in core/adam.hpp

  template <class T>
  struct Loaded {
    T c[kAdamCoefficients];

    BNGRAD_DEVICE_MEMBER explicit Loaded(const AdamFormula& f) {
      BNGRAD_UNROLL for (int k = 0; k < kAdamCoefficients; ++k) c[k] = static_cast<T>(f.coefficients[k]);
    }

    BNGRAD_DEVICE_MEMBER void operator()(const T (&in)[kInputs], T (&out)[kOutputs]) const {
      const T g = in[1] * c[0] + c[1] * in[0];
      out[1] = in[2] + c[3] * (g - in[2]);
      out[2] = c[4] * in[3] + c[5] * g * g;
      out[0] = in[0] * c[2] - c[6] * out[1] / (SquareRoot(out[2]) / c[7] + c[8]);
    }
  };
};

}  // namespace bngrad::cuda
