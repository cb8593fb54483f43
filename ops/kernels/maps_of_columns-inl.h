// The sweep that maps columns. Included by each <isa>.cc after the formulas, inside bngrad::<isa> and an
// unnamed namespace.

// Strips of narrow rows, whose factors stay in registers: kHoldsFactors (measured, Zen 4, past the caches:
// 100352x64 1.02 to 1.08, 401408x64 1.0 to 1.03, 16 bits 1.03 to 1.06 times as fast; in the caches 0.93
// to 1.05).
constexpr int kStripsHeld = 4;
template <class Map, class T>
constexpr bool kHeld =
    kHoldsFactors &&
    kStripsHeld * kFactorCounts[Map::kKind] * sizeof(typename TypeTraits<T>::Vector) <= 24 * kCacheLine;

// Row after row, so that memory is read and written from one end to the other; the factors come from cache.
template <class Map, class T>
BNGRAD_WHOLE void MapColumns(const Block& block, const void* const* inputs, const void* factors,
                             void* const* outputs) {
  using V = typename TypeTraits<T>::Vector;
  using Factor = typename TypeTraits<T>::Arithmetic;
  constexpr int kCount = kFactorCounts[Map::kKind];
  constexpr bool kFirst = kLoadsFirst<T, kRowsOfGroup>;
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const Factor* const factor = static_cast<const Factor*>(factors);
  // In registers: for all that the compiler knows, a store may change the block.
  const int64_t rows = block.rows, row_stride = block.row_stride, length = block.length, width = block.width;
  const bool stream = block.stream && RowsAreWholeLines<Map>(block, out);
  const auto load_factors = [&](int64_t column, auto count, V* f) {
    for (int k = 0; k < kCount; ++k) f[k] = Load(factor + k * width + column, count);
  };
  // The same strips of some rows.
  const auto map = [&](auto first, int64_t row, auto several, int64_t column, auto strips, auto way,
                       auto count) {
    V f[strips.kValue][kCount];
    for (int s = 0; s < strips.kValue; ++s) load_factors(column + s * kLanes, count, f[s]);
    const int64_t at = row * row_stride + column;
    if constexpr (first.kValue) {
      MapElementsOfRows<true, several.kValue, 1, Map>(in, out, at, row_stride, f[0], way, count);
    } else {
      BNGRAD_UNROLL_4
      for (int r = 0; r < several.kValue; ++r) {
        for (int s = 0; s < strips.kValue; ++s) {
          MapElements<Map>(in, out, at + r * row_stride + s * kLanes, f[s], way, count);
        }
      }
    }
  };
  int64_t row = 0;
  const auto map_held = [&] {
    V f[kStripsHeld][kCount];
    BNGRAD_UNROLL_4
    for (int s = 0; s < kStripsHeld; ++s) load_factors(s * kLanes, All{}, f[s]);
    for (; row < rows; ++row) {
      BNGRAD_UNROLL_4
      for (int s = 0; s < kStripsHeld; ++s) {
        MapElements<Map>(in, out, row * row_stride + s * kLanes, f[s], Streamed{}, All{});
      }
    }
  };
  const auto map_rows = [&](auto several, auto first, auto back, auto way) {
    constexpr int kStrips = way.kWholeLines && several.kValue > 1 ? kStripsOfLine<T> : 1;
    constexpr int64_t kLine = kStrips * kLanes;
    const int64_t whole = length / kLine * kLine;
    const auto map_rest = [&] {
      int64_t i = whole;
      if (kStrips > 1 && i + kLanes <= length) {
        map(first, row, several, i, Constant<1>{}, way, All{});
        i += kLanes;
      }
      if (i < length) map(first, row, several, i, Constant<1>{}, Cached{}, First{length - i});
    };
    for (; row + several.kValue <= rows; row += several.kValue) {
      if (back.kValue) map_rest();
      for (int64_t i = 0; i < whole; i += kLine) {
        map(first, row, several, back.kValue ? whole - kLine - i : i, Constant<kStrips>{}, way, All{});
      }
      if (!back.kValue) map_rest();
    }
  };
  constexpr Constant<kRowsOfGroup> kGroup;
  constexpr Constant<kMapRows> kSome;
  constexpr Constant<1> kOne;
  constexpr Constant<kFirst> kMayBeFirst;
  constexpr Constant<kPlacesMatter> kMayBeBack;
  constexpr Constant<false> kNo;
  // Where all rows have one place in their pages, those of a group are all loaded before one is stored, and
  // then mapped together in the caches, too (measured, Zen 4, two threads, arrays at seven places of a page:
  // 1568x1024 1.1 to 1.17, 392x2048 1.05 to 1.25 times as fast; past the caches 6272x1024 1.1 to 1.2,
  // 1568x2048 1.15 where the arrays have one place, else 1.0, but 0.92 to 0.95 where outputs lie 64 bytes
  // later). In the caches, from their ends where outputs lie later in their pages, see MapStrips (each array
  // 64 bytes later than the one before: 392x512, 1568x512, 6272x128, 6272x64 1.03 to 1.07, 128 bytes 1.0 to
  // 1.03; doubles 1.0 to 1.07, 392x2048 0.91 to 1.0; past the caches 0.9).
  const bool one_place = kFirst && RowsHaveOnePlace<T>(block);
  const bool soon = kPlacesMatter && IsSoon(out[0], in[0]);
  if (stream) {
    if constexpr (kHeld<Map, T>) {
      if (length == kStripsHeld * kLanes) map_held();
    }
    // Some rows together where the factors of one, a quantity of which are so many bytes, do not stay in the
    // nearest cache (measured, floats: 1568x2048 1.1, 16 bits 6272x2048 1.2 times as fast; rows of 64 to 512
    // columns 0.87 to 0.98). On Zen 4 those of a page are, too (6272x1024 1.05 to 1.13, 16 bits 1.03 to 1.1,
    // doubles 6272x1024 and 1568x1024 1.1 to 1.36, 6272x512 1.07 to 1.1); other CPUs had 0.86 to 1.1 of 1024
    // floats.
    if (row_stride * static_cast<int64_t>(sizeof(Factor)) >= kWideRow) {
      if (one_place && !soon) map_rows(kGroup, kMayBeFirst, kNo, Streamed{});
      map_rows(kGroup, kNo, kNo, Streamed{});
    }
    map_rows(kOne, kNo, kNo, Streamed{});
    return Fence();
  }
  if (one_place && soon) map_rows(kGroup, kMayBeFirst, kMayBeBack, Cached{});
  if (one_place) map_rows(kGroup, kMayBeFirst, kNo, Cached{});
  if (soon) map_rows(kSome, kNo, kMayBeBack, Cached{});
  map_rows(kSome, kNo, kNo, Cached{});
  map_rows(kOne, kNo, kNo, Cached{});
}
