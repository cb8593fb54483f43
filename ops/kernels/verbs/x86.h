// Verbs that AVX2 and AVX-512F have in common. Included by both, after their own.

#include "lanes.h"

BNGRAD_INLINE __m256i LoadBits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
BNGRAD_INLINE void StoreBits(void* p, __m256i bits) { _mm256_storeu_si256(static_cast<__m256i*>(p), bits); }
BNGRAD_INLINE void StreamBits(void* p, __m256i bits) { _mm256_stream_si256(static_cast<__m256i*>(p), bits); }

BNGRAD_INLINE F32x16 Load(const Float16* p, All) { return FromHalf(LoadBits(p)); }
BNGRAD_INLINE F32x16 Load(const BFloat16* p, All) { return FromUpperHalf(LoadBits(p)); }
BNGRAD_INLINE void Store(Float16* p, const F32x16& a, All) { StoreBits(p, ToHalf(a)); }
BNGRAD_INLINE void Store(BFloat16* p, const F32x16& a, All) { StoreBits(p, ToUpperHalf(a)); }
BNGRAD_INLINE void Stream(Float16* p, const F32x16& a) { StreamBits(p, ToHalf(a)); }
BNGRAD_INLINE void Stream(BFloat16* p, const F32x16& a) { StreamBits(p, ToUpperHalf(a)); }
BNGRAD_INLINE void Fence() { _mm_sfence(); }

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
