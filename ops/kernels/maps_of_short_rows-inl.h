// The sweep that maps strips of rows, some together, and the choice between the two that map rows. Included
// by each <isa>.cc after that of rows, inside bngrad::<isa> and an unnamed namespace.

// Strips of 16 elements from one end of the rows to the other, whatever channels they belong to: factors are
// read once for all of the rows, and no row begins or ends in a part of a vector but the last strip. Strips
// of one channel have a loop of their own past the caches, and where there is one row, only, for another copy
// has addresses of its own to make (measured, Zen 4, without it: 8x512x49 1.02 to 1.06, 8x2048x49 1.02 to
// 1.08, 32x1024x20 1.13 to 1.22 times as fast; past the caches 0.93 to 1.01). With kBack, from the end: what
// is loaded after a store lies before it then, and waits for none where outputs lie a little later in their
// pages (measured, Zen 4, two threads, each array 64 bytes later than the one before: 8x64x3136, 8x128x784,
// 8x512x196 1.15 to 1.2, 8x2048x49 1.2 to 1.25, 32x512x49 1.07 to 1.18 times as fast; double 1.05 to 1.15; at
// other places 0.96 to 1.05; where they lie 64 bytes earlier 0.83 to 0.9).
template <bool kBack, int kRows, class Way, class Map, class T>
BNGRAD_WHOLE void MapStrips(const Block& block, const void* const* inputs, const void* factors,
                            void* const* outputs, int64_t row) {
  constexpr int kCount = kFactorCounts[Map::kKind];
  constexpr bool kFirst = kLoadsFirst<T, kRows> && !Way::kWholeLines;
  constexpr bool kOwnLoop = Way::kWholeLines || kRows == 1;
  constexpr int kStrips = kStripsOfLine<T>;
  constexpr int64_t kLine = kStrips * kLanes;
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const int64_t length = block.length, stride = block.row_stride, run = block.channels * length;
  const int64_t start = row * stride, width = block.width, few = run % kLanes;
  struct Factors {
    typename TypeTraits<T>::Vector f[kCount];
  };
  const auto* factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  if (kBack) factor += block.channels;
  int64_t i = kBack ? run : 0;
  Factors of_channel;  // whose elements end, in the order in which they are mapped, at `edge`
  int64_t edge = i;
  const auto next_channel = [&] {
    if (kBack) --factor;
    for (int k = 0; k < kCount; ++k) of_channel.f[k] = Broadcast16(factor[k * width]);
    if (!kBack) ++factor;
    edge += kBack ? -length : length;
  };
  // Those of some elements from `at` on, of which some may belong to channels that were not come to yet.
  const auto factors_of = [&](int64_t at, int64_t count) {
    Factors several = of_channel;
    while (kBack ? edge > at : edge < at + count) {
      const First before{edge - at};
      next_channel();
      for (int k = 0; k < kCount; ++k) {
        const auto &a = several.f[k], &b = of_channel.f[k];
        several.f[k] = kBack ? Blend(b, a, before) : Blend(a, b, before);
      }
    }
    return several;
  };
  const auto left = [&] { return kBack ? i : run - i; };
  const auto left_of_channel = [&] { return kBack ? i - edge : edge - i; };
  const auto next = [&](int64_t count) {
    const int64_t before = i;
    i += kBack ? -count : count;
    return kBack ? i : before;
  };
  const auto map = [&](auto strips, int64_t at, const Factors& of, auto way, auto count) {
    MapElementsOfRows<kFirst, kRows, strips.kValue, Map>(in, out, start + at, stride, of.f, way, count);
  };
  const auto map_few = [&] {
    if (few == 0) return;
    const int64_t at = next(few);
    map(Constant<1>{}, at, factors_of(at, few), Cached{}, First{few});
  };
  next_channel();
  if (kBack) map_few();
  while (left() >= kLanes) {
    if constexpr (kOwnLoop) {
      const Factors same = of_channel;
      while (left_of_channel() >= kLanes) {
        if (kStrips > 1 && i % kLine == 0 && left_of_channel() >= kLine) {
          map(Constant<kStrips>{}, next(kLine), same, Way{}, All{});
        } else {
          map(Constant<1>{}, next(kLanes), same, Way{}, All{});
        }
      }
      if (left() < kLanes) break;
    }
    const int64_t at = next(kLanes);
    map(Constant<1>{}, at, factors_of(at, kLanes), Way{}, All{});
  }
  if (!kBack) map_few();
}

