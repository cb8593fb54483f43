// Work on the elements at hand in the loop that sums. Included by table-inl.h.

// No work; this is the interface of an epilogue.
struct NoEpilogue {
  static constexpr bool kMaps = false;
  struct Factors {};
  Factors OfChannel(int64_t) const { return {}; }
  template <class Count>
  Factors OfColumns(int64_t, Count) const {
    return {};
  }
  static void BlendIn(Factors&, const Factors&, FirstN) {}
  template <int kRows, class Count>
  void MapRowsAt(int64_t, int64_t, const Factors&, Count) const {}
};

// Maps the elements that have just been summed, or those in their place of another tile.
template <class Map, class T>
struct MapEpilogue : MapArrays<Map, T> {
  using Arrays = MapArrays<Map, T>;
  static constexpr bool kMaps = true;
  const StorePolicy policy;

  BNGRAD_INLINE MapEpilogue(const Arrays& arrays, StorePolicy the_policy)
      : Arrays(arrays), policy(the_policy) {}
  template <int kRows, class Count>
  BNGRAD_INLINE void MapRowsAt(int64_t i, int64_t stride, const typename Arrays::Factors& factors,
                               Count count) const {
    Arrays::template MapRowsAt<kRows, 1>(i, stride, factors, policy, count);
  }
};
