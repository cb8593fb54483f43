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
  static constexpr int kHeld = 0;
  static constexpr bool kTogether = false, kBack = false;

  void Begin(int64_t) const {}
  template <class Sum>
  void InTurns(int64_t channel, int64_t, const int64_t&, int64_t end, const Sum& sum) const {
    const Factors factors = FactorsOf(channel);
    // In registers, as in RowMap (measured: frozen 8x64x3136 1.0 to 1.05, 8x128x784 1.04 to 1.05). A strip at
    // a time, beside eight: 1.03 to 1.1, 1.04 to 1.07.
    const MapBeside here = *this;
    sum(end, [&](int64_t at) { here.MapAt(at, factors, All{}); });
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
    constexpr bool kFirst = kLoadsFirst<T, kRows>;
    MapElementsOfRows<kFirst, kRows, kStrips, Map>(in_, out_, at, stride, factors.f, Way{}, all);
  }
  template <int kRows, int kStrips>
  void MapRowsAt(int64_t at, int64_t stride, const Factors& factors, First count) const {
    MapElementsOfRows<false, kRows, kStrips, Map>(in_, out_, at, stride, factors.f, Cached{}, count);
  }
  template <int kRows>
  struct Waiting {};

 protected:
  static constexpr int kFactors = kFactorCounts[Map::kKind];

  // All of them constant: with a state of its own, as RowMap has, it is 0.9 times as fast (measured).
  const T* const in_[kMaxInputs];
  T* const out_[kMaxOutputs];
  const typename TypeTraits<T>::Arithmetic* const factors_;
  const int64_t width_;
};

// The same, but what strips become waits in registers until some later ones have been summed: loads wait for
// a store before them that has the same place in another page (measured, long rows, each array 64 bytes later
// in its page than the one before: frozen 8x128x784 1.13 to 1.17, 8x64x3136 1.06 to 1.13 times as fast; at
// other places 0.97 to 1.0). Of short rows, what is held at the end of a channel waits on in memory, for
// there are other sums in its registers, until as many strips of the next channel have been summed (measured,
// beside writing it at once: 8x256x196, 8x512x196, 8x1024x196, 32x256x196 1.13 to 1.2 times as fast at 64 and
// 128 bytes, 1.0 to 1.05 at 0).
template <class Map, class T>
class MapHeld : public MapBeside<Map, T, Cached> {
  using Base = MapBeside<Map, T, Cached>;
  using V = typename TypeTraits<T>::Vector;
  static constexpr int kOutputs = kOutputCounts[Map::kKind];

 public:
  using Factors = typename Base::Factors;
  using Base::Base;
  static constexpr int kStrips = 1;
  static constexpr int kHeld = static_cast<int>(4 * kCacheLine / sizeof(V)) / kOutputs;

  template <int kRows>
  struct Strip {
    V v[kRows][kOutputs];
  };
  template <int kRows>
  void Apply(int64_t at, int64_t stride, const Factors& factors, Strip<kRows>& to) const {
    BNGRAD_UNROLL_8
    for (int r = 0; r < kRows; ++r) Map::Apply(this->in_, at + r * stride, factors.f, to.v[r], All{});
  }
  template <int kRows>
  void Put(int64_t at, int64_t stride, const Strip<kRows>& strip) const {
    BNGRAD_UNROLL_8
    for (int r = 0; r < kRows; ++r)
      PutElements<Map>(this->out_, at + r * stride, strip.v[r], Cached{}, All{});
  }

  // Those that are held when the last strip of a channel has been summed, and that one.
  template <int kRows>
  struct Waiting {
    Strip<kRows> strips[kHeld + 1];
  };
  template <int kRows>
  void Wait(const Strip<kRows>* held, const Strip<kRows>& last, Waiting<kRows>& to) const {
    BNGRAD_UNROLL_4
    for (int s = 0; s < kHeld; ++s) to.strips[s] = held[s];
    to.strips[kHeld] = last;
  }
  template <int kRows>
  void Put(int64_t end, int64_t stride, const Waiting<kRows>& waiting) const {
    for (int s = 0; s <= kHeld; ++s) Put(end + (s - kHeld - 1) * kLanes, stride, waiting.strips[s]);
  }

  template <class Sum>
  void InTurns(int64_t channel, int64_t start, const int64_t& i, int64_t end, const Sum& sum) const {
    const Factors factors = this->FactorsOf(channel);
    const MapHeld here = *this;  // in registers, as above
    Strip<1> held[kHeld] = {}, now;
    const int64_t begin = start + i;
    sum(end, [&](int64_t at) {
      here.Apply(at, 0, factors, now);
      const int64_t before = at - kHeld * kLanes;
      if (before >= begin) here.Put(before, 0, held[0]);
      for (int s = 1; s < kHeld; ++s) held[s - 1] = held[s];
      held[kHeld - 1] = now;
    });
    BNGRAD_UNROLL_4
    for (int s = 0; s < kHeld; ++s) {
      const int64_t before = start + i - (kHeld - s) * kLanes;
      if (before >= begin) here.Put(before, 0, held[s]);
    }
  }
};

