// AdamUpdate, see core/adam.hpp. Included by table-inl.h.

// The coefficients in their order.
enum AdamCoefficient {
  kGradientScale,
  kL2Penalty,
  kWeightFactor,
  kOneMinusBeta1,
  kBeta2,
  kOneMinusBeta2,
  kStepSize,
  kSqrtBiasCorrection2,
  kEpsilon
};

template <class T>
class AdamArrays {
 public:
  using Vector = typename TypeTraits<T>::Vector;

  BNGRAD_INLINE AdamArrays(const void* const* inputs, const void* coefficients, void* const* outputs)
      : weight_(static_cast<const T*>(inputs[0])),
        gradient_(static_cast<const T*>(inputs[1])),
        exp_avg_(static_cast<const T*>(inputs[2])),
        exp_avg_sq_(static_cast<const T*>(inputs[3])),
        out_{static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1]), static_cast<T*>(outputs[2])} {
    for (int k = 0; k < kAdamCoefficients; ++k) c_[k] = Broadcast16(static_cast<const T*>(coefficients)[k]);
  }

  // Updates 16 elements from i on, or the first of them.
  template <class Count>
  BNGRAD_INLINE void UpdateAt(int64_t i, Count count) const {
    const Vector weight = Load(weight_ + i, count), exp_avg = Load(exp_avg_ + i, count);
    const Vector scaled = Mul16(Load(gradient_ + i, count), c_[kGradientScale]);
    const Vector g = Add16(scaled, Mul16(weight, c_[kL2Penalty]));
    const Vector m = Add16(exp_avg, Mul16(c_[kOneMinusBeta1], Sub16(g, exp_avg)));
    const Vector v =
        Add16(Mul16(c_[kBeta2], Load(exp_avg_sq_ + i, count)), Mul16(Mul16(c_[kOneMinusBeta2], g), g));
    const Vector deviation = Add16(Div16(Sqrt16(v), c_[kSqrtBiasCorrection2]), c_[kEpsilon]);
    const Vector step = Div16(Mul16(c_[kStepSize], m), deviation);
    if (out_[0] != nullptr) Store(out_[0] + i, Sub16(Mul16(weight, c_[kWeightFactor]), step), count);
    if (out_[1] != nullptr) Store(out_[1] + i, m, count);
    if (out_[2] != nullptr) Store(out_[2] + i, v, count);
  }

 private:
  const T *const weight_, *const gradient_, *const exp_avg_, *const exp_avg_sq_;
  T* const out_[kAdamOutputs];
  Vector c_[kAdamCoefficients];
};

template <class T>
void AdamUpdate(int64_t count, const void* const* inputs, const void* coefficients, void* const* outputs) {
  const AdamArrays<T> arrays(inputs, coefficients, outputs);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) arrays.UpdateAt(i, All{});
  if (i < count) arrays.UpdateAt(i, FirstN{count - i});
}
