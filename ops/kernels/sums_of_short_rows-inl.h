// The sweeps that sum short rows, several together, and the choice between all that sum rows. Included by
// each <isa>.cc after those of rows and of columns, which short rows are sometimes, inside bngrad::<isa> and
// an unnamed namespace.

// Rows of at most so many elements that lie in the caches are summed as columns where there are so many of
// them (measured beside strips, two threads: 32x1024x7 1.18 times as fast, 100x1024x7 1.34, 32x1024x20 1.06,
// 32x512x36 1.02, 16x512x36 0.99), and of so many columns at a time as stay in the nearest cache with their
// sums.
constexpr int64_t kColumnsRow = 3 * kLanes;
constexpr int64_t kRowsOfColumns = 16;
constexpr int64_t kColumnsOfRows = 1024;
static_assert(kColumnsRow <= kColumnsOfRows, "a channel of short rows");

// Rows that are mapped in strips, too, are summed so many together in the caches (measured, beside groups of
// 4: 8x512x49 1.05, 8x256x196 1.0, frozen 0.95; past the caches 32x2048x49 0.98, frozen 0.94).
constexpr int64_t kRowsInCaches = 2 * kRowsOfGroup;

// Strips of 16 elements from one end of the rows to the other, whatever channels they belong to: no channel's
// row ends in a part of a vector (measured, beside rows that do: 8x512x49 1.13, 8x2048x49 1.18, 8x512x7 1.33,
// 8x256x196 1.10, 128x256x196 1.18 times as fast; one row alone, 1x512x49, 0.97). Those of one channel have a
// loop of their own where little else is done for a strip, or much; else the same code does for all, for
// another copy has addresses of its own to make (measured, with the loop and without: 8x256x49 0.95, frozen
// 1.07; 1x512x49 1.06).
template <int kRows, bool kAsk, class Sum, class T, class Beside>
BNGRAD_WHOLE BNGRAD_NOINLINE void SumStripsOfRows(const Block& block, const T* const* in,
                                                  const double* center, int64_t row,
                                                  ChannelTotals<Sum, T>& totals, const Beside& beside) {
  using Term = typename Sum::template Term<T>;
  constexpr int kCount = kSumCounts[Sum::kKind];
  constexpr int64_t kMostStrips = kTerms / kRows;
  constexpr bool kOwnLoop = Beside::kMaps || kRows < kRowsOfGroup;
  constexpr bool kHalves = kAsk && Beside::kStrips == 2;  // of lines that are written past the caches
  constexpr int64_t kElements = kBytesAheadOfShort / static_cast<int64_t>(sizeof(T));
  const int64_t length = block.length, stride = block.row_stride, run = block.channels * length;
  // Terms in float come to the totals several times.
  const bool first = Terms<Sum, T>::kDouble && row == 0;
  const int64_t start = row * stride, gap = kRows * stride - run;
  const auto add = [&](Terms<Sum, T>& terms, int64_t i, const Term& c, auto count) {
    const int64_t ahead = i + kElements < run ? kElements : kElements + gap;
    BNGRAD_UNROLL_8
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = start + i + r * stride;
      for (int k = 0; k < kMaxInputs; ++k) {
        if (kAsk && Sum::kReads[k]) Prefetch<kAskLevel<T>>(in[k], at + ahead);
      }
      Sum::Add(terms.sums, in, at, c, count);
    }
  };
  const auto map = [&](auto strips, int64_t i, const auto& factors, auto count) {
    beside.template MapRowsAt<kRows, strips.kValue>(start + i, stride, factors, count);
  };
  const auto map_strip = [&](int64_t i, const auto& factors, auto count) {
    map(Constant<1>{}, i, factors, count);
  };
  const auto center_of = [&](int64_t channel) {
    Term c;
    Convert(Broadcast16(center[channel]), c);
    return c;
  };

  Terms<Sum, T> terms;  // of the channel that strip i begins in, whose elements end before `end`
  int64_t channel = 0, end = length, strips = 0;
  Term c = center_of(channel);
  auto factors = beside.FactorsOf(channel);
  const auto take_in_time = [&] {
    if (Terms<Sum, T>::kDouble || ++strips < kMostStrips) return;
    totals.Take(channel, terms);
    strips = 0;
  };
  const auto sum_strip = [&](int64_t i, auto count, const auto& map) {
    const int64_t past = i + kLanes;
    const bool ends = end <= past;  // the channel; and perhaps others begin
    Terms<Sum, T> before;
    if (ends) {
      before = terms;
      terms.Clear();
      for (int64_t next = channel + 1, at = end; at < past && at < run; ++next, at += length) {
        c = Blend(c, center_of(next), First{at - i});
        beside.BlendIn(factors, next, First{at - i});
      }
    }
    add(terms, i, c, count);
    map(i, factors, count);
    if (!ends) return;
    for (; end <= past && end <= run; ++channel, end += length) {
      const First of_channel{end - i};
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
    factors = beside.FactorsOf(channel);
  };
  int64_t i = 0;
  [[maybe_unused]] typename Beside::template Waiting<kRows> waiting;
  for (; i + kLanes <= run; i += kLanes) {
    if constexpr (Beside::kHeld > 0) {
      // What strips become waits to be written until as many more have been summed: see MapHeld. These rows
      // are whole strips, and channels longer than kShortRow.
      constexpr int kHeld = Beside::kHeld;
      static_assert((kHeld + 2) * kLanes <= kShortRow, "a channel has strips to hold");
      typename Beside::template Strip<kRows> held[kHeld], now;
      const auto sum = [&](auto& to) {
        add(terms, i, c, All{});
        take_in_time();
        beside.Apply(start + i, stride, factors, to);
      };
      BNGRAD_UNROLL_4
      for (int s = 0; s < kHeld; ++s, i += kLanes) sum(held[s]);
      if (channel > 0) beside.Put(start + i - kHeld * kLanes, stride, waiting);
      for (; i + kLanes < end; i += kLanes) {
        sum(now);
        beside.Put(start + i - kHeld * kLanes, stride, held[0]);
        for (int s = 1; s < kHeld; ++s) held[s - 1] = held[s];
        held[kHeld - 1] = now;
      }
      sum_strip(i, All{}, [&](int64_t, const auto& of_strip, All) {
        beside.Apply(start + i, stride, of_strip, now);
        beside.Wait(held, now, waiting);
      });
      take_in_time();
      if (end > run) beside.Put(start + run, stride, waiting);
      continue;
    }
    if constexpr (kOwnLoop) {
      for (; i + kLanes < end; i += kLanes) {
        add(terms, i, c, All{});
        if (kHalves && i % (2 * kLanes) == 0 && i + 2 * kLanes < end) {
          take_in_time();
          i += kLanes;
          add(terms, i, c, All{});
          map(Constant<Beside::kStrips>{}, i - kLanes, factors, All{});
        } else {
          map(Constant<1>{}, i, factors, All{});
        }
        take_in_time();
      }
      if (i + kLanes > run) break;
    }
    sum_strip(i, All{}, map_strip);
    take_in_time();
  }
  if (i < run) sum_strip(i, First{run - i}, map_strip);
}

