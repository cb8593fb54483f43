// The sweep that sums rows one after the other. Included by each <isa>.cc after what is summed, inside
// bngrad::<isa> and an unnamed namespace.

// Where the elements lie that are summed so many after those at hand: rows that are apart have their ends in
// between (measured, two threads, beside so many elements on, or beyond one end: float16 32x512x784 1.11,
// 32x256x3136 1.1, float 32x512x784 1.06, 32x32x729 1.1 times as fast).
class Ahead {
 public:
  Ahead(int64_t run, int64_t row_stride, int64_t elements)
      : run_(run), row_stride_(row_stride), rows_(elements / run), in_row_(elements % run) {}

  void Begin(int64_t row) {
    at_ = (row + rows_) * row_stride_ + in_row_;
    left_ = run_ - in_row_;
  }
  int64_t Pass(int64_t elements) {
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

// Rows that are not short, of which the terms of a channel are moved once or several times each.
template <class Sum, class T, class Beside>
BNGRAD_WHOLE void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                          Beside&& beside) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  constexpr int64_t kElements = kBytesAhead / static_cast<int64_t>(sizeof(T));
  constexpr bool kTwo = !LongRowTerms<Sum, T>::kDouble;
  ChannelTotals<Sum, T> totals(block, sums);
  totals.Clear();
  Ahead ahead(block.channels * block.length, block.row_stride, kElements);
  const auto ask = [&](int64_t elements) {
    const int64_t at = ahead.Pass(elements);
    for (int k = 0; k < kMaxInputs; ++k) {
      if (Sum::kReads[k]) Prefetch<kAskLevel<T>>(in[k], at);
    }
  };
  for (int64_t row = 0; row < block.rows; ++row) {
    ahead.Begin(row);
    beside.Begin(row);
    for (int64_t channel = 0; channel < block.channels; ++channel) {
      const int64_t start = row * block.row_stride + channel * block.length;
      typename LongRowTerms<Sum, T>::Term c;
      Convert(Broadcast16(center[channel]), c);
      LongRowTerms<Sum, T> terms, odd;
      int64_t i = 0;
      while (i + kLanes <= block.length) {
        const int64_t whole = block.length - i < kTerms * kLanes ? block.length : i + kTerms * kLanes;
        beside.InTurns(channel, start, i, whole, [&](int64_t end, const auto& each) {
          // Terms in float have one register a sum, and additions to it wait for each other: odd vectors have
          // another (measured, float16 32x512x28x28 1.02, bfloat16 one thread 4x8x56x56 1.05 times as fast).
          for (; kTwo && i + 2 * kLanes <= end; i += 2 * kLanes) {
            ask(2 * kLanes);
            Sum::Add(terms.sums, in, start + i, c, All{});
            Sum::Add(odd.sums, in, start + i + kLanes, c, All{});
            each(start + i);
            each(start + i + kLanes);
          }
          for (; i + kLanes <= end; i += kLanes) {
            ask(kLanes);
            Sum::Add(terms.sums, in, start + i, c, All{});
            each(start + i);
          }
        });
        if (kTwo) terms.TakeFrom(odd);
        totals.Take(channel, terms);
      }
      if (i < block.length) {
        Sum::Add(terms.sums, in, start + i, c, First{block.length - i});
        beside.Last(channel, start + i, First{block.length - i});
        totals.Take(channel, terms);
      }
    }
    beside.Finish();
  }
  totals.AddUp();
}