// The same for columns whose rows all have one place in their pages, as in MapColumns: those that are summed
// together are all loaded before one is stored, and in the caches from their ends where outputs lie later in
// their pages (measured, Zen 4, two threads: frozen 1568x1024, 392x2048 1.2 and 1.3 times as fast where
// arrays have one place, 1.2 to 1.5 where each lies 64 or 128 bytes later than the one before, 0.95 to 1.0
// elsewhere; past the caches, in order, 6272x1024 1.06 to 1.3 in one place; 512 columns 0.9 to 1.07).
template <class Map, class T, class Way, bool kFromEnd>
class MapTogether : public MapBeside<Map, T, Way> {
 public:
  using MapBeside<Map, T, Way>::MapBeside;
  static constexpr bool kTogether = true, kBack = kFromEnd;
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
  } else if constexpr (kPlacesMatter) {
    SumRows<Sum, T>(block, inputs, center, sums, MapHeld<Map, T>(block, map_inputs, factors, outputs));
  } else {
    SumRows<Sum, T>(block, inputs, center, sums,
                    MapBeside<Map, T, Cached>(block, map_inputs, factors, outputs));
  }
}

// Bytes by which an output lies later in its page, at most, so that a strip's loads wait for stores of those
// before: then strips are held, and short rows, and those whose every other one is so, mapped after they have
// been summed (measured, Zen 4, two threads, with each array so many bytes later than the one before, the
// three beside MapBeside: at 64 8x256x196 1.6, 8x2048x49 1.24, 8x512x49 1.08 times as fast; at 128 1.3, 1.3
// and 0.82; at 192 0.96 to 1.05, 1.18 and 0.97; at 256 0.95 and others 1.0; at 0 1.05, 1.02 and 1.05).
constexpr uintptr_t kSoon = 384, kSoonOfEveryOther = 128;

// Rows of any length: those that are not long are mapped strip by strip.
template <class Sum, class Map, class T>
void SumAndMapRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                   const void* const* map_inputs, const void* factors, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const auto after = [&] {
    SumAndMapLongRows<Sum, Map, T>(block, inputs, center, sums, map_inputs, factors, outputs);
  };
  const auto beside = [&](auto asks, const auto& map) {
    SumShortRows<asks.kValue, Sum, T>(block, inputs, center, sums, map);
  };
  if (!InStrips(block) || AsColumns(block)) return after();
  if (block.stream) {
    if (!RowsAreWholeLines<Map>(block, out)) return after();
    beside(Constant<true>{}, MapBeside<Map, T, Streamed>(block, map_inputs, factors, outputs));
    return Fence();
  }
  if constexpr (kPlacesMatter) {
    const uintptr_t later = Later(outputs[0], map_inputs);
    const bool pages = RowsHaveOnePlace<T>(block);
    if (block.length <= kShortRow) {
      const bool halves = RowsHaveOnePlace<T>(block, kPage / 2);
      const uintptr_t later_in_half = Later(outputs[0], map_inputs, kPage / 2);
      if (pages ? later <= kSoon : halves && later_in_half <= kSoonOfEveryOther) return after();
    } else if (pages && later <= kSoon && block.channels * block.length % kLanes == 0) {
      return beside(Constant<false>{}, MapHeld<Map, T>(block, map_inputs, factors, outputs));
    }
  }
  beside(Constant<false>{}, MapBeside<Map, T, Cached>(block, map_inputs, factors, outputs));
}

// In the order in which SumColumns sums the same block.
template <class Sum, class Map, class T>
void SumAndMapColumns(const Block& block, const void* const* inputs, const double* center, double* sums,
                      const void* const* map_inputs, const void* factors, void* const* outputs) {
  T* const out[] = {static_cast<T*>(outputs[0]), static_cast<T*>(outputs[1])};
  const bool stream = block.stream && RowsAreWholeLines<Map>(block, out);
  const auto beside = [&](const auto& map) { SumColumns<Sum, T>(block, inputs, center, sums, map); };
  if constexpr (kLoadsFirst<T, kWideRows>) {
    const bool soon = !stream && IsSoon(outputs[0], map_inputs[0]);
    const bool same = Later(outputs[0], map_inputs[0]) == 0 || Later(outputs[0], map_inputs[1]) == 0;
    if (RowsHaveOnePlace<T>(block) && (soon || same)) {
      if (soon) return beside(MapTogether<Map, T, Cached, true>(block, map_inputs, factors, outputs));
      if (!stream) return beside(MapTogether<Map, T, Cached, false>(block, map_inputs, factors, outputs));
      beside(MapTogether<Map, T, Streamed, false>(block, map_inputs, factors, outputs));
      return Fence();
    }
  }
  if (stream) {
    beside(MapBeside<Map, T, Streamed>(block, map_inputs, factors, outputs));
    Fence();
  } else {
    beside(MapBeside<Map, T, Cached>(block, map_inputs, factors, outputs));
  }
}
