// The sweep that maps columns. Included by table-inl.h.

// Row after row, so that memory is read and written from one end to the other; the factors come from a cache.
// Maps rows while there are kRows, and returns the first that is left.
template <int kRows, class Map, class T>
BNGRAD_INLINE int64_t MapRowsOfColumns(const Block& block, MapArrays<Map, T> arrays, StorePolicy policy,
                                       int64_t row) {
  const int64_t rows = block.rows, stride = block.row_stride, length = block.length;
  // Of some rows, each writes a whole line at a time past the caches.
  constexpr int kStrips = kRows > 1 ? kStripsOfLine<T> : 1;
  const auto map = [&](auto strips, int64_t i, auto count) BNGRAD_INLINE_LAMBDA {
    typename MapArrays<Map, T>::Factors factors[strips.kValue];
    for (int s = 0; s < strips.kValue; ++s) factors[s] = arrays.OfColumns(i + s * kLanes, count);
    const int64_t at = row * stride + i;
    if constexpr (strips.kValue == 1) {
      arrays.template MapRowsAt<kRows, 1>(at, stride, factors[0], policy, count);
    } else {
      BNGRAD_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        for (int s = 0; s < strips.kValue; ++s) {
          arrays.MapAt(at + r * stride + s * kLanes, factors[s], policy, count);
        }
      }
    }
  };
  for (; row + kRows <= rows; row += kRows) {
    int64_t i = 0;
    if constexpr (kStrips > 1) {
      for (; i + kStrips * kLanes <= length; i += kStrips * kLanes) map(Constant<kStrips>{}, i, All{});
    }
    for (; i + kLanes <= length; i += kLanes) map(Constant<1>{}, i, All{});
    if (i < length) map(Constant<1>{}, i, FirstN{length - i});
  }
  return row;
}

template <class Map, class T>
void MapColumns(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  const MapArrays<Map, T> arrays(block, inputs, factors, outputs);
  const StorePolicy policy = block.stream && arrays.RowsAreLines(block) ? kNonTemporal : kTemporal;
  int64_t row = 0;
  if constexpr (kOutputCounts[Map::kKind] == 1) {
    constexpr int64_t kFactorBytes = sizeof(typename MapArrays<Map, T>::Factor);
    if (policy == kTemporal) {
      row = MapRowsOfColumns<kMapRows>(block, arrays, kTemporal, row);
    } else if (block.row_stride * kFactorBytes >= kWideRow) {
      row = MapRowsOfColumns<kGroupRows>(block, arrays, kNonTemporal, row);
    }
    ForPolicy(policy, [&](StorePolicy known)
                          BNGRAD_INLINE_LAMBDA { MapRowsOfColumns<1>(block, arrays, known, row); });
  } else {
    MapRowsOfColumns<1>(block, arrays, policy, row);
  }
  if (policy == kNonTemporal) Fence();
}
