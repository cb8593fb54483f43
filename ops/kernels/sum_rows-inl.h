// The sweep that sums rows one after the other. Included by table-inl.h.

// Where the elements lie that are summed so many after those at hand: rows that are apart have their ends in
// between.
class Ahead {
 public:
  Ahead(int64_t run, int64_t row_stride, int64_t elements)
      : run_(run), row_stride_(row_stride), rows_(elements / run), in_row_(elements % run) {}

  BNGRAD_INLINE void Begin(int64_t row) {
    at_ = (row + rows_) * row_stride_ + in_row_;
    left_ = run_ - in_row_;
  }
  BNGRAD_INLINE int64_t Pass(int64_t elements) {
    const int64_t at = at_;
    at_ += elements;
    left_ -= elements;
    if (left_ <= 0) {
      at_ += left_ + row_stride_ - run_;
      left_ = run_;
    }
    return at;
  }

 private:
  const int64_t run_, row_stride_;  // of a row: what lies together; to the next
  const int64_t rows_, in_row_;     // how far ahead
  int64_t at_ = 0, left_ = 0;       // where, and how many until its row ends
};

// Rows that are not short, of which the terms of a channel are moved once or several times each. `map` maps
// as many elements as are summed, some after the other: RowMap, or NoEpilogue.
template <class Sum, class T, class Map>
BNGRAD_INLINE void SumLongRows(const Block& block, const void* const* inputs, const double* center,
                               double* sums, Map map) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  const int64_t length = block.length, stride = block.row_stride, channels = block.channels;
  constexpr bool kTwo = !Terms<Sum, T>::kDouble;
  ChannelTotals<Sum, T> totals(block, sums);
  totals.Clear();
  Ahead ahead(channels * length, stride, kPrefetchDistance / static_cast<int64_t>(sizeof(T)));
  const auto prefetch = [&]() BNGRAD_INLINE_LAMBDA {
    const int64_t at = ahead.Pass(kLanes);
    for (int k = 0; k < kMaxInputs; ++k) {
      if (Sum::kReads[k]) Prefetch<kPrefetchLevel>(in[k], at);
    }
  };
  for (int64_t row = 0; row < block.rows; ++row) {
    ahead.Begin(row);
    if constexpr (Map::kMaps) map.Begin(row);
    for (int64_t channel = 0; channel < channels; ++channel) {
      const int64_t start = row * stride + channel * length;
      typename Sum::template Term<T> c;
      Convert(Broadcast16(center[channel]), c);
      Terms<Sum, T> terms, odd;
      int64_t i = 0;
      while (i + kLanes <= length) {
        const int64_t whole = length - i < kTerms * kLanes ? length : i + kTerms * kLanes;
        while (i + kLanes <= whole) {
          const int64_t end = Map::kMaps && whole - i > kFusedStep ? i + kFusedStep : whole;
          // Terms in float have one register a sum, and additions to it wait for each other: odd vectors have
          // another.
          for (; kTwo && i + 2 * kLanes <= end; i += 2 * kLanes) {
            prefetch();
            Sum::Add(terms.sums, in, start + i, c, All{});
            prefetch();
            Sum::Add(odd.sums, in, start + i + kLanes, c, All{});
          }
          for (; i + kLanes <= end; i += kLanes) {
            prefetch();
            Sum::Add(terms.sums, in, start + i, c, All{});
          }
          if constexpr (Map::kMaps) map.Next(kFusedStep);
        }
        if (kTwo) terms.TakeFrom(odd);
        totals.Take(channel, terms);
      }
      if (i < length) {
        Sum::Add(terms.sums, in, start + i, c, FirstN{length - i});
        totals.Take(channel, terms);
      }
    }
    if constexpr (Map::kMaps) map.Finish();
  }
  totals.AddUp();
}
