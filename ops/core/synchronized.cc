#include "core/synchronized.hpp"

#include <algorithm>
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
  if (a.batch_count != nullptr) *a.batch_count = std::numeric_limits<double>::quiet_NaN();
  // A few channels at a time: those of one rank lie together.
  constexpr int64_t kChannels = 32;
  const std::unique_ptr<double[]> terms(new double[static_cast<size_t>(a.ranks * kChannels)]);
  for (int64_t begin = 0; begin < a.channels; begin += kChannels) {
    const int64_t size = std::min(kChannels, a.channels - begin);
    const auto moments = [&](int64_t rank, int k) {
      return a.gathered_moments + (rank * 3 + k) * a.channels + begin;
    };
    // Over the ranks that have elements: of the others, a deviation squared might be infinite.
    const auto sum = [&](double* sums, const auto& term) {
      for (int64_t rank = 0; rank < a.ranks; ++rank) {
        const double *const n = moments(rank, 0), *const mean = moments(rank, 1);
        const double* const squares = moments(rank, 2);
        double* const row = terms.get() + rank * size;
        for (int64_t i = 0; i < size; ++i) row[i] = n[i] == 0 ? 0 : term(i, n[i], mean[i], squares[i]);
      }
      AddPairwise(a.ranks, size, terms.get());
      std::copy_n(terms.get(), size, sums);
    };
    double count[kChannels], mean[kChannels], squares[kChannels];
    const double* const first = moments(0, 1);
    sum(count, [](int64_t, double n, double, double) { return n; });
    sum(mean, [&](int64_t i, double n, double m, double) { return n * (m - first[i]); });
    for (int64_t i = 0; i < size; ++i) mean[i] = first[i] + mean[i] / count[i];
    sum(squares, [&](int64_t i, double n, double m, double m2) {
      const double deviation = m - mean[i];
      return m2 + n * (deviation * deviation);
    });
    for (int64_t i = 0; i < size; ++i) {
      const int64_t channel = begin + i;
      const double var = squares[i] / count[i];
      running.Update(channel, mean[i], var, count[i]);
      if (a.batch_mean != nullptr) a.batch_mean[channel] = mean[i];
      if (a.batch_inv_std != nullptr) a.batch_inv_std[channel] = 1 / std::sqrt(var + a.epsilon);
      if (a.batch_count != nullptr && channel == 0) *a.batch_count = count[i];
    }
  }
}

void Apply(const Layout& layout, const ApplyArguments& a, const KernelTable& table, Parallel& parallel) {
  const Operands operands = {a.types.data, {a.x}, {a.y}};
  SweepWith<ApplyProgram>(layout, table, operands, a, parallel);
}

}  // namespace bngrad
