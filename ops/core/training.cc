#include "core/training.hpp"

#include <cmath>
#include <string>

#include "core/statistics_program.hpp"
#include "core/sweep.hpp"

namespace bngrad {
namespace {

// Statistics is Training without the outputs that need the other inputs, which are null.
template <class Arithmetic>
class TrainingProgram final : public StatisticsProgram {
 public:
  TrainingProgram(const Layout& layout, const TrainingArguments& a)
      : StatisticsProgram(layout),
        a_(a),
        scale_(a.scale, a.types.scale),
        bias_(a.bias, a.types.scale),
        running_(a, a.types.stat),
        saved_mean_(a.saved_mean, a.types.stat),
        saved_inv_std_(a.saved_inv_std, a.types.stat) {}

 private:
  void FinishChannel(const Channels& channels, int64_t c, double rest) const override {
    const int64_t channel = channels.first + c;
    const double center = channels.center[c], mean = Mean(center, rest);
    const double var = AtLeastZero(channels.Sum(1, c) / m_ - rest * rest);
    const double inv_std = 1 / std::sqrt(var + a_.epsilon);
    saved_mean_.Set(channel, mean);
    saved_inv_std_.Set(channel, inv_std);
    running_.Update(channel, mean, var, m_);
    if (a_.y == nullptr) return;
    const double high = static_cast<Arithmetic>(center);
    const double low = std::isfinite(high) ? (center - high) + rest : 0;
    SetForwardFactors<Arithmetic>(channels, c, high, low, scale_[channel] * inv_std, bias_[channel]);
  }

  const TrainingArguments& a_;
  const ConstValues scale_, bias_;
  const RunningStatistics running_;
  const Values saved_mean_, saved_inv_std_;
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

TrainingArguments ToTraining(const StatisticsArguments& a) {
  TrainingArguments training = {};
  training.types = a.types;
  training.epsilon = a.epsilon;
  training.x = a.x;
  training.saved_mean = a.mean;
  training.saved_inv_std = a.inv_std;
  return training;
}

void Statistics(const Layout& layout, const StatisticsArguments& a, const KernelTable& table,
                Parallel& parallel) {
  Training(layout, ToTraining(a), table, parallel);
}

}  // namespace bngrad
