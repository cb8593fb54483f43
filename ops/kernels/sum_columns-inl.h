// The sweep that sums columns: some rows together, from one end of the rows to the other, as memory is read
// fastest. Included by table-inl.h.

// The elements that are prefetched while rows are summed. Rows that lie one after the other: as many as are
// summed together, in the order of memory. Rows apart: some elements on in each. To the nearest cache, or to
// the second level: what lies past the caches, and rows apart, many of which have the same places in the
// nearest.
enum PrefetchPattern { kPrefetchNone, kPrefetchNear, kPrefetchFar };

// Strips of 16 columns, or the first few of one, side by side, from `column` on, of some rows: their sums,
// and factors, are loaded and stored once for all of them. `ahead`: the first element that is prefetched, of
// the first row; `step`: to that of the next.
template <int kStrips, int kUnrolled, class Sum, class T, class Epilogue, class Count>
BNGRAD_INLINE void SumStrips(const T* const* in, int64_t start, int64_t column, int64_t rows, int64_t stride,
                             PrefetchPattern pattern, int64_t ahead, int64_t step, const double* center,
                             double* sums, int64_t width, const Epilogue& epilogue, Count count) {
  typename Sum::template Term<T> c[kStrips];
  typename Epilogue::Factors factors[kStrips];
  Terms<Sum, T> terms[kStrips];
  BNGRAD_UNROLL
  for (int s = 0; s < kStrips; ++s) {
    Convert(Load(center + column + s * kLanes, count), c[s]);
    factors[s] = epilogue.OfColumns(column + s * kLanes, count);
    terms[s].Resume(sums + column + s * kLanes, width, count);
  }
  const auto prefetch = [&](int64_t first) BNGRAD_INLINE_LAMBDA {
    for (int k = 0; k < kMaxInputs; ++k) {
      if (!Sum::kReads[k]) continue;
      for (int s = 0; s < kStrips; ++s) {
        if (pattern == kPrefetchNear) {
          Prefetch<1>(in[k], first + s * kLanes);
        } else {
          Prefetch<2>(in[k], first + s * kLanes);
        }
      }
    }
  };
  // All at once if there is one strip: then the loop has registers for nothing else.
  for (int64_t row = 0; kStrips == 1 && pattern != kPrefetchNone && row < rows; ++row) {
    prefetch(ahead + row * step);
  }
  ForRows<kUnrolled>(rows, [&](int64_t row, auto some) BNGRAD_INLINE_LAMBDA {
    const int64_t i = start + column + row * stride;
    if (kStrips > 1 && pattern != kPrefetchNone) prefetch(ahead + row * step);
    BNGRAD_UNROLL
    for (int s = 0; s < kStrips; ++s) {
      BNGRAD_UNROLL
      for (int r = 0; r < some.kValue; ++r) {
        Sum::Add(terms[s].sums, in, i + s * kLanes + r * stride, c[s], count);
      }
      epilogue.template MapRowsAt<some.kValue>(i + s * kLanes, stride, factors[s], count);
    }
  });
  BNGRAD_UNROLL
  for (int s = 0; s < kStrips; ++s) terms[s].Flush(sums + column + s * kLanes, width, count);
}

// All columns of some rows, kStrips strips at a time and then one.
template <int kStrips, class Sum, class T, class Epilogue>
BNGRAD_INLINE void SumRowsOfColumns(const Block& block, const T* const* in, const double* center,
                                    double* sums, int64_t row, int64_t rows, PrefetchPattern pattern,
                                    Epilogue epilogue) {
  const int64_t length = block.length, stride = block.row_stride, width = block.width;
  const int64_t start = row * stride, group = rows * stride;
  const int64_t elements = kPrefetchDistance / rows / static_cast<int64_t>(sizeof(T));
  const int64_t past = elements % length, groups_on = elements / length * group;
  const int64_t next = start + (pattern == kPrefetchFar ? kGroupsAhead : 1) * group;
  const bool in_order = stride <= length;
  int64_t i = 0;
  const auto sum = [&](auto strips, auto unrolled, auto count) BNGRAD_INLINE_LAMBDA {
    const int64_t in_rows = start + i + groups_on + past + (i + past < length ? 0 : group - length);
    const int64_t ahead = in_order ? next + i * rows : in_rows;
    const int64_t step = in_order ? strips.kValue * kLanes : stride;
    SumStrips<strips.kValue, unrolled.kValue, Sum>(in, start, i, rows, stride, pattern, ahead, step, center,
                                                   sums, width, epilogue, count);
    i += strips.kValue * kLanes;
  };
  if constexpr (kStrips > 1) {
    while (i + kStrips * kLanes <= length) sum(Constant<kStrips>{}, Constant<1>{}, All{});
  }
  while (i + kLanes <= length) sum(Constant<1>{}, Constant<Sum::kUnrolledRows>{}, All{});
  if (i < length) sum(Constant<1>{}, Constant<1>{}, FirstN{length - i});
}

template <class Sum, class T, class Epilogue>
BNGRAD_INLINE void SumColumnsWith(const Block& block, const void* const* inputs, const double* center,
                                  double* sums, const Epilogue& epilogue) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  const int64_t bytes = block.length * static_cast<int64_t>(sizeof(T));
  const bool narrow = block.length <= kNarrowColumns, apart = block.row_stride > block.length;
  const bool prefetched = narrow || block.stream || (!apart && bytes <= kPrefetchedRow);
  const bool far = apart || block.stream;
  const PrefetchPattern pattern = !prefetched ? kPrefetchNone : far ? kPrefetchFar : kPrefetchNear;
  // Terms in float cost more to add to the sums.
  const int64_t rows = narrow || !Terms<Sum, T>::kDouble ? 2 * kGroupRows : kGroupRows;
  int64_t row = 0;
  // Memory is read faster in runs of several cache lines.
  if constexpr (!Epilogue::kMaps && Sum::kUnrolledRows > 1) {
    constexpr int kStrips = kNarrowColumns / kLanes;
    for (; narrow && row + rows <= block.rows; row += rows) {
      SumRowsOfColumns<kStrips, Sum>(block, in, center, sums, row, rows, pattern, epilogue);
    }
  }
  while (row < block.rows) {
    const bool group = row + rows <= block.rows;
    const int64_t some = group ? rows : 1;
    SumRowsOfColumns<1, Sum>(block, in, center, sums, row, some, group ? pattern : kPrefetchNone, epilogue);
    row += some;
  }
}

template <class Sum, class T>
void SumColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  SumColumnsWith<Sum, T>(block, inputs, center, sums, NoEpilogue{});
}
