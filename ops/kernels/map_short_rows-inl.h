// The sweep that maps short rows in groups, and the choice between the two that map rows. Included by
// table-inl.h.

// Strips of 16 elements from one end of the rows to the other, whatever channels they belong to: factors are
// read once for all of the rows, and no row begins or ends in a part of a vector but the last strip.
template <class Map, class T>
void MapShortRows(const Block& block, const MapArrays<Map, T>& given, StorePolicy policy, int64_t row) {
  using Arrays = MapArrays<Map, T>;
  const Arrays arrays = given;
  const int64_t length = block.length, stride = block.row_stride, run = block.channels * length;
  const int64_t start = row * stride;
  int64_t i = 0, channel = 0, end = length;
  typename Arrays::Factors factors = arrays.OfChannel(0);  // of the channel that ends at `end`
  const auto map = [&](auto strips, const typename Arrays::Factors& of, StorePolicy known,
                       auto count) BNGRAD_INLINE_LAMBDA {
    arrays.template MapRowsAt<kMapRows, strips.kValue>(start + i, stride, of, known, count);
    i += strips.kValue * kLanes;
  };
  // Those that may belong to several channels.
  const auto map_several = [&](int64_t count, auto lanes) BNGRAD_INLINE_LAMBDA {
    typename Arrays::Factors several = factors;
    while (end < i + count) {
      const FirstN before{end - i};
      factors = arrays.OfChannel(++channel);
      end += length;
      Arrays::BlendIn(several, factors, before);
    }
    map(Constant<1>{}, several, policy, lanes);
  };
  constexpr int kStrips = kStripsOfLine<T>;
  constexpr int64_t kLine = kStrips * kLanes;
  while (i + kLanes <= run) {
    ForPolicy(policy, [&](StorePolicy known) BNGRAD_INLINE_LAMBDA {
      const typename Arrays::Factors same = factors;
      while (i + kLanes <= end) {
        // A line that is written past the caches is written as a whole.
        if (kStrips > 1 && i % kLine == 0 && i + kLine <= end) {
          map(Constant<kStrips>{}, same, known, All{});
        } else {
          map(Constant<1>{}, same, known, All{});
        }
      }
    });
    if (i + kLanes <= run) map_several(kLanes, All{});
  }
  if (i < run) map_several(run - i, FirstN{run - i});
}

// From the last row, which the sums read last and the nearest cache still has. The second gradient has one
// way for all rows.
template <class Map, class T>
void MapRows(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  const MapArrays<Map, T> arrays(block, inputs, factors, outputs);
  const StorePolicy policy = PolicyOfRows(block, arrays);
  if constexpr (kOutputCounts[Map::kKind] == 1) {
    const bool group = policy == kNonTemporal ? block.length < kLongRow && arrays.RowsAreLines(block)
                                              : block.length <= kShortRow;
    const int64_t grouped = group ? block.rows / kMapRows * kMapRows : 0;
    MapRowsBackTo(grouped, block, arrays, policy);
    for (int64_t row = grouped; row > 0;) {
      row -= kMapRows;
      MapShortRows(block, arrays, policy, row);
    }
  } else {
    MapRowsBackTo(0, block, arrays, policy);
  }
  if (policy == kNonTemporal) Fence();
}
