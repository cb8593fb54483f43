// The base of all ops that compute the statistics of a batch.
#pragma once
#include <algorithm>
#include <cmath>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/sweep.hpp"

namespace bngrad {

// Two passes over X: the mean, then the squares of deviations from it.
class StatisticsProgram : public Program {
 public:
  explicit StatisticsProgram(const Layout& layout) : m_(static_cast<double>(layout.reduced)) {}

  int steps() const override { return 2; }
  SumKind sum(int step) const override { return step == 0 ? kSumX : kSumSquares; }
  MapKind map() const override { return kMapForward; }

  void Begin(const Channels& channels) const override { std::fill_n(channels.center, channels.count, 0.0); }

  void Finish(int step, const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      if (step == 0) {
        channels.center[c] = channels.Sum(0, c) / m_;
      } else {
        FinishChannel(channels, c, channels.Sum(0, c) / m_);
      }
    }
  }

 protected:
  // After the second pass. The center is the mean rounded to double, `rest` is the rounding error, and sum 1
  // is that of the squared deviations from the center.
  virtual void FinishChannel(const Channels& channels, int64_t c, double rest) const = 0;

  static double Mean(double center, double rest) { return std::isfinite(rest) ? center + rest : center; }
  // A sum of squares that rounding made negative is 0. NaN stays NaN.
  static double AtLeastZero(double squares) { return squares < 0 ? 0 : squares; }

  const double m_;  // the number of elements of a channel
};

// Sets the factors of kMapForward; the mean is high + low.
template <class Arithmetic>
void SetForwardFactors(const Channels& channels, int64_t c, double high, double low, double gain,
                       double bias) {
  channels.SetFactor<Arithmetic>(0, c, high);
  channels.SetFactor<Arithmetic>(1, c, low);
  channels.SetFactor<Arithmetic>(2, c, gain);
  channels.SetFactor<Arithmetic>(3, c, bias);
}

// The running statistics before and after a step, from arguments with members of these names.
class RunningStatistics {
 public:
  template <class Arguments>
  RunningStatistics(const Arguments& a, ElementType type)
      : momentum_(a.momentum),
        unbiased_var_(a.unbiased_running_var),
        mean_(a.running_mean, type),
        var_(a.running_var, type),
        new_mean_(a.new_running_mean, type),
        new_var_(a.new_running_var, type) {}

  // mean and var are those of a batch of m elements per channel.
  void Update(int64_t channel, double mean, double var, double m) const {
    const double keep = momentum_, take = 1 - momentum_;
    if (new_mean_.requested()) new_mean_.Set(channel, keep * mean_[channel] + take * mean);
    if (new_var_.requested()) {
      const double running = unbiased_var_ ? var * m / std::max(m - 1, 1.0) : var;
      new_var_.Set(channel, keep * var_[channel] + take * running);
    }
  }

 private:
  const double momentum_;
  const bool unbiased_var_;
  const ConstValues mean_, var_;
  const Values new_mean_, new_var_;
};

}  // namespace bngrad