template <bool kAsk, class Sum, class T, class Beside>
void SumShortRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                  const Beside& beside) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  ChannelTotals<Sum, T> totals(block, sums);
  if (!Terms<Sum, T>::kDouble) totals.Clear();
  int64_t row = 0;
  const auto sum = [&](auto rows) {
    constexpr bool kAsks = kAsk && rows.kValue >= kRowsOfGroup;
    for (; row + rows.kValue <= block.rows; row += rows.kValue) {
      SumStripsOfRows<rows.kValue, kAsks, Sum>(block, in, center, row, totals, beside);
    }
  };
  if constexpr (Terms<Sum, T>::kDouble && !kAsk) {
    if (block.length <= kShortRow) sum(Constant<kRowsInCaches>{});
  }
  sum(Constant<kRowsOfGroup>{});
  sum(Constant<2>{});
  sum(Constant<1>{});
  totals.AddUp();
}

// Short rows of several channels are so many columns, of which those of a channel are added up at the end.
template <class Sum, class T>
void SumRowsAsColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  constexpr int kCount = kSumCounts[Sum::kKind];
  // Multiples of 16 channels are whole cache lines.
  const int64_t fitting = kColumnsOfRows / block.length;
  const int64_t most = fitting < kLanes ? fitting : fitting / kLanes * kLanes;
  alignas(kCacheLine) double centers[kColumnsOfRows], columns[kCount * kColumnsOfRows];
  for (int64_t first = 0; first < block.channels; first += most) {
    Block part = block;
    part.channels = block.channels - first < most ? block.channels - first : most;
    part.length = part.width = part.channels * block.length;
    for (int64_t i = 0; i < kCount * part.width; ++i) columns[i] = 0.0;
    const void* begins[kMaxInputs];
    for (int k = 0; k < kMaxInputs; ++k) {
      begins[k] = Sum::kReads[k] ? static_cast<const T*>(inputs[k]) + first * block.length : nullptr;
    }
    const int64_t centered = kAboutZero<Sum, T> ? 0 : part.channels;
    for (int64_t channel = 0; channel < centered; ++channel) {
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
        if (i < block.length) sum = Add16(sum, Load(of_channel + i, First{block.length - i}));
        sums[k * block.width + first + channel] += SumOfLanes(sum);
      }
    }
  }
}

// How the sums of a block are made, whether it is mapped beside or not.
bool AsColumns(const Block& block) {
  return block.length <= kColumnsRow && block.rows >= kRowsOfColumns && !block.stream;
}
bool InStrips(const Block& block) { return block.length < kLongRow; }

template <class Sum, class T>
void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums) {
  if (AsColumns(block)) {
    SumRowsAsColumns<Sum, T>(block, inputs, center, sums);
  } else if (!InStrips(block)) {
    SumRows<Sum, T>(block, inputs, center, sums, Nothing{});
  } else if (block.stream) {
    SumShortRows<true, Sum, T>(block, inputs, center, sums, Nothing{});
  } else {
    SumShortRows<false, Sum, T>(block, inputs, center, sums, Nothing{});
  }
}
