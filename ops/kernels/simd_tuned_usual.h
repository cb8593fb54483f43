// What most CPUs have as follows, and one otherwise (simd_tuned_zen4.h). Included by an <isa>.cc after its
// verbs, inside bngrad::<isa> and an unnamed namespace.

// The type of the terms of long rows, for that of all others.
template <class Term, class T>
struct OfLongRows {
  using Type = Term;
};

// Add16, where little but conversions and such additions is done.
template <class V>
V AddTerm16(const V& sum, const V& a) {
  return Add16(sum, a);
}

// Rows of columns that are mapped together in the caches.
constexpr int kMapRows = 1;

// Bytes of a factor of all columns from which rows are mapped some together past the caches, and whether
// there are registers for the factors of narrow ones (maps_of_columns-inl.h).
constexpr int64_t kWideRow = 4096 + kCacheLine;
constexpr bool kHoldsFactors = false;

// Whether it is minded where arrays and rows lie in their pages (alignment-inl.h).
constexpr bool kPlacesMatter = false;

// The level of the cache that elements of rows are asked to, and of wide columns.
template <class T>
constexpr int kAskLevel = 1;
