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

// How results are written: through the cache, or past it in whole lines.
struct Cached {
  static constexpr bool kWholeLines = false;
  template <class T, class V, class Count>
  static void Put(T* p, const V& v, Count count) {
    Store(p, v, count);
  }
};
struct Streamed {
  static constexpr bool kWholeLines = true;
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

// Maps a row from its begin to its end, as many elements at a time as it is asked for. Channels of a row lie
// together, so that whole cache lines are written wherever one ends within them.
template <class Map, class T, class Way>
class RowMap {
 public:
  RowMap(const Block& block, const void* const* inputs, const void* factors, void* const* outputs)
      : in_{static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
            static_cast<const T*>(inputs[2])},
        out_{static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])},
        factors_(static_cast<const Factor*>(factors)),
        row_stride_(block.row_stride),
        length_(block.length),
        run_(block.channels * block.length),
        width_(block.width) {}

  // Goes to a row, and maps the elements before its first cache line, if whole ones are to be written.
  void Begin(int64_t row) {
    start_ = row * row_stride_;
    i_ = end_ = 0;
    channel_ = factors_;
    NextChannel();
    if (!Way::kWholeLines) return;
    // 16 lanes may be half a cache line.
    const int64_t head = ToCacheLine<Map>(out_, start_) % kLanes;
    if (head > 0) MapSeveral(Cached{}, head < run_ ? head : run_);
  }

  // The next elements of the row; `count` is a multiple of 16, of which those past its end are left out, and
  // those that make no 16.
  void Next(int64_t count) {
    const int64_t until = count < run_ - i_ ? i_ + count : run_;
    while (i_ + kLanes <= until) {
      const int64_t same = end_ < until ? end_ : until;
      for (; i_ + kLanes <= same; i_ += kLanes) MapElements<Map>(in_, out_, start_ + i_, f_, Way{}, All{});
      if (i_ + kLanes <= until) MapSeveral(Way{}, i_ + kLanes);
    }
  }

  // While elements from i on are summed, by calls of sum(end) that move i on, as many are mapped. Turns are
  // so short that reading and writing overlap: from 512 elements on they do not (measured).
  template <class Sum>
  void InTurns(const int64_t& i, int64_t end, const Sum& sum) {
    constexpr int64_t kTurn = 8 * kLanes;
    while (i + kLanes <= end) {
      sum(end - i < kTurn ? end : i + kTurn);
      Next(kTurn);
    }
  }

  // All that is left of the row.
  void Finish() {
    Next(run_);
    if (i_ < run_) MapSeveral(Cached{}, run_);
  }

 private:
  using V = typename TypeTraits<T>::Vector;
  using Factor = typename TypeTraits<T>::Arithmetic;
  static constexpr int kFactors = kFactorCounts[Map::kKind], kOutputs = kOutputCounts[Map::kKind];

  void NextChannel() {
    for (int k = 0; k < kFactors; ++k) f_[k] = Broadcast16(channel_[k * width_]);
    ++channel_;
    end_ += length_;
  }

  // At most 16 elements, of which the last may belong to a later channel than the first.
  template <class Put>
  void MapSeveral(Put put, int64_t until) {
    if (until - i_ == kLanes) {
      MapSeveral(put, until, All{});
    } else {
      MapSeveral(Cached{}, until, First{until - i_});
    }
  }
  template <class Put, class Count>
  void MapSeveral(Put put, int64_t until, Count count) {
    V results[kOutputs], later[kOutputs];
    Map::Apply(in_, start_ + i_, f_, results, count);
    while (end_ < until) {
      const First before{end_ - i_};
      NextChannel();
      Map::Apply(in_, start_ + i_, f_, later, count);
      for (int k = 0; k < kOutputs; ++k) results[k] = Blend(results[k], later[k], before);
    }
    PutElements<Map>(out_, start_ + i_, results, put, count);
    i_ = until;
  }

  const T* const in_[kMaxInputs];
  T* const out_[kMaxOutputs];
  const Factor* const factors_;
  const int64_t row_stride_, length_, run_, width_;
  const Factor* channel_ = nullptr;  // of the next channel
  int64_t start_ = 0;                // of the row
  int64_t i_ = 0, end_ = 0;          // in the row: the next element, and the end of its channel
  V f_[kFactors];
};

// Whether a block's rows are to be written past the cache, and can be.
template <class Map, class T>
bool Streams(const Block& block, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  return block.stream && block.channels * block.length >= kMinStreamed && ToCacheLine<Map>(out, 0) >= 0;
}

template <class Way, class Map, class T>
void MapRowsBy(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  RowMap<Map, T, Way> map(block, inputs, factors, outputs);
  // From the last row, which the sums read last and the nearest cache still has.
  for (int64_t row = block.rows - 1; row >= 0; --row) {
    map.Begin(row);
    map.Finish();
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

// Row after row, so that memory is read and written from one end to the other; the factors come from cache.
template <class Map, class T>
void MapColumns(const Block& block, const void* const* inputs, const void* factors, void* const* outputs) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const auto* const factor = static_cast<const typename TypeTraits<T>::Arithmetic*>(factors);
  // In registers: for all that the compiler knows, a store may change the block.
  const int64_t rows = block.rows, row_stride = block.row_stride, length = block.length, width = block.width;
  // Only if every row begins at a cache line.
  const bool stream =
      block.stream && ToCacheLine<Map>(out, 0) == 0 && row_stride * sizeof(T) % kCacheLine == 0;
  const auto map = [&](int64_t row, int64_t column, auto way, auto count) {
    constexpr int kCount = kFactorCounts[Map::kKind];
    typename TypeTraits<T>::Vector f[kCount];
    for (int k = 0; k < kCount; ++k) f[k] = Load(factor + k * width + column, count);
    MapElements<Map>(in, out, row * row_stride + column, f, way, count);
  };
  for (int64_t row = 0; row < rows; ++row) {
    int64_t i = 0;
    if (stream) {
      for (; i + kLanes <= length; i += kLanes) map(row, i, Streamed{}, All{});
    } else {
      for (; i + kLanes <= length; i += kLanes) map(row, i, Cached{}, All{});
    }
    if (i < length) map(row, i, Cached{}, First{length - i});
  }
  if (stream) Fence();
}
