#include "grad.hpp"

#include "sweep.hpp"

namespace bngrad {
namespace {

template <class Arithmetic>
class GradProgram final : public Program {
 public:
  GradProgram(const Layout& layout, const GradArguments& a)
      : training_(a.training),
        relu_(a.z != nullptr),
        m_(static_cast<double>(layout.reduced)),
        scale_(a.scale, a.types.scale),
        mean_(a.mean, a.types.stat),
        inv_std_(a.inv_std, a.types.stat),
        dscale_(a.dscale, a.types.scale),
        dbias_(a.dbias, a.types.scale) {}

  int steps() const override { return training_ || dscale_.wanted() || dbias_.wanted() ? 1 : 0; }
  SumKind sum(int) const override { return relu_ ? kSumReluGrad : kSumGrad; }
  MapKind map() const override {
    if (relu_) return training_ ? kMapReluGradTraining : kMapReluGradFrozen;
    return training_ ? kMapGradTraining : kMapGradFrozen;
  }

  bool maps_at_once() const override { return !training_; }

  void Begin(const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      const int64_t channel = channels.first + c;
      channels.center[c] = mean_[channel];
      if (!training_) channels.SetFactor<Arithmetic>(0, c, scale_[channel] * inv_std_[channel]);
    }
  }

  void Finish(int, const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      const int64_t channel = channels.first + c;
      const double inv_std = inv_std_[channel];
      const double dbias = channels.Sum(0, c);
      const double dscale = m_ > 0 ? channels.Sum(1, c) * inv_std : 0;
      dbias_.Set(channel, dbias);
      dscale_.Set(channel, dscale);
      if (!training_) continue;
      // dbias/M may dwarf dY - dbias/M, so what rounding takes from it is subtracted as well.
      const Split<Arithmetic> k1(dbias / m_);
      channels.SetFactor<Arithmetic>(0, c, mean_[channel]);
      channels.SetFactor<Arithmetic>(1, c, scale_[channel] * inv_std);
      channels.SetFactor<Arithmetic>(2, c, k1.high);
      channels.SetFactor<Arithmetic>(3, c, k1.low);
      channels.SetFactor<Arithmetic>(4, c, inv_std * dscale / m_);
    }
  }

 private:
  const bool training_, relu_;
  const double m_;
  const ConstValues scale_, mean_, inv_std_;
  const Values dscale_, dbias_;
};

}  // namespace

void Grad(const Layout& layout, const GradArguments& a, const KernelTable& table, Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x, a.dy, a.z}, {a.dx}};
  if (a.types.data == ElementType::kDouble) {
    Sweep(layout, table, operands, GradProgram<double>(layout, a), parallel);
  } else {
    Sweep(layout, table, operands, GradProgram<float>(layout, a), parallel);
  }
}

}  // namespace bngrad
