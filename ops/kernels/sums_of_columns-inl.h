// The sweep that sums columns. Included by each <isa>.cc after what is summed, inside bngrad::<isa> and an
// unnamed namespace.

// Columns are summed so many rows at a time, from one end of the rows to the other, as memory is read
// fastest; narrow ones twice as many, for their sums wait for those of the rows before (measured, sums alone,
// beside strips of 8 rows: 1568x512 1.1 to 1.4 times as fast, 6272x1024 1.0 to 1.8). Terms in float cost more
// to add to the sums.
constexpr int kWideRows = 4;
constexpr int64_t kNarrow = 4 * kLanes;

// Narrow columns are so many strips side by side: memory is read faster in runs of several cache lines.
constexpr int kStripsBeside = 4;

// What is asked for while rows are summed, to the nearest cache and to the second level. Rows that lie one
// after the other: as many as are summed together, and in the order of memory, which is not the one they are
// summed in (measured, sums alone, beside so many bytes on in each row: 12544x128 1.2, 6272x256 1.1,
// 100352x128 1.2, 25088x512 1.05 times as fast); far: some groups of rows later, to the level that rows are
// asked to. Rows apart: so many bytes on in each, or in that which is summed after it.
enum Ask { kAskNothing, kAskInOrder, kAskFar, kAskInRows };

// Rows of no more bytes are asked for in the caches, too (measured, sums alone: 6272x256 1.1, 3136x256 1.15,
// 1568x256 1.0 to 1.1 times as fast; 3136x512 0.95; 16 bits, two threads, 6272x512 and frozen 1.2 and 1.6,
// 1568x512 1.02 and 1.04).
constexpr int64_t kFewBytes = 1024;

// Rows of so many columns that lie past the caches are asked for far ahead, where rows are asked to the
// second level, and so are narrow ones that are not mapped beside (measured, Zen 4, two threads:
// 100352x64 1.02 to 1.09, 25088x256 0.97 to 1.05, 6272x512, 25088x512 1.04 to 1.06, frozen 25088x256,
// 25088x512 1.2 to 1.26, 6272x1024 1.06 to 1.1 times as fast; 25088x128 0.96 to 1.0, frozen 0.84 to 0.92,
// 100352x64 0.95; two, three and six groups of rows ahead 0.97 to 1.03).
constexpr int64_t kFarColumns = 256;
constexpr int64_t kGroupsAhead = 4;

// Strips of 16 columns (or the last few) side by side, from `column` on, some rows: their sums, and factors,
// are loaded and stored once for all of them. `ask`: the first element that is asked for, or how far on from
// each. Inline: GCC would call it for each strip (measured, 16 bits, 6272x256: 0.85 times as fast).
template <int kRows, int kStrips, Ask kAsk, class Sum, class T, class Beside, class Count>
inline void SumStrips(const T* const* in, int64_t start, int64_t column, int64_t row_stride, int64_t ask,
                      const double* center, double* sums, int64_t width, const Beside& beside, Count count) {
  typename Sum::template Term<T> c[kStrips];
  typename Beside::Factors factors[kStrips];
  Terms<Sum, T> terms[kStrips];
  BNGRAD_UNROLL_4
  for (int s = 0; s < kStrips; ++s) {
    Convert(Load(center + column + s * kLanes, count), c[s]);
    factors[s] = beside.FactorsFrom(column + s * kLanes, count);
    terms[s].GoOnFrom(sums + column + s * kLanes, width, count);
  }
  int64_t i = start + column;
  BNGRAD_UNROLL_4
  for (int row = 0; row < kRows; ++row, i += row_stride) {
    BNGRAD_UNROLL_4
    for (int s = 0; s < kStrips; ++s) {
      for (int k = 0; k < kMaxInputs; ++k) {
        if (!Sum::kReads[k]) continue;
        const int64_t in_order = ask + (row * kStrips + s) * kLanes;
        if constexpr (kAsk == kAskInOrder) Prefetch<1>(in[k], in_order);
        if constexpr (kAsk == kAskFar) Prefetch<kAskLevel<T>>(in[k], in_order);
        if constexpr (kAsk == kAskInRows) Prefetch<2>(in[k], i + s * kLanes + ask);
      }
      Sum::Add(terms[s].sums, in, i + s * kLanes, c[s], count);
      if (!Beside::kTogether) beside.MapAt(i + s * kLanes, factors[s], count);
    }
  }
  if constexpr (Beside::kTogether) {
    static_assert(kStrips == 1, "strips of rows that are mapped together");
    beside.template MapRowsAt<kRows, 1>(start + column, row_stride, factors[0], count);
  }
  BNGRAD_UNROLL_4
  for (int s = 0; s < kStrips; ++s) terms[s].BecomeTotals(sums + column + s * kLanes, width, count);
}

