// SgdGroupUpdate, the formula and the order of operations of cuda/group_update.hpp.
#pragma once
#include "cuda/kernels/group_update.h"

namespace bngrad::cuda {

struct SgdFormula {
  static constexpr int kInputs = 3, kOutputs = 2;  // the slot: buffer
  GroupScalars scalars;
  float momentum, weight_decay;
  uint32_t nesterov;

  template <class T>
  struct Loaded {
    const T rate, scale, momentum, weight_decay;
    const bool nesterov;

    BNGRAD_DEVICE_MEMBER explicit Loaded(const SgdFormula& f)
        : rate(*f.scalars.learning_rate),
          scale(*f.scalars.gradient_scale),
          momentum(f.momentum),
          weight_decay(f.weight_decay),
          nesterov(f.nesterov != 0) {}

    BNGRAD_DEVICE_MEMBER void operator()(const T (&in)[kInputs], T (&out)[kOutputs]) const {
      T g = in[1] * scale;
      if (weight_decay != 0) g = g + in[0] * weight_decay;
      T direction = g;
      out[1] = in[2];
      if (momentum != 0) {
        out[1] = in[2] * momentum + g;
        direction = nesterov ? g + out[1] * momentum : out[1];
      }
      out[0] = in[0] - direction * rate;
    }
  };
};

}  // namespace bngrad::cuda
