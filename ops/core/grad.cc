#include "core/grad.hpp"

#include <algorithm>
#include <memory>

#include "core/pairwise.hpp"
#include "core/sweep.hpp"

namespace bngrad {
namespace {

// Channels are finished in batches, one quantity at a time, in loops that the compiler vectorizes.
constexpr int64_t kBatch = 64;

template <class Work>
void ForEachBatch(int64_t count, const Work& work) {
  for (int64_t c = 0; c < count; c += kBatch) work(c, std::min(count - c, kBatch));
}

// Sets the factors of kMapGradTraining for `count` channels of a tile from c on, from arrays that start at c.
// `mean_low` is what rounding to the arithmetic type takes from the mean; null if that is nothing.
template <class Arithmetic>
void SetTrainingFactors(const Channels& channels, int64_t c, int64_t count, double m, const double* mean,
                        const double* mean_low, const double* scale, const double* inv_std,
                        const double* dbias, const double* dscale) {
  const auto set = [&](int k, const auto& value) {
    Arithmetic* const factor = static_cast<Arithmetic*>(channels.factors) + k * channels.width + c;
    for (int64_t i = 0; i < count; ++i) factor[i] = static_cast<Arithmetic>(value(i));
  };
  double mean_dy[kBatch], slope[kBatch], low[kBatch];
  for (int64_t i = 0; i < count; ++i) mean_dy[i] = dbias[i] / m;
  for (int64_t i = 0; i < count; ++i) slope[i] = inv_std[i] * dscale[i] / m;
  // The mean of dY may be much larger than dY - mean, so its rounding error is subtracted as well.
  for (int64_t i = 0; i < count; ++i) low[i] = Split<Arithmetic>(mean_dy[i]).low;
  for (int64_t i = 0; mean_low != nullptr && i < count; ++i) low[i] -= slope[i] * mean_low[i];
  set(0, [&](int64_t i) { return mean[i]; });
  set(1, [&](int64_t i) { return scale[i] * inv_std[i]; });
  set(2, [&](int64_t i) { return Split<Arithmetic>(mean_dy[i]).high; });
  set(3, [&](int64_t i) { return low[i]; });
  set(4, [&](int64_t i) { return slope[i]; });
}

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
        dbias_(a.dbias, a.types.scale),
        maps_(a.dx != nullptr),
        sums_(a.sums),
        all_channels_(layout.channels) {}

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
    ForEachBatch(channels.count, [&](int64_t c, int64_t count) { FinishBatch(channels, c, count); });
  }

 private:
  void FinishBatch(const Channels& channels, int64_t c, int64_t count) const {
    const int64_t first = channels.first + c;
    const double* const dbias = channels.sums + c;
    const double* const sum_dyd = dbias + channels.width;
    double inv_std[kBatch], dscale[kBatch];
    inv_std_.Read(first, count, inv_std);
    for (int64_t i = 0; i < count; ++i) dscale[i] = m_ > 0 ? sum_dyd[i] * inv_std[i] : 0;
    dbias_.Write(first, count, dbias);
    dscale_.Write(first, count, dscale);
    if (sums_ != nullptr) {
      std::copy_n(dbias, count, sums_ + first);
      for (int64_t i = 0; i < count; ++i) sums_[all_channels_ + first + i] = m_ > 0 ? sum_dyd[i] : 0;
    }
    if (!training_ || !maps_) return;
    double mean[kBatch], scale[kBatch];
    mean_.Read(first, count, mean);
    scale_.Read(first, count, scale);
    SetTrainingFactors<Arithmetic>(channels, c, count, m_, mean, nullptr, scale, inv_std, dbias, dscale);
  }

  const bool training_, relu_;
  const double m_;
  const ConstValues scale_, mean_, inv_std_;
  const Values dscale_, dbias_;
  const bool maps_;
  double* const sums_;
  const int64_t all_channels_;
};

struct GradApplyWithTotals {
  const GradApplyArguments& a;
  const double* totals;  // of all ranks, [2, channels]
};

template <class Arithmetic>
class GradApplyProgram final : public Program {
 public:
  GradApplyProgram(const Layout& layout, const GradApplyWithTotals& with)
      : a_(with.a),
        dbias_(with.totals),
        sum_dyd_(with.totals + layout.channels),
        scale_(with.a.scale, with.a.types.scale) {}

  int steps() const override { return 0; }
  SumKind sum(int) const override { return kSumGrad; }
  MapKind map() const override { return a_.z == nullptr ? kMapGradTraining : kMapReluGradTraining; }
  bool fuses_map() const override { return true; }

  void Begin(const Channels& channels) const override {
    ForEachBatch(channels.count, [&](int64_t c, int64_t count) {
      const int64_t first = channels.first + c;
      const double *const mean = a_.batch_mean + first, *const inv_std = a_.batch_inv_std + first;
      double scale[kBatch], mean_low[kBatch], dscale[kBatch];
      scale_.Read(first, count, scale);
      for (int64_t i = 0; i < count; ++i) dscale[i] = sum_dyd_[first + i] * inv_std[i];
      for (int64_t i = 0; i < count; ++i) mean_low[i] = Split<Arithmetic>(mean[i]).low;
      SetTrainingFactors<Arithmetic>(channels, c, count, *a_.batch_count, mean, mean_low, scale, inv_std,
                                     dbias_ + first, dscale);
    });
  }

  void Finish(int, const Channels&) const override {}

 private:
  const GradApplyArguments& a_;
  const double *const dbias_, *const sum_dyd_;
  const ConstValues scale_;
};

}  // namespace

void Grad(const Layout& layout, const GradArguments& a, const KernelTable& table, Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x, a.dy, a.z}, {a.dx}};
  SweepWith<GradProgram>(layout, table, operands, a, parallel);
}

GradArguments ToGrad(const GradSumsArguments& a) {
  GradArguments grad = {};
  grad.types = {a.types.data, a.types.scale, ElementType::kDouble};
  grad.training = true;
  grad.dy = a.dy;
  grad.z = a.z;
  grad.x = a.x;
  grad.mean = a.batch_mean;
  grad.inv_std = a.batch_inv_std;
  grad.dscale = a.dscale;
  grad.dbias = a.dbias;
  grad.sums = a.sums;
  return grad;
}

void GradSums(const Layout& layout, const GradSumsArguments& a, const KernelTable& table,
              Parallel& parallel) {
  Grad(layout, ToGrad(a), table, parallel);
}

void GradApply(const Layout& layout, const GradApplyArguments& a, const KernelTable& table,
               Parallel& parallel) {
  const double* totals = a.gathered_sums;
  std::unique_ptr<double[]> rows;
  if (a.ranks > 1) {
    const int64_t size = 2 * layout.channels;
    rows.reset(new double[static_cast<size_t>(a.ranks * size)]);
    std::copy_n(a.gathered_sums, a.ranks * size, rows.get());
    AddPairwise(a.ranks, size, rows.get());
    totals = rows.get();
  }
  const Operands operands = {a.types.data, {a.x, a.dy, a.z}, {a.dx}};
  SweepWith<GradApplyProgram>(layout, table, operands, GradApplyWithTotals{a, totals}, parallel);
}

}  // namespace bngrad
