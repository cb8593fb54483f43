// Asking for elements ahead of time, for AVX2 and AVX-512. Included inside bngrad::<isa> and an unnamed
// namespace.

template <int kLevel, class T>
void Prefetch(const T* p, int64_t i) {
  static_assert(kLevel == 1 || kLevel == 2, "a level of the caches");
  constexpr auto kHint = kLevel == 1 ? _MM_HINT_T0 : _MM_HINT_T1;
  constexpr int64_t kBytes = kLanes * sizeof(T), kLine = kCacheLine;
  const char* const begin = reinterpret_cast<const char*>(AddressOf(p, i));
  for (int64_t byte = 0; byte < kBytes; byte += kLine) _mm_prefetch(AddressOf(begin, byte), kHint);
}
