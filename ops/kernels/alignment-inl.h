// Where arrays and rows begin in a cache line. Included by table-inl.h.

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

// True if every row of a block begins at a cache line.
template <class Map, class T>
bool RowsAreWholeLines(const Block& block, T* const* out) {
  return ToCacheLine<Map>(out, 0) == 0 && block.row_stride * sizeof(T) % kCacheLine == 0;
}
