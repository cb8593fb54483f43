#include "core/grad_grad.hpp"

#include "core/sweep.hpp"

namespace bngrad {
namespace {

template <class Arithmetic>
class GradGradProgram final : public Program {
 public:
  GradGradProgram(const Layout& layout, const GradGradArguments& a)
      : training_(a.training),
        m_(static_cast<double>(layout.reduced)),
        ddscale_(a.ddscale, a.types.scale),
        ddbias_(a.ddbias, a.types.scale),
        scale_(a.scale, a.types.scale),
        mean_(a.mean, a.types.stat),
        inv_std_(a.inv_std, a.types.stat),
        d_scale_(a.d_scale, a.types.scale) {}

  int steps() const override { return training_ || d_scale_.requested() ? 1 : 0; }
  SumKind sum(int) const override { return kSumGradGrad; }
  MapKind map() const override { return training_ ? kMapGradGradTraining : kMapGradGradFrozen; }
  bool fuses_map() const override { return !training_; }

  void Begin(const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      const int64_t channel = channels.first + c;
      channels.center[c] = mean_[channel];
      if (training_) continue;
      channels.SetFactor<Arithmetic>(0, c, mean_[channel]);
      channels.SetFactor<Arithmetic>(1, c, scale_[channel] * inv_std_[channel]);
      channels.SetFactor<Arithmetic>(2, c, ddscale_[channel] * inv_std_[channel]);
      channels.SetFactor<Arithmetic>(3, c, ddbias_[channel]);
    }
  }

  void Finish(int, const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      const int64_t channel = channels.first + c;
      if (training_) {
        FinishTraining(channels, c);
      } else {
        d_scale_.Set(channel, m_ > 0 ? inv_std_[channel] * channels.Sum(4, c) : 0);
      }
    }
  }

 private:
  // P(t) = (t - mean(t)) - D*inv_std*mean(t*xhat) with D = X - mean: both outputs are linear combinations of
  // ddX - mean(ddX), dY - mean(dY) and D.
  void FinishTraining(const Channels& channels, int64_t c) const {
    const int64_t channel = channels.first + c;
    const double inv_std = inv_std_[channel], gain = scale_[channel] * inv_std;
    const double mean_dy = channels.Sum(0, c) / m_, dy_xhat = channels.Sum(1, c) / m_ * inv_std;
    const double mean_ddx = channels.Sum(2, c) / m_, ddx_xhat = channels.Sum(3, c) / m_ * inv_std;
    const double ddx_p_dy = channels.Sum(4, c) / m_ - mean_ddx * mean_dy - ddx_xhat * dy_xhat;
    d_scale_.Set(channel, m_ > 0 ? inv_std * ddx_p_dy * m_ : 0);

    // `slope` is the coefficient of D in d_dY and of dY - mean(dY) in d_X.
    const double slope = inv_std * (ddscale_[channel] - gain * ddx_xhat), of_ddx = inv_std * gain * dy_xhat;
    const double of_d = inv_std * (inv_std * gain * ddx_p_dy + slope * dy_xhat - of_ddx * ddx_xhat);
    const Split<Arithmetic> k1(mean_ddx), k2(mean_dy);
    channels.SetFactor<Arithmetic>(0, c, mean_[channel]);
    channels.SetFactor<Arithmetic>(1, c, gain);
    channels.SetFactor<Arithmetic>(2, c, slope);
    channels.SetFactor<Arithmetic>(3, c, ddbias_[channel] - gain * k1.low);
    channels.SetFactor<Arithmetic>(4, c, k1.high);
    channels.SetFactor<Arithmetic>(5, c, k2.high);
    channels.SetFactor<Arithmetic>(6, c, of_ddx);
    channels.SetFactor<Arithmetic>(7, c, of_d);
    channels.SetFactor<Arithmetic>(8, c, slope * k2.low - of_ddx * k1.low);
  }

  const bool training_;
  const double m_;
  const ConstValues ddscale_, ddbias_, scale_, mean_, inv_std_;
  const Values d_scale_;
};

}  // namespace

void GradGrad(const Layout& layout, const GradGradArguments& a, const KernelTable& table,
              Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x, a.dy, a.ddx}, {a.d_dy, a.d_x}};
  SweepWith<GradGradProgram>(layout, table, operands, a, parallel);
}

}  // namespace bngrad
