// The sweeps that write an element for each element. Included by each <isa>.cc after its verbs, inside
// bngrad::<isa> and an unnamed namespace. The mean is subtracted before anything is multiplied: folding these
// formulas to a*dY + b*X + c would lose the digits that X and mean share.

struct MapForward {
  static constexpr int kKind = kMapForward;
  template <class T, class V, class Count>
  static V Apply(const T* const* in, int64_t i, const V* f, Count count) {
    const V d = Sub16(Sub16(Load(in[0] + i, count), f[0]), f[1]);
    return Add16(Mul16(d, f[2]), f[3]);
  }
};

struct MapGradTraining {
  static constexpr int kKind = kMapGradTraining;
  template <class T, class V, class Count>
  static V Apply(const T* const* in, int64_t i, const V* f, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_dy = Sub16(Load(in[1] + i, count), f[2]);
    return Mul16(f[1], Sub16(centered_dy, Add16(Mul16(d, f[4]), f[3])));
  }
};

struct MapGradFrozen {
  static constexpr int kKind = kMapGradFrozen;
  template <class T, class V, class Count>
  static V Apply(const T* const* in, int64_t i, const V* f, Count count) {
    return Mul16(f[0], Load(in[1] + i, count));
  }
};

// Elements before the next cache line boundary; -1 if none comes, because p is not aligned for its type.
template <class T>
int64_t ToCacheLine(const T* p) {
  const uintptr_t past = reinterpret_cast<uintptr_t>(p) % kCacheLine;
  if (past % sizeof(T) != 0) return -1;
  return static_cast<int64_t>((kCacheLine - past) % kCacheLine / sizeof(T));
}

template <class Map, class T>
void MapRows(const Block& block, const void* const* inputs, const void* factors, void* output) {
  using Arithmetic = typename TypeTraits<T>::Arithmetic;
  using V = typename TypeTraits<T>::Vector;
  constexpr int kCount = kFactorCounts[Map::kKind];
  const T* const in[2] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1])};
  const Arithmetic* const factor = static_cast<const Arithmetic*>(factors);
  T* const out = static_cast<T*>(output);
  // From the last row, which the sums read last and the nearest cache still has.
  for (int64_t row = block.rows - 1; row >= 0; --row) {
    for (int64_t channel = 0; channel < block.channels; ++channel) {
      const int64_t start = row * block.row_stride + channel * block.channel_stride;
      V f[kCount];
      for (int k = 0; k < kCount; ++k) f[k] = Broadcast16(factor[k * block.width + channel]);
      int64_t i = 0;
      if (block.stream && block.length >= kMinStreamed) {
        const First head{ToCacheLine(out + start)};
        if (head.n > 0) Store(out + start, Map::Apply(in, start, f, head), head);
        if (head.n >= 0) {
          for (i = head.n; i + kLanes <= block.length; i += kLanes) {
            Stream(out + start + i, Map::Apply(in, start + i, f, All{}));
          }
        }
      }
      for (; i + kLanes <= block.length; i += kLanes) {
        Store(out + start + i, Map::Apply(in, start + i, f, All{}), All{});
      }
      if (i < block.length) {
        const First rest{block.length - i};
        Store(out + start + i, Map::Apply(in, start + i, f, rest), rest);
      }
    }
  }
  if (block.stream) Fence();
}

// Row after row, so that memory is read and written from one end to the other; the factors come from cache.
template <class Map, class T>
void MapColumns(const Block& block, const void* const* inputs, const void* factors, void* output) {
  const T* const in[2] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1])};
  const auto* const factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  T* const out = static_cast<T*>(output);
  // Only if every row begins at a cache line.
  const bool stream = block.stream && ToCacheLine(out) == 0 && block.row_stride * sizeof(T) % kCacheLine == 0;
  const auto value = [&](int64_t row, int64_t column, auto count) {
    constexpr int kCount = kFactorCounts[Map::kKind];
    typename TypeTraits<T>::Vector f[kCount];
    for (int k = 0; k < kCount; ++k) f[k] = Load(factor + k * block.width + column, count);
    return Map::Apply(in, row * block.row_stride + column, f, count);
  };
  for (int64_t row = 0; row < block.rows; ++row) {
    T* const out_row = out + row * block.row_stride;
    int64_t i = 0;
    if (stream) {
      for (; i + kLanes <= block.length; i += kLanes) Stream(out_row + i, value(row, i, All{}));
    } else {
      for (; i + kLanes <= block.length; i += kLanes) Store(out_row + i, value(row, i, All{}), All{});
    }
    if (i < block.length) {
      const First rest{block.length - i};
      Store(out_row + i, value(row, i, rest), rest);
    }
  }
  if (stream) Fence();
}
