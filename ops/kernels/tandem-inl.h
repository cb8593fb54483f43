// The sweep that sums one tile and maps another. Included by each <isa>.cc after the two, inside
// bngrad::<isa> and an unnamed namespace. Sums read from memory and maps write past the caches: in one loop
// the two overlap (measured, 32x64x112x112: 1.07 to 1.2 times as fast).

// Through the caches: maps the elements that have just been summed, or those in their place of another tile.
template <class Map, class T>
class ChannelMap {
 public:
  ChannelMap(const Block& block, const void* const* inputs, const void* factors, void* const* outputs)
      : in_{static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
            static_cast<const T*>(inputs[2])},
        out_{static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])},
        factors_(static_cast<const Factor*>(factors)),
        length_(block.length),
        width_(block.width) {}

  void Begin(int64_t) const {}
  template <class Sum>
  void InTurns(int64_t channel, int64_t start, const int64_t& i, int64_t end, const Sum& sum) const {
    V f[kFactors];
    LoadFactors(channel, f);
    while (i + kLanes <= end) {
      int64_t mapped = i;
      sum(end - i < kTurn ? end : i + kTurn);
      for (; mapped < i; mapped += kLanes) {
        MapElements<Map>(in_, out_, start + mapped, f, Cached{}, All{});
      }
    }
  }
  void Last(int64_t channel, int64_t start, int64_t i) const {
    V f[kFactors];
    LoadFactors(channel, f);
    MapElements<Map>(in_, out_, start + i, f, Cached{}, First{length_ - i});
  }
  void Finish() const {}

 private:
  using V = typename TypeTraits<T>::Vector;
  using Factor = typename TypeTraits<T>::Arithmetic;
  static constexpr int kFactors = kFactorCounts[Map::kKind];

  void LoadFactors(int64_t channel, V* f) const {
    for (int k = 0; k < kFactors; ++k) f[k] = Broadcast16(factors_[k * width_ + channel]);
  }

  // All of them constant: with a state of its own, as RowMap has, it is 0.9 times as fast (measured).
  const T* const in_[kMaxInputs];
  T* const out_[kMaxOutputs];
  const Factor* const factors_;
  const int64_t length_, width_;
};

template <class Sum, class Map, class T>
void SumAndMapRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                   const void* const* map_inputs, const void* factors, void* const* outputs) {
  if (Streams<Map, T>(block, outputs)) {
    RowMap<Map, T, Streamed> map(block, map_inputs, factors, outputs);
    SumRows<Sum, T>(block, inputs, center, sums, map);
    Fence();
  } else {
    const ChannelMap<Map, T> map(block, map_inputs, factors, outputs);
    SumRows<Sum, T>(block, inputs, center, sums, map);
  }
}
