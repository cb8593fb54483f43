// Where rows leave the sums of their channels until all rows of a block have been summed. Included by
// table-inl.h.

// 16 lanes of each sum of each channel. In the end they are added up, several channels together, and that to
// the block's sums.
template <class Sum, class T>
class ChannelTotals {
 public:
  ChannelTotals(const Block& block, double* sums)
      : channels_(block.channels), width_(block.width), sums_(sums) {}

  void Clear() {
    const F64x16 zero = Broadcast16(0.0);
    for (int64_t i = 0; i < channels_ * kCount; ++i) Store(lanes_ + i * kLanes, zero, All{});
  }

  // Adds the terms, which begin anew. The first ones of a channel are its totals: nothing need be cleared.
  BNGRAD_INLINE void Take(int64_t channel, Terms<Sum, T>& terms, bool first = false) {
    for (int k = 0; k < kCount; ++k) {
      F64x16 total;
      Convert(terms.sums[k], total);
      if (!first) total = Add16(Load(LanesOf(channel, k), All{}), total);
      Store(LanesOf(channel, k), total, All{});
    }
    terms.Clear();
  }

  void AddUp() {
    for (int k = 0; k < kCount; ++k) {
      double* const sums = sums_ + k * width_;
      int64_t channel = 0;
      for (; channel + 4 <= channels_; channel += 4) {
        AddSumsOfLanes4(sums + channel, LanesOf(channel, k), kCount * kLanes);
      }
      for (; channel < channels_; ++channel) sums[channel] += SumOfLanes(Load(LanesOf(channel, k), All{}));
    }
  }

 private:
  static constexpr int kCount = kSumCounts[Sum::kKind];

  double* LanesOf(int64_t channel, int k) { return lanes_ + (channel * kCount + k) * kLanes; }

  const int64_t channels_, width_;
  double* const sums_;
  // A cache line each 8: lanes that cross one are slow to store.
  alignas(kCacheLine) double lanes_[kMaxTileChannels * kCount * kLanes];
};