// All columns of some rows, from one end to the other, or back.
template <int kRows, int kStrips, Ask kAsk, class Sum, class T, class Beside>
BNGRAD_WHOLE void SumRowsOfColumns(const Block& block, const T* const* in, const double* center, double* sums,
                                   int64_t row, const Beside& beside) {
  const int64_t length = block.length, stride = block.row_stride, start = row * stride;
  const int64_t group = kRows * stride;
  constexpr int64_t kElements = kBytesAhead / kRows / static_cast<int64_t>(sizeof(T));
  const int64_t past = kElements % length, groups_on = kElements / length * group;
  const auto sum = [&](auto strips, int64_t i, auto count) {
    const int64_t on = groups_on + past + (i + past < length ? 0 : group - length);
    const int64_t in_order = start + (kAsk == kAskFar ? kGroupsAhead : 1) * group + i * kRows;
    const int64_t ask = kAsk == kAskInRows ? on : in_order;
    SumStrips<kRows, strips.kValue, kAsk, Sum>(in, start, i, stride, ask, center, sums, block.width, beside,
                                               count);
  };
  if constexpr (Beside::kBack) {
    int64_t end = length / kLanes * kLanes;
    if (end < length) sum(Constant<1>{}, end, First{length - end});
    for (; end > 0; end -= kLanes) sum(Constant<1>{}, end - kLanes, All{});
    return;
  }
  int64_t i = 0;
  if constexpr (kStrips > 1) {
    for (; i + kStrips * kLanes <= length; i += kStrips * kLanes) sum(Constant<kStrips>{}, i, All{});
  }
  for (; i + kLanes <= length; i += kLanes) sum(Constant<1>{}, i, All{});
  if (i < length) sum(Constant<1>{}, i, First{length - i});
}

template <int kRows, int kStrips, Ask kAsk, class Sum, class T, class Beside>
void SumColumnsBy(const Block& block, const T* const* in, const double* center, double* sums,
                  const Beside& beside) {
  int64_t row = 0;
  for (; row + kRows <= block.rows; row += kRows) {
    SumRowsOfColumns<kRows, kStrips, kAsk, Sum>(block, in, center, sums, row, beside);
  }
  for (; row < block.rows; ++row) {
    SumRowsOfColumns<1, kStrips, kAskNothing, Sum>(block, in, center, sums, row, beside);
  }
}

template <class Sum, class T, class Beside>
void SumColumns(const Block& block, const void* const* inputs, const double* center, double* sums,
                const Beside& beside) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  constexpr int kRows = Terms<Sum, T>::kDouble ? kWideRows : kStripRows;
  constexpr int kStrips = Beside::kStrips, kNarrowStrips = Beside::kMaps ? kStrips : kStripsBeside;
  const bool narrow = block.length <= kNarrow, apart = block.row_stride > block.length;
  const bool few = block.length * static_cast<int64_t>(sizeof(T)) <= kFewBytes;
  const bool far = kAskLevel<T> > 1 && block.stream;
  if (narrow && apart) {
    SumColumnsBy<kStripRows, kNarrowStrips, kAskInRows, Sum>(block, in, center, sums, beside);
  } else if (narrow && far && !Beside::kMaps) {
    SumColumnsBy<kStripRows, kNarrowStrips, kAskFar, Sum>(block, in, center, sums, beside);
  } else if (narrow) {
    SumColumnsBy<kStripRows, kNarrowStrips, kAskInOrder, Sum>(block, in, center, sums, beside);
  } else if (!block.stream && (apart || !few)) {
    SumColumnsBy<kRows, kStrips, kAskNothing, Sum>(block, in, center, sums, beside);
  } else if (apart) {
    SumColumnsBy<kRows, kStrips, kAskInRows, Sum>(block, in, center, sums, beside);
  } else if (far && block.length >= kFarColumns) {
    SumColumnsBy<kRows, kStrips, kAskFar, Sum>(block, in, center, sums, beside);
  } else {
    SumColumnsBy<kRows, kStrips, kAskInOrder, Sum>(block, in, center, sums, beside);
  }
}

template <class Sum, class T>
void SumColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  SumColumns<Sum, T>(block, inputs, center, sums, Nothing{});
}
