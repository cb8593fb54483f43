// What is done beside sums, in the loop that makes them. Included by each <isa>.cc before the sweeps that
// sum, inside bngrad::<isa> and an unnamed namespace.

// Nothing; this says what such a class has. RowMap and MapBeside map what has been summed: the one has no
// strips.
struct Nothing {
  static constexpr bool kMaps = false;
  static constexpr int kStrips = 1;         // that are to be mapped one after the other
  static constexpr int kHeld = 0;           // that wait to be written until later ones have been summed
  static constexpr bool kTogether = false;  // columns: mapped when some rows have been summed, not each
  static constexpr bool kBack = false;      // columns: from the last to the first

  // A row after the other: when one begins; while elements i of a channel, which begins at `start`, are
  // summed up to `end` by calls of sum(end, each) that move i on, and call each(at) when those from `at` on
  // have been summed, 16 of them; when the last ones from `at` on, which are no 16, have been; and when the
  // row ends.
  void Begin(int64_t) const {}
  template <class Sum>
  void InTurns(int64_t, int64_t, const int64_t&, int64_t end, const Sum& sum) const {
    sum(end, [](int64_t) {});
  }
  void Last(int64_t, int64_t, First) const {}
  void Finish() const {}

  // Strips of rows: the factors of a channel; those with the elements from some place on replaced by another
  // channel's. Strips of columns: the factors of those from some channel on.
  struct Factors {};
  Factors FactorsOf(int64_t) const { return {}; }
  void BlendIn(Factors&, int64_t, First) const {}
  template <class Count>
  Factors FactorsFrom(int64_t, Count) const {
    return {};
  }
  // When elements of columns from `at` on have been summed.
  template <class Count>
  void MapAt(int64_t, const Factors&, Count) const {}

  // When some strips of rows side by side have been.
  template <int kRows, int kStrips, class Count>
  void MapRowsAt(int64_t, int64_t, const Factors&, Count) const {}

  // Strips that wait from the end of a channel on.
  template <int kRows>
  struct Waiting {};
};
