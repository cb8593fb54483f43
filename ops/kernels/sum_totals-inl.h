// Where rows leave the sums of their channels until all rows of a block have been summed. Included by each
// <isa>.cc after what is summed, inside bngrad::<isa> and an unnamed namespace.

// 16 lanes of each sum of each channel. In the end they are added up, and that to the block's sums.
template <class Sum, class T>
class ChannelTotals {
 public:
  ChannelTotals(const Block& block, double* sums)
      : channels_(block.channels), width_(block.width), sums_(sums) {}

  void Clear() {
    const F64x16 zero = Broadcast16(0.0);
    for (int64_t i = 0; i < channels_ * kCount; ++i) Store(lanes_ + i * kLanes, zero, All{});
  }

  // The terms, which begin anew, with the totals of those before unless these are the first; to the totals,
  // or to the sums if they are the last. So a few rows need no memory (measured, beside totals that are
  // cleared, stored and loaded again: 1x512x49 1.11, 8x512x49 1.04 times as fast).
  void Take(int64_t channel, Terms<Sum, T>& terms, bool first = false, bool last = false) {
    for (int k = 0; k < kCount; ++k) {
      F64x16 total;
      Convert(terms.sums[k], total);
      if (!first) total = Add16(Load(LanesOf(channel, k), All{}), total);
      if (last) {
        AddUp(channel, k, total);
      } else {
        Store(LanesOf(channel, k), total, All{});
      }
    }
    terms.Clear();
  }

  void AddUp() {
    for (int64_t channel = 0; channel < channels_; ++channel) {
      for (int k = 0; k < kCount; ++k) AddUp(channel, k, Load(LanesOf(channel, k), All{}));
    }
  }

 private:
  static constexpr int kCount = kSumCounts[Sum::kKind];

  double* LanesOf(int64_t channel, int k) { return lanes_ + (channel * kCount + k) * kLanes; }
  void AddUp(int64_t channel, int k, const F64x16& total) {
    sums_[k * width_ + channel] += SumOfLanes(total);
  }

  const int64_t channels_, width_;
  double* const sums_;
  // A cache line each 8: lanes that cross one are slow to store (measured, 2x64x64: 1.3 times).
  alignas(kCacheLine) double lanes_[kMaxTileChannels * kCount * kLanes];
};
