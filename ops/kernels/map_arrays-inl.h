// The arrays that a map reads and writes, and how it writes. Included by table-inl.h.

// Through the caches, or past them, where whole cache lines are written.
enum StorePolicy { kTemporal, kNonTemporal };

template <class T, class V>
BNGRAD_INLINE void Put(T* p, const V& v, StorePolicy policy, All all) {
  if (policy == kNonTemporal) {
    Stream(p, v);
  } else {
    Store(p, v, all);
  }
}
template <class T, class V>
BNGRAD_INLINE void Put(T* p, const V& v, StorePolicy, FirstN first) {
  Store(p, v, first);
}

// The arrays of a kernel call. Loops work on a copy of their own: a store may change any object that has an
// address, for all that the compiler knows.
template <class Map, class T>
class MapArrays {
 public:
  using Vector = typename TypeTraits<T>::Vector;
  using Factor = typename TypeTraits<T>::Arithmetic;
  static constexpr int kFactors = kFactorCounts[Map::kKind], kOutputs = kOutputCounts[Map::kKind];
  struct Factors {
    Vector f[kFactors];
  };

  BNGRAD_INLINE MapArrays(const Block& block, const void* const* inputs, const void* factors,
                          void* const* outputs)
      : in_{static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
            static_cast<const T*>(inputs[2])},
        out_{static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])},
        factors_(static_cast<const Factor*>(factors)),
        width_(block.width) {}

  // The factors of a channel; those of 16 columns; those before an element of one channel, and of a later one
  // from there on.
  BNGRAD_INLINE Factors OfChannel(int64_t channel) const {
    Factors r;
    for (int k = 0; k < kFactors; ++k) r.f[k] = Broadcast16(factors_[k * width_ + channel]);
    return r;
  }
  template <class Count>
  BNGRAD_INLINE Factors OfColumns(int64_t column, Count count) const {
    Factors r;
    for (int k = 0; k < kFactors; ++k) r.f[k] = Load(factors_ + k * width_ + column, count);
    return r;
  }
  static BNGRAD_INLINE void BlendIn(Factors& factors, const Factors& later, FirstN before) {
    for (int k = 0; k < kFactors; ++k) factors.f[k] = Blend(factors.f[k], later.f[k], before);
  }

  // Maps 16 elements from i on, or the first of them.
  template <class Count>
  BNGRAD_INLINE void MapAt(int64_t i, const Factors& factors, StorePolicy policy, Count count) const {
    MapRowsAt<1, 1>(i, 0, factors, policy, count);
  }

  // The same of rows side by side. One strip of each: all are loaded before one is written, for a load would
  // wait for a store to the same place in another page, and rows may be whole pages apart. Some strips of
  // each: they make a line, which is written as a whole.
  template <int kRows, int kStrips, class Count>
  BNGRAD_INLINE void MapRowsAt(int64_t i, int64_t stride, const Factors& factors, StorePolicy policy,
                               Count count) const {
    if constexpr (kStrips == 1) {
      Vector results[kRows][kOutputs];
      BNGRAD_UNROLL
      for (int r = 0; r < kRows; ++r) Map::Apply(in_, i + r * stride, factors.f, results[r], count);
      BNGRAD_UNROLL
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < kOutputs; ++k) {  // of two outputs, those that are wanted
          if (kOutputs == 1 || out_[k] != nullptr)
            Put(out_[k] + i + r * stride, results[r][k], policy, count);
        }
      }
    } else {
      BNGRAD_UNROLL
      for (int r = 0; r < kRows; ++r) {
        for (int s = 0; s < kStrips; ++s) MapAt(i + r * stride + s * kLanes, factors, policy, count);
      }
    }
  }

  // Elements from i on before the next cache line of the outputs; -1 if there is none that they share.
  int64_t ToLine(int64_t i) const { return ToCacheLine<Map>(out_, i); }
  bool RowsAreLines(const Block& block) const { return RowsAreWholeLines<Map>(block, out_); }

 private:
  const T* const in_[kMaxInputs];
  T* const out_[kMaxOutputs];
  const Factor* const factors_;
  const int64_t width_;
};

// Loops whose policy the compiler knows have one kind of store: body(policy) is made for each.
template <class Body>
BNGRAD_INLINE void ForPolicy(StorePolicy policy, const Body& body) {
  if (policy == kNonTemporal) {
    body(kNonTemporal);
  } else {
    body(kTemporal);
  }
}
