// The sweeps that write elements for each element. Included by each <isa>.cc after its verbs, inside
// bngrad::<isa> and an unnamed namespace. The mean is subtracted before anything is multiplied: folding these
// formulas to a*dY + b*X + c would lose the digits that X and mean share.

struct MapForward {
  static constexpr int kKind = kMapForward;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Sub16(Load(in[0] + i, count), f[0]), f[1]);
    out[0] = Add16(Mul16(d, f[2]), f[3]);
  }
};

template <class Dy>
struct MapGradTraining {
  static constexpr int kKind = Dy::kRelu ? kMapReluGradTraining : kMapGradTraining;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_dy = Sub16(Dy::Loaded(in, i, count), f[2]);
    out[0] = Mul16(f[1], Sub16(centered_dy, Add16(Mul16(d, f[4]), f[3])));
  }
};

template <class Dy>
struct MapGradFrozen {
  static constexpr int kKind = Dy::kRelu ? kMapReluGradFrozen : kMapGradFrozen;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    out[0] = Mul16(f[0], Dy::Loaded(in, i, count));
  }
};

struct MapGradGradTraining {
  static constexpr int kKind = kMapGradGradTraining;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_ddx = Sub16(Load(in[2] + i, count), f[4]);
    const V centered_dy = Sub16(Load(in[1] + i, count), f[5]);
    out[0] = Add16(Mul16(f[1], centered_ddx), Add16(Mul16(d, f[2]), f[3]));
    out[1] = Sub16(Sub16(Mul16(f[2], centered_dy), Mul16(f[6], centered_ddx)), Add16(Mul16(d, f[7]), f[8]));
  }
};

struct MapGradGradFrozen {
  static constexpr int kKind = kMapGradGradFrozen;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    out[0] = Add16(Mul16(f[1], Load(in[2] + i, count)), Add16(Mul16(d, f[2]), f[3]));
    out[1] = Mul16(f[2], Load(in[1] + i, count));
  }
};

// How results are written: through the cache, or past it.
struct Cached {
  template <class T, class V, class Count>
  static void Put(T* p, const V& v, Count count) {
    Store(p, v, count);
  }
};
struct Streamed {
  template <class T, class V>
  static void Put(T* p, const V& v, All) {
    Stream(p, v);
  }
};

// Elements from i on of each output that is wanted; a map with one output has it wanted.
template <class Map, class Way, class T, class V, class Count>
void PutElements(T* const* out, int64_t i, const V* results, Way, Count count) {
  constexpr int kOutputs = kOutputCounts[Map::kKind];
  for (int k = 0; k < kOutputs; ++k) {
    if (kOutputs == 1 || out[k] != nullptr) Way::Put(out[k] + i, results[k], count);
  }
}
template <class Map, class Way, class T, class V, class Count>
void MapElements(const T* const* in, T* const* out, int64_t i, const V* f, Way way, Count count) {
  V results[kOutputCounts[Map::kKind]];
  Map::Apply(in, i, f, results, count);
  PutElements<Map>(out, i, results, way, count);
}

// Elements before the next cache line boundary; -1 if none comes, because p is not aligned for its type.
template <class T>
int64_t ToCacheLine(const T* p) {
  const uintptr_t past = reinterpret_cast<uintptr_t>(p) % kCacheLine;
  if (past % sizeof(T) != 0) return -1;
  return static_cast<int64_t>((kCacheLine - past) % kCacheLine / sizeof(T));
}

// The same for all outputs that are wanted; -1 if they differ.
template <class Map, class T>
int64_t ToCacheLine(T* const* out, int64_t i) {
  constexpr bool kTwo = kOutputCounts[Map::kKind] == 2;
  const int64_t first = ToCacheLine((kTwo && out[0] == nullptr ? out[1] : out[0]) + i);
  return kTwo && out[1] != nullptr && ToCacheLine(out[1] + i) != first ? -1 : first;
}

// Channels of a row lie together, so that whole cache lines are written wherever one ends within them. The
// elements before `head` are those before the first cache line.
template <class Map, class T, class Way>
void MapRun(const Block& block, const T* const* in, const void* factors, T* const* out, int64_t start,
            Way way, int64_t head) {
  using V = typename TypeTraits<T>::Vector;
  constexpr int kCount = kFactorCounts[Map::kKind], kOutputs = kOutputCounts[Map::kKind];
  const auto* factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  const int64_t run = block.channels * block.length;
  int64_t i = 0, end = 0;  // of the channel
  V f[kCount];
  const auto next_channel = [&] {
    for (int k = 0; k < kCount; ++k) f[k] = Broadcast16(factor[k * block.width]);
    ++factor;
    end += block.length;
  };
  // Elements of which the last may belong to a later channel than the first.
  const auto map_several = [&](auto put, int64_t until, auto count) {
    V results[kOutputs], later[kOutputs];
    Map::Apply(in, start + i, f, results, count);
    while (end < until) {
      const First before{end - i};
      next_channel();
      Map::Apply(in, start + i, f, later, count);
      for (int k = 0; k < kOutputs; ++k) results[k] = Blend(results[k], later[k], before);
    }
    PutElements<Map>(out, start + i, results, put, count);
    i = until;
  };
  next_channel();
  if (head > run) head = run;
  if (head > 0) map_several(Cached{}, head, First{head});
  while (i < run) {
    for (; i + kLanes <= end; i += kLanes) MapElements<Map>(in, out, start + i, f, way, All{});
    if (i + kLanes <= run) {
      map_several(way, i + kLanes, All{});
    } else if (i < run) {
      map_several(Cached{}, run, First{run - i});
    }
  }
}

template <class Map, class T>
void MapRows(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const bool stream = block.stream && block.channels * block.length >= kMinStreamed;
  // From the last row, which the sums read last and the nearest cache still has.
  for (int64_t row = block.rows - 1; row >= 0; --row) {
    const int64_t start = row * block.row_stride;
    // 16 lanes may be half a cache line.
    const int64_t head = stream ? ToCacheLine<Map>(out, start) : -1;
    if (head >= 0) {
      MapRun<Map>(block, in, factors, out, start, Streamed{}, head % kLanes);
    } else {
      MapRun<Map>(block, in, factors, out, start, Cached{}, 0);
    }
  }
  if (stream) Fence();
}

// Row after row, so that memory is read and written from one end to the other; the factors come from cache.
template <class Map, class T>
void MapColumns(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const auto* const factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  // Only if every row begins at a cache line.
  const bool stream =
      block.stream && ToCacheLine<Map>(out, 0) == 0 && block.row_stride * sizeof(T) % kCacheLine == 0;
  const auto map = [&](int64_t row, int64_t column, auto way, auto count) {
    constexpr int kCount = kFactorCounts[Map::kKind];
    typename TypeTraits<T>::Vector f[kCount];
    for (int k = 0; k < kCount; ++k) f[k] = Load(factor + k * block.width + column, count);
    MapElements<Map>(in, out, row * block.row_stride + column, f, way, count);
  };
  for (int64_t row = 0; row < block.rows; ++row) {
    int64_t i = 0;
    if (stream) {
      for (; i + kLanes <= block.length; i += kLanes) map(row, i, Streamed{}, All{});
    } else {
      for (; i + kLanes <= block.length; i += kLanes) map(row, i, Cached{}, All{});
    }
    if (i < block.length) map(row, i, Cached{}, First{block.length - i});
  }
  if (stream) Fence();
}
