// Asking for elements ahead of time, for AVX2 and AVX-512. Included inside bngrad::<isa> and an unnamed
// namespace.

template <int kLevel, class T>
void Prefetch(const T* p) {
  static_assert(kLevel == 1 || kLevel == 2, "a level of the caches");
  constexpr auto kHint = kLevel == 1 ? _MM_HINT_T0 : _MM_HINT_T1;
  for (size_t byte = 0; byte < kLanes * sizeof(T); byte += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + byte, kHint);
  }
}
