// The sweep that maps rows one after the other. Included by table-inl.h.

// Maps a row from its begin to its end, as many elements at a time as it is asked for. Channels of a row lie
// together, so that whole cache lines are written wherever one ends within them.
template <class Map, class T>
class RowMap {
 public:
  static constexpr bool kMaps = true;

  BNGRAD_INLINE RowMap(const Block& block, const MapArrays<Map, T>& arrays, StorePolicy policy)
      : arrays_(arrays),
        policy_(policy),
        row_stride_(block.row_stride),
        length_(block.length),
        run_(block.channels * block.length) {}

  // Goes to a row, and maps the elements before its first cache line, if whole ones are to be written.
  BNGRAD_INLINE void Begin(int64_t row) {
    start_ = row * row_stride_;
    i_ = end_ = channel_ = 0;
    NextChannel();
    if (policy_ == kTemporal) return;
    // 16 lanes may be half a cache line.
    const int64_t head = arrays_.ToLine(start_) % kLanes;
    if (head > 0) MapSome(head < run_ ? head : run_);
  }

  // The next elements of the row; `count` is a multiple of 16, of which those past its end are left out, and
  // those that make no 16.
  BNGRAD_INLINE void Next(int64_t count) {
    const int64_t until = count < run_ - i_ ? i_ + count : run_;
    while (i_ + kLanes <= until) {
      MapChannel(end_ < until ? end_ : until);
      if (i_ + kLanes <= until) Map16(i_ + kLanes, All{});
    }
  }

  // All that is left of the row.
  BNGRAD_INLINE void Finish() {
    Next(run_);
    if (i_ < run_) MapSome(run_);
  }

 private:
  using Arrays = MapArrays<Map, T>;

  BNGRAD_INLINE void NextChannel() {
    factors_ = arrays_.OfChannel(channel_++);
    end_ += length_;
  }

  // Elements of one channel.
  BNGRAD_INLINE void MapChannel(int64_t until) {
    const Arrays arrays = arrays_;
    const typename Arrays::Factors factors = factors_;
    const int64_t start = start_;
    int64_t i = i_;
    ForPolicy(policy_, [&](StorePolicy policy) BNGRAD_INLINE_LAMBDA {
      for (; i + kLanes <= until; i += kLanes) arrays.MapAt(start + i, factors, policy, All{});
    });
    i_ = i;
  }

  // 16 elements, or fewer, of which the last may belong to a later channel than the first.
  template <class Count>
  BNGRAD_INLINE void Map16(int64_t until, Count count) {
    typename Arrays::Factors factors = factors_;
    while (end_ < until) {
      const FirstN before{end_ - i_};
      NextChannel();
      Arrays::BlendIn(factors, factors_, before);
    }
    arrays_.MapAt(start_ + i_, factors, policy_, count);
    i_ = until;
  }
  BNGRAD_INLINE void MapSome(int64_t until) {
    if (until - i_ == kLanes) {
      Map16(until, All{});
    } else {
      Map16(until, FirstN{until - i_});
    }
  }

  const Arrays arrays_;
  const StorePolicy policy_;
  const int64_t row_stride_, length_, run_;
  typename Arrays::Factors factors_ = {};  // of the channel at hand
  int64_t channel_ = 0;                    // the next one
  int64_t start_ = 0;                      // of the row
  int64_t i_ = 0, end_ = 0;                // in the row: the next element, and the end of its channel
};

// True if a block's rows are to be written past the caches, and can be: shorter runs have as many partial
// cache lines as whole ones.
template <class Map, class T>
StorePolicy PolicyOfRows(const Block& block, const MapArrays<Map, T>& arrays) {
  const bool lines = block.channels * block.length >= kLongRow && arrays.ToLine(0) >= 0;
  return block.stream && lines ? kNonTemporal : kTemporal;
}

// Rows from the last to `first`.
template <class Map, class T>
void MapRowsBackTo(int64_t first, const Block& block, const MapArrays<Map, T>& arrays, StorePolicy policy) {
  RowMap<Map, T> map(block, arrays, policy);
  for (int64_t row = block.rows - 1; row >= first; --row) {
    map.Begin(row);
    map.Finish();
  }
}
