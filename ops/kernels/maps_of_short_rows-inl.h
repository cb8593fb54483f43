// The sweep that maps short rows, some together, and the choice between the two. Included by each <isa>.cc
// after that of rows, inside bngrad::<isa> and an unnamed namespace.

// Strips of 16 elements from one end of the rows to the other, whatever channels they belong to: factors are
// read once for all of the rows, and no row begins or ends in a part of a vector but the last strip. Strips
// of one channel have a loop of their own past the caches only, for another copy has addresses of its own to
// make (measured, Zen 4, without it: 8x512x49 1.02 to 1.06, 8x2048x49 1.02 to 1.08, 32x1024x20 1.13 to 1.22
// times as fast; past the caches 0.93 to 1.01).
template <bool kFirst, int kRows, class Way, class Map, class T>
BNGRAD_WHOLE void MapStrips(const Block& block, const void* const* inputs, const void* factors,
                            void* const* outputs, int64_t row) {
  constexpr int kCount = kFactorCounts[Map::kKind];
  constexpr bool kOwnLoop = Way::kWholeLines;
  constexpr int kStrips = kStripsOfLine<T>;
  constexpr int64_t kLine = kStrips * kLanes;
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const int64_t length = block.length, stride = block.row_stride, run = block.channels * length;
  const int64_t start = row * stride, width = block.width;
  struct Factors {
    typename TypeTraits<T>::Vector f[kCount];
  };
  const auto map = [&](auto strips, int64_t i, const Factors& factors, auto way, auto count) {
    MapElementsOfRows<kFirst, kRows, strips.kValue, Map>(in, out, start + i, stride, factors.f, way, count);
  };
  const auto* factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  Factors of_channel;  // whose elements end before `end`
  int64_t end = 0;
  const auto next_channel = [&] {
    for (int k = 0; k < kCount; ++k) of_channel.f[k] = Broadcast16(factor[k * width]);
    ++factor;
    end += length;
  };
  // Those of elements from i on up to `past`, of which the last may belong to other channels than the first.
  const auto factors_of = [&](int64_t i, int64_t past) {
    Factors several = of_channel;
    while (end < past) {
      const First before{end - i};
      next_channel();
      for (int k = 0; k < kCount; ++k) several.f[k] = Blend(several.f[k], of_channel.f[k], before);
    }
    return several;
  };
  next_channel();
  int64_t i = 0;
  for (;; i += kLanes) {
    if constexpr (kOwnLoop) {
      const Factors same = of_channel;
      while (i + kLanes <= end) {
        if (kStrips > 1 && i % kLine == 0 && i + kLine <= end) {
          map(Constant<kStrips>{}, i, same, Way{}, All{});
          i += kLine;
        } else {
          map(Constant<1>{}, i, same, Way{}, All{});
          i += kLanes;
        }
      }
    }
    if (i + kLanes > run) break;
    map(Constant<1>{}, i, factors_of(i, i + kLanes), Way{}, All{});
  }
  if (i < run) map(Constant<1>{}, i, factors_of(i, run), Cached{}, First{run - i});
}

// In bytes. What is as far apart, or several times as far, has the same places in the nearest cache.
constexpr uintptr_t kPage = 4096;

// Whether the arrays that a map reads and writes have, but for less than `near` bytes, one place there for a
// row, and that of all other rows, or with kPage / 2 of every other one.
template <class T>
bool InOnePlace(const Block& block, const void* const* inputs, const void* output, uintptr_t page,
                uintptr_t near) {
  const auto is_near = [=](const void* input) {
    const uintptr_t past = reinterpret_cast<uintptr_t>(input) - reinterpret_cast<uintptr_t>(output);
    return (past + near) % kPage < 2 * near;
  };
  return block.row_stride * sizeof(T) % page == 0 && is_near(inputs[0]) && is_near(inputs[1]);
}

// How near does harm, and what is one place (measured, Zen 4, X, dY and dX each 0, 64, 128, 192 and 256 bytes
// later in their pages, 8x256x196 frozen, summed and then mapped beside both in one loop: 1.1, 1.3, 1.02,
// 0.84 and 0.78 times as fast).
constexpr uintptr_t kNear = 192, kSame = 1;

// Rows of at most so many elements are mapped in strips wherever they lie.
constexpr int64_t kShortRow = 8 * kLanes;

// From the last row, which the sums read last and the nearest cache still has. Strips are the faster way for
// short rows (measured, beside one row after the other: 8x512x49 1.06, 8x1024x20 1.16, 8x512x7 1.26 times as
// fast, 8x512x196 0.95), and past the cache for all that are not long (128x256x196 1.17), where they are
// whole cache lines.
template <class Way, class Map, class T>
void MapRowsBy(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const bool strips = Way::kWholeLines ? block.length < kLongRow && RowsAreWholeLines<Map>(block, out)
                                       : block.length <= kShortRow;
  const int64_t together = strips ? block.rows / kRowsOfGroup * kRowsOfGroup : 0;
  MapRowsBackTo<Way, Map, T>(together, block, inputs, factors, outputs);
  const auto map = [&](auto first, auto rows) {
    for (int64_t row = together - rows.kValue; row >= 0; row -= rows.kValue) {
      MapStrips<first.kValue, rows.kValue, Way, Map, T>(block, inputs, factors, outputs, row);
    }
  };
  if constexpr (kRowsInOnePlace < kRowsOfGroup) {
    constexpr int kRows = Way::kWholeLines ? 1 : kRowsInOnePlace;
    if (InOnePlace<T>(block, inputs, outputs[0], kPage, kNear)) {
      return map(Constant<kLoadsFirst<T>>{}, Constant<kRows>{});
    }
  }
  if constexpr (kLoadsFirst<T> && !Way::kWholeLines) {
    if (InOnePlace<T>(block, inputs, outputs[0], kPage / 2, kSame)) {
      return map(Constant<true>{}, Constant<kRowsOfGroup>{});
    }
  }
  map(Constant<false>{}, Constant<kRowsOfGroup>{});
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
