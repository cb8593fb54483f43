// The sweeps that sum short rows, several together, and the choice between all that sum rows. Included by
// table-inl.h.

// Strips of 16 elements from one end of some rows to the other, whatever channels they belong to: no
// channel's row ends in a part of a vector.
template <class Sum, class T, class Epilogue>
BNGRAD_INLINE void SumGroup(const Block& block, const T* const* inputs, const double* center,
                            int64_t first_row, int64_t rows, bool prefetched, ChannelTotals<Sum, T>& totals,
                            const Epilogue& given) {
  using Term = typename Sum::template Term<T>;
  constexpr int kCount = kSumCounts[Sum::kKind];
  constexpr int64_t kElements = kPrefetchDistance / 2 / static_cast<int64_t>(sizeof(T));
  const T* const in[] = {inputs[0], inputs[1], inputs[2]};
  const Epilogue epilogue = given;
  const int64_t length = block.length, stride = block.row_stride, run = block.channels * length;
  const int64_t most_strips = kTerms / rows;
  // Terms in float come to the totals several times.
  const bool first = Terms<Sum, T>::kDouble && first_row == 0;
  const int64_t start = first_row * stride, gap = rows * stride - run;
  const auto center_of = [&](int64_t channel) BNGRAD_INLINE_LAMBDA {
    Term c;
    Convert(Broadcast16(center[channel]), c);
    return c;
  };

  Terms<Sum, T> terms;  // of the channel that strip i begins in, whose elements end before `end`
  int64_t i = 0, channel = 0, end = length, strips = 0;
  Term c = center_of(channel);
  auto factors = epilogue.OfChannel(channel);
  const auto add = [&](int64_t at, const Term& centers, auto count) BNGRAD_INLINE_LAMBDA {
    if (prefetched) {
      const int64_t ahead = start + at + (at + kElements < run ? kElements : kElements + gap);
      for (int64_t r = 0; r < rows; ++r) {
        for (int k = 0; k < kMaxInputs; ++k) {
          if (Sum::kReads[k]) Prefetch<kPrefetchLevel>(in[k], ahead + r * stride);
        }
      }
    }
    ForRows<Sum::kUnrolledRows>(rows, [&](int64_t row, auto some) BNGRAD_INLINE_LAMBDA {
      BNGRAD_UNROLL
      for (int r = 0; r < some.kValue; ++r) {
        Sum::Add(terms.sums, in, start + at + (row + r) * stride, centers, count);
      }
    });
  };
  const auto map = [&](int64_t at, const auto& of, auto count) BNGRAD_INLINE_LAMBDA {
    ForRows<Sum::kUnrolledRows>(rows, [&](int64_t row, auto some) BNGRAD_INLINE_LAMBDA {
      epilogue.template MapRowsAt<some.kValue>(start + at + row * stride, stride, of, count);
    });
  };
  const auto take_in_time = [&]() BNGRAD_INLINE_LAMBDA {
    if (Terms<Sum, T>::kDouble || ++strips < most_strips) return;
    totals.Take(channel, terms);
    strips = 0;
  };
  // One in which a channel ends, and perhaps others begin.
  const auto sum_several = [&](auto count) BNGRAD_INLINE_LAMBDA {
    const int64_t past = i + kLanes;
    Terms<Sum, T> before = terms;
    terms.Clear();
    for (int64_t next = channel + 1, at = end; at < past && at < run; ++next, at += length) {
      c = Blend(c, center_of(next), FirstN{at - i});
      Epilogue::BlendIn(factors, epilogue.OfChannel(next), FirstN{at - i});
    }
    add(i, c, count);
    map(i, factors, count);
    for (; end <= past && end <= run; ++channel, end += length) {
      const FirstN of_channel{end - i};
      const Term zero = Terms<Sum, T>().sums[0];
      for (int k = 0; k < kCount; ++k) {
        Term& of_strip = terms.sums[k];
        before.sums[k] = Blend(Add16(before.sums[k], of_strip), before.sums[k], of_channel);
        of_strip = Blend(zero, of_strip, of_channel);
      }
      totals.Take(channel, before, first);
    }
    strips = 0;
    if (end > run) return;
    c = center_of(channel);
    factors = epilogue.OfChannel(channel);
  };
  for (; i + kLanes <= run; i += kLanes) {
    for (; i + kLanes < end; i += kLanes) {
      add(i, c, All{});
      map(i, factors, All{});
      take_in_time();
    }
    if (i + kLanes > run) break;
    sum_several(All{});
    take_in_time();
  }
  if (i < run) sum_several(FirstN{run - i});
}

