// Where arrays, and rows, begin: in a cache line, and in a page. Included by each <isa>.cc before the sweeps,
// inside bngrad::<isa> and an unnamed namespace.

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

// Whether every row of a block begins at a cache line.
template <class Map, class T>
bool RowsAreWholeLines(const Block& block, T* const* out) {
  return ToCacheLine<Map>(out, 0) == 0 && block.row_stride * sizeof(T) % kCacheLine == 0;
}

// Where kPlacesMatter, two things are minded of pages: a load waits for a store shortly before it that has
// the same place in another page, and lines that have one place there share the few ways of the nearest
// cache. The arrays of a program mostly begin at one place of their pages, or each a little later than the
// one before, and rows of 256 images of 14x14 are whole pages apart.

// In bytes.
constexpr uintptr_t kPage = 4096;

// How much later in its page an output lies than an array that it is mapped from, or, from the other end of
// the page, how much earlier; no later than one that there is not. With kPage / 2, in its half of the page.
inline uintptr_t Later(const void* output, const void* input, uintptr_t page = kPage) {
  return input == nullptr ? 0
                          : (reinterpret_cast<uintptr_t>(output) - reinterpret_cast<uintptr_t>(input)) % page;
}

// The same of the two arrays that a gradient is mapped from, of the one where it is more.
inline uintptr_t Later(const void* output, const void* const* inputs, uintptr_t page = kPage) {
  const uintptr_t a = Later(output, inputs[0], page), b = Later(output, inputs[1], page);
  return a < b ? b : a;
}

// Whether what is loaded after a store may wait for it: there is an output a little later in its page.
inline bool IsSoon(const void* output, const void* input) {
  const uintptr_t later = Later(output, input);
  return later > 0 && later < kPage / 2;
}

// Whether rows have the same place in their pages; with kPage / 2, every other one.
template <class T>
bool RowsHaveOnePlace(const Block& block, uintptr_t page = kPage) {
  return block.row_stride * sizeof(T) % page == 0;
}

// Whether all rows of all arrays have one place, but for a few lines.
template <class T>
bool InOnePlace(const Block& block, const void* const* inputs, const void* output) {
  constexpr uintptr_t kNear = 256;
  const auto is_near = [=](const void* input) { return (Later(output, input) + kNear) % kPage <= 2 * kNear; };
  return RowsHaveOnePlace<T>(block) && is_near(inputs[0]) && is_near(inputs[1]);
}
