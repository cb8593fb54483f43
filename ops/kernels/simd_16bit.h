// 16 elements of 16 bits between memory and a register, without a byte past them: for AVX2, and for AVX-512F,
// which masks 16-bit elements no better. Included inside bngrad::<isa> and an unnamed namespace, after First.

inline __m256i LoadBits(const void* p, All) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Of 32-bit lanes, those that first.n elements fill.
inline __m256i PairMask(First first) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(first.n / 2)), lane);
}

// Pairs, then the last one if it has no partner.
inline __m256i LoadBits(const void* p, First first) {
  const __m256i pairs = _mm256_maskload_epi32(static_cast<const int*>(p), PairMask(first));
  if (first.n % 2 == 0) return pairs;
  const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i is_last = _mm256_cmpeq_epi16(lane, _mm256_set1_epi16(static_cast<int16_t>(first.n - 1)));
  const __m256i last = _mm256_set1_epi16(static_cast<const int16_t*>(p)[first.n - 1]);
  return _mm256_or_si256(pairs, _mm256_and_si256(is_last, last));
}

inline void StoreBits(void* p, __m256i bits, All) { _mm256_storeu_si256(static_cast<__m256i*>(p), bits); }
inline void StoreBits(void* p, __m256i bits, First first) {
  _mm256_maskstore_epi32(static_cast<int*>(p), PairMask(first), bits);
  if (first.n % 2 == 0) return;
  const __m256i pair = _mm256_permutevar8x32_epi32(bits, _mm256_set1_epi32(static_cast<int>(first.n / 2)));
  static_cast<int16_t*>(p)[first.n - 1] = static_cast<int16_t>(_mm256_extract_epi16(pair, 0));
}

template <class Count>
F32x16 Load(const Float16* p, Count count) {
  return FromHalf(LoadBits(p, count));
}
template <class Count>
F32x16 Load(const BFloat16* p, Count count) {
  return FromUpperHalf(LoadBits(p, count));
}
template <class T, class Count>
F64x16 Widen(const T* p, Count count) {
  F64x16 r;
  Convert(Load(p, count), r);
  return r;
}
template <class Count>
void Store(Float16* p, const F32x16& a, Count count) {
  StoreBits(p, ToHalf(a), count);
}
template <class Count>
void Store(BFloat16* p, const F32x16& a, Count count) {
  StoreBits(p, ToUpperHalf(a), count);
}
inline void Stream(Float16* p, const F32x16& a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), ToHalf(a));
}
inline void Stream(BFloat16* p, const F32x16& a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), ToUpperHalf(a));
}