template <class Sum, class T, class Epilogue>
BNGRAD_INLINE void SumShortRows(const Block& block, const void* const* inputs, const double* center,
                                double* sums, bool prefetched, const Epilogue& epilogue) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  ChannelTotals<Sum, T> totals(block, sums);
  if (!Terms<Sum, T>::kDouble) totals.Clear();
  const bool large = Terms<Sum, T>::kDouble && !block.stream && block.length <= kShortRow;
  int64_t row = 0, rows = large ? 2 * kGroupRows : kGroupRows;
  if constexpr (Epilogue::kMaps) {  // the number is known where there is more to do
    for (; row + kGroupRows <= block.rows && !large; row += kGroupRows) {
      SumGroup<Sum, T>(block, in, center, row, kGroupRows, prefetched, totals, epilogue);
    }
  }
  for (; row < block.rows; row += rows) {
    while (row + rows > block.rows) rows /= 2;
    SumGroup<Sum, T>(block, in, center, row, rows, prefetched && rows >= kGroupRows, totals, epilogue);
  }
  totals.AddUp();
}

// Short rows of several channels are so many columns, of which those of a channel are added up at the end.
template <class Sum, class T>
void SumRowsAsColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  constexpr int kCount = kSumCounts[Sum::kKind];
  static_assert(kColumnsRow <= kMaxTileColumns, "a channel of short rows");
  // Multiples of 16 channels are whole cache lines.
  const int64_t fitting = kMaxTileColumns / block.length;
  const int64_t most = fitting < kLanes ? fitting : fitting / kLanes * kLanes;
  alignas(kCacheLine) double centers[kMaxTileColumns], columns[kCount * kMaxTileColumns];
  for (int64_t first = 0; first < block.channels; first += most) {
    Block part = block;
    part.channels = block.channels - first < most ? block.channels - first : most;
    part.length = part.width = part.channels * block.length;
    for (int64_t i = 0; i < kCount * part.width; ++i) columns[i] = 0.0;
    const void* begins[kMaxInputs];
    for (int k = 0; k < kMaxInputs; ++k) {
      begins[k] = Sum::kReads[k] ? static_cast<const T*>(inputs[k]) + first * block.length : nullptr;
    }
    for (int64_t channel = 0; channel < part.channels; ++channel) {
      double* const of_channel = centers + channel * block.length;
      for (int64_t i = 0; i < block.length; ++i) of_channel[i] = center[first + channel];
    }
    SumColumns<Sum, T>(part, begins, centers, columns);
    for (int64_t channel = 0; channel < part.channels; ++channel) {
      for (int k = 0; k < kCount; ++k) {
        const double* const of_channel = columns + k * part.width + channel * block.length;
        F64x16 sum = Broadcast16(0.0);
        int64_t i = 0;
        for (; i + kLanes <= block.length; i += kLanes) sum = Add16(sum, Load(of_channel + i, All{}));
        if (i < block.length) sum = Add16(sum, Load(of_channel + i, FirstN{block.length - i}));
        sums[k * block.width + first + channel] += SumOfLanes(sum);
      }
    }
  }
}

// True if the rows of a block are summed as columns. It does not depend on whether they are also mapped.
bool AsColumns(const Block& block) {
  return block.length <= kColumnsRow && block.rows >= kRowsOfColumns && !block.stream;
}

template <class Sum, class T>
void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums) {
  if (AsColumns(block)) {
    SumRowsAsColumns<Sum, T>(block, inputs, center, sums);
  } else if (block.length < kLongRow) {
    SumShortRows<Sum, T>(block, inputs, center, sums, block.stream, NoEpilogue{});
  } else {
    SumLongRows<Sum, T>(block, inputs, center, sums, NoEpilogue{});
  }
}
