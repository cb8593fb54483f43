// The sweep that maps short rows, some together, and the choice between the two. Included by each <isa>.cc
// after that of rows, inside bngrad::<isa> and an unnamed namespace.

// Strips of 16 elements from one end of the rows to the other, whatever channels they belong to: factors are
// read once for all of the rows, and no row begins or ends in a part of a vector but the last strip.
template <int64_t kRows, class Way, class Map, class T>
void MapStrips(const Block& block, const void* const* inputs, const void* factors, void* const* outputs,
               int64_t row) {
  constexpr int kFactors = kFactorCounts[Map::kKind];
  using V = typename TypeTraits<T>::Vector;
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const int64_t length = block.length, stride = block.row_stride, run = block.channels * length;
  const int64_t start = row * stride, width = block.width;
  const auto map = [&](int64_t i, const V* f) {
    BNGRAD_UNROLL_4
    for (int r = 0; r < kRows; ++r) {
      MapElements<Map>(in, out, start + i + r * stride, f, Way{}, All{});
    }
  };
  const auto* factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  V f[kFactors];  // of the channel whose elements end before `end`
  int64_t end = 0;
  const auto next_channel = [&] {
    for (int k = 0; k < kFactors; ++k) f[k] = Broadcast16(factor[k * width]);
    ++factor;
    end += length;
  };
  next_channel();
  for (int64_t i = 0; i < run; i += kLanes) {
    for (; i + kLanes <= end; i += kLanes) map(i, f);
    if (i == run) return;
    // A strip with the channel's last elements, and the first ones of others.
    V of_several[kFactors];
    for (int k = 0; k < kFactors; ++k) of_several[k] = f[k];
    while (end < i + kLanes && end < run) {
      const First before{end - i};
      next_channel();
      for (int k = 0; k < kFactors; ++k) of_several[k] = Blend(of_several[k], f[k], before);
    }
    if (i + kLanes <= run) {
      map(i, of_several);
    } else {
      for (int r = 0; r < kRows; ++r) {
        MapElements<Map>(in, out, start + i + r * stride, of_several, Cached{}, First{run - i});
      }
    }
  }
}

// In bytes. What is as far apart, or several times, or so many less or more, has the same places in the
// nearest cache (measured, Zen 4, X, dY and dX each 0, 64, 128, 192 and 256 bytes later in their pages,
// 8x256x196 frozen, summed and then mapped beside both in one loop: 1.1, 1.3, 1.02, 0.84 and 0.78 times as
// fast).
constexpr uintptr_t kPage = 4096, kNear = 192;

// Whether the arrays that a map reads and writes have one place there for a row, and that of all other rows.
template <class T>
bool InOnePlace(const Block& block, const void* const* inputs, const void* output) {
  const auto near = [output](const void* input) {
    const uintptr_t past = reinterpret_cast<uintptr_t>(input) - reinterpret_cast<uintptr_t>(output);
    return (past + kNear) % kPage < 2 * kNear;
  };
  return block.row_stride * sizeof(T) % kPage == 0 && near(inputs[0]) && near(inputs[1]);
}

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
  constexpr bool kFewer = kRowsInOnePlace < kRowsOfGroup && !Way::kWholeLines;
  const bool fewer = kFewer && InOnePlace<T>(block, inputs, outputs[0]);
  for (int64_t row = together - kRowsOfGroup; row >= 0; row -= kRowsOfGroup) {
    if (fewer) {
      for (int64_t r = kRowsOfGroup - kRowsInOnePlace; r >= 0; r -= kRowsInOnePlace) {
        MapStrips<kRowsInOnePlace, Way, Map, T>(block, inputs, factors, outputs, row + r);
      }
    } else {
      MapStrips<kRowsOfGroup, Way, Map, T>(block, inputs, factors, outputs, row);
    }
  }
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
