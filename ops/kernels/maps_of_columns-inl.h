// The sweep that maps columns. Included by each <isa>.cc after the formulas, inside bngrad::<isa> and an
// unnamed namespace.

// Wider rows that are written past the caches are mapped some together, for their factors do not stay in the
// nearest cache (measured, 1568x2048 1.1, 16 bits 6272x2048 1.2 times as fast; rows of 64 to 512 columns 0.87
// to 0.98, of 1024 0.86 to 1.1).
constexpr int64_t kWideRow = 1024;

// Row after row, so that memory is read and written from one end to the other; the factors come from cache.
template <class Map, class T>
BNGRAD_WHOLE void MapColumns(const Block& block, const void* const* inputs, const void* factors,
                             void* const* outputs) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const auto* const factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  // In registers: for all that the compiler knows, a store may change the block.
  const int64_t rows = block.rows, row_stride = block.row_stride, length = block.length, width = block.width;
  const bool stream = block.stream && RowsAreWholeLines<Map>(block, out);
  const auto map = [&](int64_t row, auto several, int64_t column, auto strips, auto way, auto count) {
    constexpr int kCount = kFactorCounts[Map::kKind];
    typename TypeTraits<T>::Vector f[strips.kValue][kCount];
    for (int s = 0; s < strips.kValue; ++s) {
      for (int k = 0; k < kCount; ++k) f[s][k] = Load(factor + k * width + column + s * kLanes, count);
    }
    BNGRAD_UNROLL_4
    for (int r = 0; r < several.kValue; ++r) {
      for (int s = 0; s < strips.kValue; ++s) {
        MapElements<Map>(in, out, (row + r) * row_stride + column + s * kLanes, f[s], way, count);
      }
    }
  };
  int64_t row = 0;
  const auto map_rows = [&](auto several, auto way) {
    for (; row + several.kValue <= rows; row += several.kValue) {
      constexpr int kStrips = way.kWholeLines && several.kValue > 1 ? kStripsOfLine<T> : 1;
      constexpr int64_t kLine = kStrips * kLanes;
      int64_t i = 0;
      for (; i + kLine <= length; i += kLine) map(row, several, i, Constant<kStrips>{}, way, All{});
      if (kStrips > 1 && i + kLanes <= length) {
        map(row, several, i, Constant<1>{}, way, All{});
        i += kLanes;
      }
      if (i < length) map(row, several, i, Constant<1>{}, Cached{}, First{length - i});
    }
  };
  if (stream) {
    if (row_stride > kWideRow) map_rows(Constant<kRowsOfGroup>{}, Streamed{});
    map_rows(Constant<1>{}, Streamed{});
    Fence();
  } else {
    map_rows(Constant<kMapRows>{}, Cached{});
    map_rows(Constant<1>{}, Cached{});
  }
}
