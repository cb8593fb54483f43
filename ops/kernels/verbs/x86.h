// Verbs that AVX2 and AVX-512F have in common. Included by the files of both, after their own.

// 16 elements of 16 bits between memory and a register, without a byte past them: AVX-512F masks no better.

BNGRAD_INLINE __m256i LoadBits(const void* p, All) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Of 32-bit lanes, those that first.n elements fill.
BNGRAD_INLINE __m256i PairMask(FirstN first) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(first.n / 2)), lane);
}

// Pairs, then the last one if it has no partner.
BNGRAD_INLINE __m256i LoadBits(const void* p, FirstN first) {
  const __m256i pairs = _mm256_maskload_epi32(static_cast<const int*>(p), PairMask(first));
  if (first.n % 2 == 0) return pairs;
  const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i is_last = _mm256_cmpeq_epi16(lane, _mm256_set1_epi16(static_cast<int16_t>(first.n - 1)));
  const __m256i last = _mm256_set1_epi16(static_cast<const int16_t*>(p)[first.n - 1]);
  return _mm256_or_si256(pairs, _mm256_and_si256(is_last, last));
}

BNGRAD_INLINE void StoreBits(void* p, __m256i bits, All) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
}
BNGRAD_INLINE void StoreBits(void* p, __m256i bits, FirstN first) {
  _mm256_maskstore_epi32(static_cast<int*>(p), PairMask(first), bits);
  if (first.n % 2 == 0) return;
  const __m256i pair = _mm256_permutevar8x32_epi32(bits, _mm256_set1_epi32(static_cast<int>(first.n / 2)));
  static_cast<int16_t*>(p)[first.n - 1] = static_cast<int16_t>(_mm256_extract_epi16(pair, 0));
}

template <class Count>
BNGRAD_INLINE F32x16 Load(const Float16* p, Count count) {
  return FromHalf(LoadBits(p, count));
}
template <class Count>
BNGRAD_INLINE F32x16 Load(const BFloat16* p, Count count) {
  return FromUpperHalf(LoadBits(p, count));
}
template <class T, class Count>
BNGRAD_INLINE F64x16 Widen(const T* p, Count count) {
  F64x16 r;
  Convert(Load(p, count), r);
  return r;
}
template <class Count>
BNGRAD_INLINE void Store(Float16* p, const F32x16& a, Count count) {
  StoreBits(p, ToHalf(a), count);
}
template <class Count>
BNGRAD_INLINE void Store(BFloat16* p, const F32x16& a, Count count) {
  StoreBits(p, ToUpperHalf(a), count);
}
BNGRAD_INLINE void Stream(Float16* p, const F32x16& a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), ToHalf(a));
}
BNGRAD_INLINE void Stream(BFloat16* p, const F32x16& a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), ToUpperHalf(a));
}

template <int kLevel, class T>
BNGRAD_INLINE void Prefetch(const T* p, int64_t i) {
  static_assert(kLevel == 1 || kLevel == 2, "a level of the caches");
  constexpr auto kHint = kLevel == 1 ? _MM_HINT_T0 : _MM_HINT_T1;
  constexpr int64_t kBytes = kLanes * sizeof(T), kLine = kCacheLine;
  const char* const begin = reinterpret_cast<const char*>(AddressOf(p, i));
  for (int64_t byte = 0; byte < kBytes; byte += kLine) _mm_prefetch(AddressOf(begin, byte), kHint);
}

// Adding up lanes, from where four sums are left: SumOfQuarters(a) adds lanes i, i+4, i+8 and i+12.

BNGRAD_INLINE double SumOfLanes(const F64x16& a) {
  const __m256d of4 = SumOfQuarters(a);
  const __m128d of2 = _mm_add_pd(_mm256_castpd256_pd128(of4), _mm256_extractf128_pd(of4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(of2, _mm_unpackhi_pd(of2, of2)));
}

BNGRAD_INLINE void AddSumsOfLanes4(double* sums, const double* lanes, int64_t stride) {
  __m256d of4[4], of2[2];
  for (int k = 0; k < 4; ++k) of4[k] = SumOfQuarters(Load(lanes + k * stride, All{}));
  for (int k = 0; k < 2; ++k) {  // of vectors k and k + 2
    const __m256d low = _mm256_permute2f128_pd(of4[k], of4[k + 2], 0x20);
    of2[k] = _mm256_add_pd(low, _mm256_permute2f128_pd(of4[k], of4[k + 2], 0x31));
  }
  const __m256d of1 = _mm256_add_pd(_mm256_unpacklo_pd(of2[0], of2[1]), _mm256_unpackhi_pd(of2[0], of2[1]));
  _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), of1));
}
