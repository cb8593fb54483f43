// The sweep that sums rows one after the other. Included by each <isa>.cc after what is summed, inside
// bngrad::<isa> and an unnamed namespace.

// Rows that are not short, of which the terms of a channel are moved once or several times each.
template <class Sum, class T, class Beside>
void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums,
             Beside&& beside) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  // Of 16 bits, 2048 bytes (measured, beside 4096: float16 32x512x28x28 1.04 times as fast).
  constexpr int64_t kElements = kBytesAhead / static_cast<int64_t>(sizeof(T) < 4 ? 4 : sizeof(T));
  constexpr bool kTwo = !Terms<Sum, T>::kDouble;
  ChannelTotals<Sum, T> totals(block, sums);
  totals.Clear();
  // What lies together of a row, and from its end to the next.
  const int64_t run = block.channels * block.length, gap = block.row_stride - run;
  for (int64_t row = 0; row < block.rows; ++row) {
    beside.Begin(row);
    for (int64_t channel = 0; channel < block.channels; ++channel) {
      const int64_t begin = channel * block.length, start = row * block.row_stride + begin;
      typename Sum::template Term<T> c;
      Convert(Broadcast16(center[channel]), c);
      Terms<Sum, T> terms, odd;
      int64_t i = 0;
      while (i + kLanes <= block.length) {
        const int64_t whole = block.length - i < kTerms * kLanes ? block.length : i + kTerms * kLanes;
        const int64_t ahead = begin + i + kElements < run ? kElements : kElements + gap;
        beside.InTurns(channel, start, i, whole, [&](int64_t end) {
          // Terms in float have one register a sum, and additions to it wait for each other: odd vectors have
          // another (measured, float16 32x512x28x28 1.02, bfloat16 one thread 4x8x56x56 1.05 times as fast).
          for (; kTwo && i + 2 * kLanes <= end; i += 2 * kLanes) {
            for (int k = 0; k < kMaxInputs; ++k) {
              if (Sum::kReads[k]) Prefetch<1>(in[k] + start + i + ahead);
            }
            Sum::Add(terms.sums, in, start + i, c, All{});
            Sum::Add(odd.sums, in, start + i + kLanes, c, All{});
          }
          for (; i + kLanes <= end; i += kLanes) {
            for (int k = 0; k < kMaxInputs; ++k) {
              if (Sum::kReads[k]) Prefetch<1>(in[k] + start + i + ahead);
            }
            Sum::Add(terms.sums, in, start + i, c, All{});
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
