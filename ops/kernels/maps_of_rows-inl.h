// The sweep that maps rows one after the other. Included by each <isa>.cc after the formulas, inside
// bngrad::<isa> and an unnamed namespace.

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
      MapSame(same);
      if (i_ + kLanes <= until) MapSeveral(Way{}, i_ + kLanes);
    }
  }

  // As many are mapped as are summed.
  template <class Sum>
  void InTurns(int64_t, int64_t, const int64_t& i, int64_t end, const Sum& sum) {
    while (i + kLanes <= end) {
      sum(end - i < kTurn ? end : i + kTurn, [](int64_t) {});
      Next(kTurn);
    }
  }

  void Last(int64_t, int64_t, First) const {}

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

  // Elements of one channel. By locals, for all that the compiler knows a store may change this object
  // (measured, beside its members: 32x512x784 1.07 to 1.10, 32x256x784 1.13 to 1.17, 32x64x12544 0.98
  // to 1.02, 16 bits 1.05 times as fast).
  void MapSame(int64_t until) {
    const T* const in[] = {in_[0], in_[1], in_[2]};
    T* const out[] = {out_[0], out_[1]};
    V f[kFactors];
    for (int k = 0; k < kFactors; ++k) f[k] = f_[k];
    const int64_t start = start_;
    int64_t i = i_;
    for (; i + kLanes <= until; i += kLanes) MapElements<Map>(in, out, start + i, f, Way{}, All{});
    i_ = i;
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

// Whether a block's rows are to be written past the cache, and can be: shorter runs have as many partial
// cache lines as whole ones.
template <class Map, class T>
bool Streams(const Block& block, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  return block.stream && block.channels * block.length >= kLongRow && ToCacheLine<Map>(out, 0) >= 0;
}

// Rows from the last to `first`.
template <class Way, class Map, class T>
BNGRAD_WHOLE void MapRowsBackTo(int64_t first, const Block& block, const void* const* inputs,
                                const void* factors, void* const* outputs) {
  RowMap<Map, T, Way> map(block, inputs, factors, outputs);
  for (int64_t row = block.rows - 1; row >= first; --row) {
    map.Begin(row);
    map.Finish();
  }
}
