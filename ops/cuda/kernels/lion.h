// LionGroupUpdate, the formula and the order of operations of cuda/group_update.hpp.
#pragma once
#include "cuda/kernels/group_update.h"

namespace bngrad::cuda {

struct LionFormula {
  static constexpr int kInputs = 3, kOutputs = 2;  // the slot: exp_avg
  GroupScalars scalars;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, weight_decay;

  template <class T>
  struct Loaded {
    const T rate, scale, beta1, one_minus_beta1, beta2, one_minus_beta2, weight_decay;

    BNGRAD_DEVICE_MEMBER explicit Loaded(const LionFormula& f)
        : rate(*f.scalars.learning_rate),
          scale(*f.scalars.gradient_scale),
          beta1(f.beta1),
          one_minus_beta1(f.one_minus_beta1),
          beta2(f.beta2),
          one_minus_beta2(f.one_minus_beta2),
          weight_decay(f.weight_decay) {}

    BNGRAD_DEVICE_MEMBER void operator()(const T (&in)[kInputs], T (&out)[kOutputs]) const {
      const T g = in[1] * scale;
      const T mixed = in[2] * beta1 + g * one_minus_beta1;
      T direction = mixed > 0 ? T(1) : mixed < 0 ? T(-1) : mixed - mixed;  // 0, or NaN for NaN
      if (weight_decay != 0) direction = direction + in[0] * weight_decay;
      out[0] = in[0] - direction * rate;
      out[1] = in[2] * beta2 + g * one_minus_beta2;
    }
  };
};

}  // namespace bngrad::cuda
