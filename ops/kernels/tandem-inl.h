// The sweep that sums and maps in one loop, one tile or two. Included by each <isa>.cc after the two, inside
// bngrad::<isa> and an unnamed namespace. Sums read from memory and maps write past the caches: in one loop
// the two overlap (measured, 32x64x112x112: 1.07 to 1.2 times as fast). In the caches, what is mapped is in
// the nearest one still (frozen, beside blocks of 2048 elements: 8x64x3136 1.1, 8x256x196 1.3, 1568x256 1.1,
// 25088x64 1.3). Past them, rows that are read are left only once (frozen, beside such blocks: 25088x128 1.4,
// 128x1024x16 1.5).

// Maps the elements that have just been summed, or those in their place of another tile.
template <class Map, class T, class Way>
class MapBeside {
 public:
  MapBeside(const Block& block, const void* const* inputs, const void* factors, void* const* outputs)
      : in_{static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
            static_cast<const T*>(inputs[2])},
        out_{static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])},
        factors_(static_cast<const typename TypeTraits<T>::Arithmetic*>(factors)),
        width_(block.width) {}

  static constexpr bool kMaps = true;
  static constexpr int kStrips = kStripsOfLine<T>;

  void Begin(int64_t) const {}
  template <class Sum>
  void InTurns(int64_t channel, int64_t start, const int64_t& i, int64_t end, const Sum& sum) const {
    const Factors factors = FactorsOf(channel);
    // In registers, as in RowMap (measured: frozen 8x64x3136 1.0 to 1.05, 8x128x784 1.04 to 1.05).
    const MapBeside here = *this;
    while (i + kLanes <= end) {
      int64_t mapped = i;
      sum(end - i < kTurn ? end : i + kTurn);
      for (const int64_t summed = i; mapped < summed; mapped += kLanes) {
        here.MapAt(start + mapped, factors, All{});
      }
    }
  }
  void Last(int64_t channel, int64_t at, First count) const { MapAt(at, FactorsOf(channel), count); }
  void Finish() const {}

  struct Factors {
    typename TypeTraits<T>::Vector f[kFactorCounts[Map::kKind]];
  };
  Factors FactorsOf(int64_t channel) const {
    Factors factors;
    for (int k = 0; k < kFactors; ++k) factors.f[k] = Broadcast16(factors_[k * width_ + channel]);
    return factors;
  }
  void BlendIn(Factors& factors, int64_t channel, First before) const {
    const Factors later = FactorsOf(channel);
    for (int k = 0; k < kFactors; ++k) factors.f[k] = Blend(factors.f[k], later.f[k], before);
  }
  template <class Count>
  Factors FactorsFrom(int64_t channel, Count count) const {
    Factors factors;
    for (int k = 0; k < kFactors; ++k) factors.f[k] = Load(factors_ + k * width_ + channel, count);
    return factors;
  }
  template <class Count>
  void MapAt(int64_t at, const Factors& factors, Count count) const {
    MapRowsAt<1, 1>(at, 0, factors, count);
  }
  template <int kRows, int kStrips>
  void MapRowsAt(int64_t at, int64_t stride, const Factors& factors, All all) const {
    constexpr bool kFirst = kLoadsFirst<T> && kRows <= kRowsOfGroup;
    MapElementsOfRows<kFirst, kRows, kStrips, Map>(in_, out_, at, stride, factors.f, Way{}, all);
  }
  template <int kRows, int kStrips>
  void MapRowsAt(int64_t at, int64_t stride, const Factors& factors, First count) const {
    MapElementsOfRows<false, kRows, kStrips, Map>(in_, out_, at, stride, factors.f, Cached{}, count);
  }

 private:
  static constexpr int kFactors = kFactorCounts[Map::kKind];

  // All of them constant: with a state of its own, as RowMap has, it is 0.9 times as fast (measured).
  const T* const in_[kMaxInputs];
  T* const out_[kMaxOutputs];
  const typename TypeTraits<T>::Arithmetic* const factors_;
  const int64_t width_;
};

// Long rows, in the order in which SumRows sums the same block. Short ones are summed, and then mapped.
template <class Sum, class Map, class T>
void SumAndMapLongRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                       const void* const* map_inputs, const void* factors, void* const* outputs) {
  if (InStrips(block)) {
    SumRows<Sum, T>(block, inputs, center, sums);
    MapRows<Map, T>(block, map_inputs, factors, outputs);
  } else if (Streams<Map, T>(block, outputs)) {
    SumRows<Sum, T>(block, inputs, center, sums,
                    RowMap<Map, T, Streamed>(block, map_inputs, factors, outputs));
    Fence();
  } else {
    SumRows<Sum, T>(block, inputs, center, sums,
                    MapBeside<Map, T, Cached>(block, map_inputs, factors, outputs));
  }
}

// Whether short rows are better mapped after they have been summed: where eight of them, and their arrays,
// have one place in the nearest cache, or any so near that loads wait for stores of the strip before.
template <class T>
bool BetterNotBeside(const Block& block, const void* const* inputs, const void* output) {
  if constexpr (kRowsInOnePlace == kRowsOfGroup) return false;
  if (!InOnePlace<T>(block, inputs, output, kPage, kNear)) return false;
  const bool four = kLoadsFirst<T> && block.length > kShortRow;
  return !four || !InOnePlace<T>(block, inputs, output, kPage, kSame);
}

// Rows of any length: short ones are mapped strip by strip.
template <class Sum, class Map, class T>
void SumAndMapRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                   const void* const* map_inputs, const void* factors, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const bool not_beside =
      block.stream ? !RowsAreWholeLines<Map>(block, out) : BetterNotBeside<T>(block, map_inputs, outputs[0]);
  if (!InStrips(block) || AsColumns(block) || not_beside) {
    SumAndMapLongRows<Sum, Map, T>(block, inputs, center, sums, map_inputs, factors, outputs);
  } else if (block.stream) {
    SumShortRows<true, Sum, T>(block, inputs, center, sums,
                               MapBeside<Map, T, Streamed>(block, map_inputs, factors, outputs));
    Fence();
  } else {
    SumShortRows<false, Sum, T>(block, inputs, center, sums,
                                MapBeside<Map, T, Cached>(block, map_inputs, factors, outputs));
  }
}

// In the order in which SumColumns sums the same block.
template <class Sum, class Map, class T>
void SumAndMapColumns(const Block& block, const void* const* inputs, const double* center, double* sums,
                      const void* const* map_inputs, const void* factors, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  if (block.stream && RowsAreWholeLines<Map>(block, out)) {
    SumColumns<Sum, T>(block, inputs, center, sums,
                       MapBeside<Map, T, Streamed>(block, map_inputs, factors, outputs));
    Fence();
  } else {
    SumColumns<Sum, T>(block, inputs, center, sums,
                       MapBeside<Map, T, Cached>(block, map_inputs, factors, outputs));
  }
}
