#include "core/training.hpp"

#include <algorithm>
#include <cmath>

#include "core/sweep.hpp"

namespace bngrad {
namespace {

// Statistics is Training without the outputs that need the other inputs, which are null.
template <class Arithmetic>
class TrainingProgram final : public Program {
 public:
  TrainingProgram(const Layout& layout, const TrainingArguments& a)
      : a_(a),
        m_(static_cast<double>(layout.reduced)),
        scale_(a.scale, a.types.scale),
        bias_(a.bias, a.types.scale),
        running_mean_(a.running_mean, a.types.stat),
        running_var_(a.running_var, a.types.stat),
        new_running_mean_(a.new_running_mean, a.types.stat),
        new_running_var_(a.new_running_var, a.types.stat),
        saved_mean_(a.saved_mean, a.types.stat),
        saved_inv_std_(a.saved_inv_std, a.types.stat) {}

  // Two passes over X: the mean, then the variance about it.
  int steps() const override { return 2; }
  SumKind sum(int step) const override { return step == 0 ? kSumX : kSumSquares; }
  MapKind map() const override { return kMapForward; }

  void Begin(const Channels& channels) const override { std::fill_n(channels.center, channels.count, 0.0); }

  void Finish(int step, const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      if (step == 0) {
        channels.center[c] = channels.Sum(0, c) / m_;
      } else {
        FinishVariance(channels, c);
      }
    }
  }

 private:
  void FinishVariance(const Channels& channels, int64_t c) const {
    // The center is the mean rounded to double; `rest` is the rounding error.
    const int64_t channel = channels.first + c;
    const double center = channels.center[c], rest = channels.Sum(0, c) / m_;
    const double mean = std::isfinite(rest) ? center + rest : center;
    const double squares = channels.Sum(1, c) / m_ - rest * rest;
    const double var = squares < 0 ? 0 : squares;  // NaN stays NaN
    const double inv_std = 1 / std::sqrt(var + a_.epsilon);
    saved_mean_.Set(channel, mean);
    saved_inv_std_.Set(channel, inv_std);

    const double keep = a_.momentum, take = 1 - a_.momentum;
    if (new_running_mean_.requested())
      new_running_mean_.Set(channel, keep * running_mean_[channel] + take * mean);
    if (new_running_var_.requested()) {
      const double running = a_.unbiased_running_var ? var * m_ / std::max(m_ - 1, 1.0) : var;
      new_running_var_.Set(channel, keep * running_var_[channel] + take * running);
    }

    if (a_.y == nullptr) return;
    const double high = static_cast<Arithmetic>(center);
    channels.SetFactor<Arithmetic>(0, c, high);
    channels.SetFactor<Arithmetic>(1, c, std::isfinite(high) ? (center - high) + rest : 0);
    channels.SetFactor<Arithmetic>(2, c, scale_[channel] * inv_std);
    channels.SetFactor<Arithmetic>(3, c, bias_[channel]);
  }

  const TrainingArguments& a_;
  const double m_;
  const ConstValues scale_, bias_, running_mean_, running_var_;
  const Values new_running_mean_, new_running_var_, saved_mean_, saved_inv_std_;
};

}  // namespace

void CheckEpsilon(double epsilon) {
  if (std::isfinite(epsilon) && epsilon >= 0) return;
  throw InvalidArgument("epsilon is " + std::to_string(epsilon) + "; expected a finite number >= 0");
}

void CheckMomentum(double momentum) {
  if (std::isfinite(momentum)) return;
  throw InvalidArgument("momentum is " + std::to_string(momentum) + "; expected a finite number");
}

void Training(const Layout& layout, const TrainingArguments& a, const KernelTable& table,
              Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x}, {a.y}};
  SweepWith<TrainingProgram>(layout, table, operands, a, parallel);
}

void Statistics(const Layout& layout, const StatisticsArguments& a, const KernelTable& table,
                Parallel& parallel) {
  TrainingArguments training = {};
  training.types = a.types;
  training.epsilon = a.epsilon;
  training.x = a.x;
  training.saved_mean = a.mean;
  training.saved_inv_std = a.inv_std;
  Training(layout, training, table, parallel);
}

}  // namespace bngrad
