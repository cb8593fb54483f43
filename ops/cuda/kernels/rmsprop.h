// RmspropGroupUpdate, the formula and the order of operations of cuda/group_update.hpp.
#pragma once
#include "cuda/kernels/group_update.h"

namespace bngrad::cuda {

struct RmspropFormula {
  static constexpr int kInputs = 5, kOutputs = 4;  // the slots: square_avg, momentum_buffer, grad_avg
  GroupScalars scalars;
  float alpha, one_minus_alpha, eps, momentum, weight_decay;
  uint32_t centered;

  template <class T>
  struct Loaded {
    const T rate, scale, alpha, one_minus_alpha, eps, momentum, weight_decay;
    const bool centered;

    BNGRAD_DEVICE_MEMBER explicit Loaded(const RmspropFormula& f)
        : rate(*f.scalars.learning_rate),
          scale(*f.scalars.gradient_scale),
          alpha(f.alpha),
          one_minus_alpha(f.one_minus_alpha),
          eps(f.eps),
          momentum(f.momentum),
          weight_decay(f.weight_decay),
          centered(f.centered != 0) {}

    BNGRAD_DEVICE_MEMBER void operator()(const T (&in)[kInputs], T (&out)[kOutputs]) const {
      T g = in[1] * scale;
      if (weight_decay != 0) g = g + in[0] * weight_decay;
      T moment = out[1] = in[2] * alpha + g * g * one_minus_alpha;
      out[2] = in[3];
      out[3] = in[4];
      if (centered) {
        out[3] = in[4] + (g - in[4]) * one_minus_alpha;
        moment = moment - out[3] * out[3];
        if (moment < 0) moment = 0;  // NaN stays
      }
      T direction = g / (SquareRoot(moment) + eps);
      if (momentum != 0) direction = out[2] = in[3] * momentum + direction;
      out[0] = in[0] - direction * rate;
    }
  };
};

}  // namespace bngrad::cuda
