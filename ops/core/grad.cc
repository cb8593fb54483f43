#include "core/grad.hpp"

#include <algorithm>

#include "core/sweep.hpp"

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

  int steps() const override { return training_ || dscale_.requested() || dbias_.requested() ? 1 : 0; }
  SumKind sum(int) const override { return relu_ ? kSumReluGrad : kSumGrad; }
  MapKind map() const override {
    if (relu_) return training_ ? kMapReluGradTraining : kMapReluGradFrozen;
    return training_ ? kMapGradTraining : kMapGradFrozen;
  }

  bool fuses_map() const override { return !training_; }

  void Begin(const Channels& channels) const override {
    mean_.Read(channels.first, channels.count, channels.center);
    if (training_) return;
    for (int64_t c = 0; c < channels.count; ++c) {
      const int64_t channel = channels.first + c;
      channels.SetFactor<Arithmetic>(0, c, scale_[channel] * inv_std_[channel]);
    }
  }

  void Finish(int, const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; c += kBatch) {
      FinishBatch(channels, c, std::min(channels.count - c, kBatch));
    }
  }

 private:
  // Computes one quantity at a time for up to kBatch channels from c on, in loops that the compiler
  // vectorizes.
  static constexpr int64_t kBatch = 64;
  void FinishBatch(const Channels& channels, int64_t c, int64_t count) const {
    const int64_t first = channels.first + c;
    const double* const dbias = channels.sums + c;
    const double* const sum_dyd = dbias + channels.width;
    double inv_std[kBatch], dscale[kBatch];
    inv_std_.Read(first, count, inv_std);
    for (int64_t i = 0; i < count; ++i) dscale[i] = m_ > 0 ? sum_dyd[i] * inv_std[i] : 0;
    dbias_.Write(first, count, dbias);
    dscale_.Write(first, count, dscale);
    if (!training_) return;

    double mean[kBatch], scale[kBatch], mean_dy[kBatch];
    mean_.Read(first, count, mean);
    scale_.Read(first, count, scale);
    for (int64_t i = 0; i < count; ++i) mean_dy[i] = dbias[i] / m_;
    const auto set = [&](int k, const auto& value) {
      Arithmetic* const factor = static_cast<Arithmetic*>(channels.factors) + k * channels.width + c;
      for (int64_t i = 0; i < count; ++i) factor[i] = static_cast<Arithmetic>(value(i));
    };
    // The mean of dY may be much larger than dY - mean, so its rounding error is subtracted as well.
    set(0, [&](int64_t i) { return mean[i]; });
    set(1, [&](int64_t i) { return scale[i] * inv_std[i]; });
    set(2, [&](int64_t i) { return Split<Arithmetic>(mean_dy[i]).high; });
    set(3, [&](int64_t i) { return Split<Arithmetic>(mean_dy[i]).low; });
    set(4, [&](int64_t i) { return inv_std[i] * dscale[i] / m_; });
  }

  const bool training_, relu_;
  const double m_;
  const ConstValues scale_, mean_, inv_std_;
  const Values dscale_, dbias_;
};

}  // namespace

void Grad(const Layout& layout, const GradArguments& a, const KernelTable& table, Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x, a.dy, a.z}, {a.dx}};
  SweepWith<GradProgram>(layout, table, operands, a, parallel);
}

}  // namespace bngrad