// Rows of at most so many elements are mapped some together wherever they lie.
constexpr int64_t kShortRow = 8 * kLanes;

// Rows that are mapped together where all have one place, of those of a group; past the caches one. X, dY and
// dX of four are more lines than the nearest cache has room for there (measured, Zen 4, two threads:
// 8x2048x49 1.32 to 1.35, 8x1024x49 1.30 to 1.38, 16x1024x100 1.05 to 1.32 times as fast; arrays in other
// places 0.95 to 0.98; past the caches 64x1024x49 1.07 to 1.5, 32x2048x49 1.08 to 1.28, 64x192x400 1.05
// to 1.17, 32x1024x196 1.05 to 1.1, 128x256x196 0.95 to 1.07; 16 bits 32x1024x196 1.13 to 1.52, 64x1024x49
// 0.92).
constexpr int kRowsInOnePlace = 2;

// From the last row, which the sums read last and the nearest cache still has. Some rows together are the
// faster way for short ones (measured, beside one row after the other: 8x512x49 1.06, 8x1024x20 1.16,
// 8x512x7 1.26 times as fast, 8x512x196 0.95), and past the cache for all that are not long (128x256x196
// 1.17), where they are whole cache lines.
template <class Way, class Map, class T>
void MapRowsBy(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const bool group = Way::kWholeLines ? block.length < kLongRow && RowsAreWholeLines<Map>(block, out)
                                      : block.length <= kShortRow;
  const int64_t together = group ? block.rows / kRowsOfGroup * kRowsOfGroup : 0;
  int64_t row = block.rows;
  const auto map_to = [&](int64_t first, auto back, auto rows) {
    while (row > first) {
      row -= rows.kValue;
      MapStrips<back.kValue, rows.kValue, Way, Map, T>(block, inputs, factors, outputs, row);
    }
  };
  const auto map = [&](auto back) {
    if constexpr (back.kValue && !Way::kWholeLines) {
      map_to(together, back, Constant<1>{});
    } else {
      MapRowsBackTo<Way, Map, T>(together, block, inputs, factors, outputs);
      row = together;
    }
    if constexpr (kPlacesMatter) {
      constexpr int kRows = Way::kWholeLines ? 1 : kRowsInOnePlace;
      if (InOnePlace<T>(block, inputs, outputs[0])) return map_to(0, back, Constant<kRows>{});
    }
    map_to(0, back, Constant<kRowsOfGroup>{});
  };
  if constexpr (kPlacesMatter) {
    // In order where arrays have one place (measured, in order over from the ends: past the caches
    // 128x256x196 1.09 to 1.17 times as fast, 64x1024x49 1.04 to 1.08, 32x1024x196 1.05, doubles 1.01 to
    // 1.03, float16 0.96 to 1.03; in the caches 0.99 to 1.03, 8x1024x49 0.94 to 0.99).
    if (IsSoon(outputs[0], inputs[0])) return map(Constant<true>{});
  }
  map(Constant<false>{});
}

template <class Map, class T>
void MapRows(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  if (Streams<Map, T>(block, outputs)) {
    MapRowsBy<Streamed, Map, T>(block, inputs, factors, outputs);
    Fence();
  } else {
    MapRowsBy<Cached, Map, T>(block, inputs, factors, outputs);
  }
}
