#include "core/synchronized.hpp"

#include <cmath>
#include <limits>
#include <memory>

#include "core/pairwise.hpp"
#include "core/statistics_program.hpp"
#include "core/sweep.hpp"

namespace bngrad {
namespace {

template <class Arithmetic>
class MomentsProgram final : public StatisticsProgram {
 public:
  MomentsProgram(const Layout& layout, double* moments)
      : StatisticsProgram(layout),
        counts_(moments),
        means_(counts_ + layout.channels),
        squares_(means_ + layout.channels) {}

 private:
  void FinishChannel(const Channels& channels, int64_t c, double rest) const override {
    const int64_t channel = channels.first + c;
    counts_[channel] = m_;
    means_[channel] = m_ > 0 ? Mean(channels.center[c], rest) : 0;
    squares_[channel] = m_ > 0 ? AtLeastZero(channels.Sum(1, c) - m_ * rest * rest) : 0;
  }

  double *const counts_, *const means_, *const squares_;
};

template <class Arithmetic>
class ApplyProgram final : public Program {
 public:
  ApplyProgram(const Layout&, const ApplyArguments& a)
      : a_(a), scale_(a.scale, a.types.scale), bias_(a.bias, a.types.scale) {}

  int steps() const override { return 0; }
  SumKind sum(int) const override { return kSumX; }
  MapKind map() const override { return kMapForward; }
  bool fuses_map() const override { return true; }

  void Begin(const Channels& channels) const override {
    for (int64_t c = 0; c < channels.count; ++c) {
      const int64_t channel = channels.first + c;
      const Split<Arithmetic> mean(a_.batch_mean[channel]);
      SetForwardFactors<Arithmetic>(channels, c, mean.high, mean.low,
                                    scale_[channel] * a_.batch_inv_std[channel], bias_[channel]);
    }
  }

  void Finish(int, const Channels&) const override {}

 private:
  const ApplyArguments& a_;
  const ConstValues scale_, bias_;
};

}  // namespace

void Moments(const Layout& layout, ElementType type, const void* x, double* moments, const KernelTable& table,
             Parallel& parallel) {
  const Operands operands = {type, {x}, {}};
  SweepWith<MomentsProgram>(layout, table, operands, moments, parallel);
}

void MergeMoments(const MergeMomentsArguments& a) {
  const RunningStatistics running(a, a.stat);
  const std::unique_ptr<double[]> terms(new double[static_cast<size_t>(a.ranks)]);
  if (a.batch_count != nullptr) *a.batch_count = std::numeric_limits<double>::quiet_NaN();
  for (int64_t channel = 0; channel < a.channels; ++channel) {
    const auto moment = [&](int64_t rank, int k) {
      return a.gathered_moments[(rank * 3 + k) * a.channels + channel];
    };
    // Over the ranks that have elements: of the others, a deviation squared might be infinite.
    const auto sum = [&](const auto& term) {
      for (int64_t rank = 0; rank < a.ranks; ++rank) {
        const double n = moment(rank, 0);
        terms[rank] = n == 0 ? 0 : term(rank, n);
      }
      AddPairwise(a.ranks, 1, terms.get());
      return terms[0];
    };
    const double count = sum([](int64_t, double n) { return n; }), first = moment(0, 1);
    const double deviations = sum([&](int64_t rank, double n) { return n * (moment(rank, 1) - first); });
    const double mean = first + deviations / count;
    const double squares = sum([&](int64_t rank, double n) {
      const double deviation = moment(rank, 1) - mean;
      return moment(rank, 2) + n * (deviation * deviation);
    });
    const double var = squares / count;
    running.Update(channel, mean, var, count);
    if (a.batch_mean != nullptr) a.batch_mean[channel] = mean;
    if (a.batch_inv_std != nullptr) a.batch_inv_std[channel] = 1 / std::sqrt(var + a.epsilon);
    if (a.batch_count != nullptr && channel == 0) *a.batch_count = count;
  }
}

void Apply(const Layout& layout, const ApplyArguments& a, const KernelTable& table, Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x}, {a.y}};
  SweepWith<ApplyProgram>(layout, table, operands, a, parallel);
}

}  // namespace bngrad
