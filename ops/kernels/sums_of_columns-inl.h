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
template <int kStrips>
struct Strips {
  static constexpr int kCount = kStrips;
};

// Strips of 16 columns (or the last few) side by side, some rows: their sums are loaded and stored once for
// all of them. What lies `ahead` of each element is asked for, to that level of cache; 0: nothing is.
template <int kRows, int kStrips, int kLevel, class Sum, class T, class Count>
void SumStrips(const T* const* in, int64_t i, int64_t row_stride, int64_t ahead, const double* center,
               double* sums, int64_t width, Count count) {
  typename Sum::template Term<T> c[kStrips];
  Terms<Sum, T> terms[kStrips];
  BNGRAD_UNROLL_4
  for (int s = 0; s < kStrips; ++s) Convert(Load(center + s * kLanes, count), c[s]);
  BNGRAD_UNROLL_4
  for (int row = 0; row < kRows; ++row, i += row_stride) {
    BNGRAD_UNROLL_4
    for (int s = 0; s < kStrips; ++s) {
      if constexpr (kLevel > 0) {
        for (int k = 0; k < kMaxInputs; ++k) {
          if (Sum::kReads[k]) Prefetch<kLevel>(in[k] + i + s * kLanes + ahead);
        }
      }
      Sum::Add(terms[s].sums, in, i + s * kLanes, c[s], count);
    }
  }
  BNGRAD_UNROLL_4
  for (int s = 0; s < kStrips; ++s) terms[s].MoveTo(sums + s * kLanes, width, count);
}

// All columns of some rows, from one end to the other.
template <int kRows, int kStrips, int kLevel, class Sum, class T>
void SumRowsOfColumns(const Block& block, const T* const* in, const double* center, double* sums,
                      int64_t row) {
  const int64_t length = block.length, stride = block.row_stride, start = row * stride;
  // What is asked for is so far on in the same row or, past its end, in that which will be read after it.
  constexpr int64_t kElements = kBytesAhead / kRows / static_cast<int64_t>(sizeof(T));
  const int64_t past = kElements % length, rows_on = kElements / length * kRows * stride;
  const auto sum = [&](auto strips, int64_t i, auto count) {
    const int64_t ahead = i + past < length ? rows_on + past : rows_on + past - length + kRows * stride;
    SumStrips<kRows, strips.kCount, kLevel, Sum>(in, start + i, stride, ahead, center + i, sums + i,
                                                 block.width, count);
  };
  int64_t i = 0;
  if constexpr (kStrips > 1) {
    for (; i + kStrips * kLanes <= length; i += kStrips * kLanes) sum(Strips<kStrips>{}, i, All{});
  }
  for (; i + kLanes <= length; i += kLanes) sum(Strips<1>{}, i, All{});
  if (i < length) sum(Strips<1>{}, i, First{length - i});
}

template <int kRows, int kStrips, int kLevel, class Sum, class T>
void SumColumnsBy(const Block& block, const T* const* in, const double* center, double* sums) {
  int64_t row = 0;
  for (; row + kRows <= block.rows; row += kRows) {
    SumRowsOfColumns<kRows, kStrips, kLevel, Sum>(block, in, center, sums, row);
  }
  for (; row < block.rows; ++row) SumRowsOfColumns<1, kStrips, 0, Sum>(block, in, center, sums, row);
}

template <class Sum, class T>
void SumColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  constexpr int kRows = sizeof(typename Sum::template Term<T>) == sizeof(F64x16) ? kWideRows : kStripRows;
  const bool narrow = block.length <= kNarrow, apart = block.row_stride > block.length;
  if (narrow && apart) {
    SumColumnsBy<kStripRows, kStripsBeside, 2, Sum>(block, in, center, sums);
  } else if (narrow) {
    SumColumnsBy<kStripRows, kStripsBeside, 1, Sum>(block, in, center, sums);
  } else if (!block.stream) {
    SumColumnsBy<kRows, 1, 0, Sum>(block, in, center, sums);
  } else if (apart) {
    SumColumnsBy<kRows, 1, 2, Sum>(block, in, center, sums);
  } else {
    SumColumnsBy<kRows, 1, 1, Sum>(block, in, center, sums);
  }
}
