// The verbs on AVX2 (see table-inl.h). Included inside bngrad::avx2 and an unnamed namespace.

#include "common.h"

// True to compile sums and maps also as one loop.
constexpr bool kFuses = true;

struct F32x16 {
  __m256 v[2];
};
struct F64x16 {
  __m256d v[4];
};

// All ones in the lanes first.n covers: quarter k of 16 doubles or floats, half k of 16 floats.
BNGRAD_INLINE __m256i DoubleMask(FirstN first, int k) {
  const __m256i lane = _mm256_setr_epi64x(4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3);
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(first.n), lane);
}
BNGRAD_INLINE __m128i QuarterMask(FirstN first, int k) {
  const __m128i lane = _mm_setr_epi32(4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3);
  return _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(first.n)), lane);
}
BNGRAD_INLINE __m256i HalfMask(FirstN first, int k) {
  const int b = 8 * k;
  const __m256i lane = _mm256_setr_epi32(b, b + 1, b + 2, b + 3, b + 4, b + 5, b + 6, b + 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(first.n)), lane);
}

BNGRAD_INLINE F32x16 Load(const float* p, All) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
BNGRAD_INLINE F32x16 Load(const float* p, FirstN n) {
  return {{_mm256_maskload_ps(p, HalfMask(n, 0)), _mm256_maskload_ps(AddressOf(p, 8), HalfMask(n, 1))}};
}
BNGRAD_INLINE F64x16 Load(const double* p, All) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_loadu_pd(p + 4 * k);
  return r;
}
BNGRAD_INLINE F64x16 Load(const double* p, FirstN n) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_maskload_pd(AddressOf(p, 4 * k), DoubleMask(n, k));
  return r;
}

BNGRAD_INLINE F64x16 Widen(const float* p, All) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k));
  return r;
}
BNGRAD_INLINE F64x16 Widen(const float* p, FirstN n) {
  F64x16 r;
  for (int k = 0; k < 4; ++k)
    r.v[k] = _mm256_cvtps_pd(_mm_maskload_ps(AddressOf(p, 4 * k), QuarterMask(n, k)));
  return r;
}
template <class Count>
BNGRAD_INLINE F64x16 Widen(const double* p, Count count) {
  return Load(p, count);
}

BNGRAD_INLINE void Convert(const F32x16& from, F64x16& to) {
  for (int k = 0; k < 2; ++k) {
    to.v[2 * k] = _mm256_cvtps_pd(_mm256_castps256_ps128(from.v[k]));
    to.v[2 * k + 1] = _mm256_cvtps_pd(_mm256_extractf128_ps(from.v[k], 1));
  }
}
BNGRAD_INLINE void Convert(const F64x16& from, F64x16& to) { to = from; }
BNGRAD_INLINE void Convert(const F64x16& from, F32x16& to) {
  for (int k = 0; k < 2; ++k) {
    to.v[k] = _mm256_set_m128(_mm256_cvtpd_ps(from.v[2 * k + 1]), _mm256_cvtpd_ps(from.v[2 * k]));
  }
}

BNGRAD_INLINE void Store(float* p, const F32x16& a, All) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
BNGRAD_INLINE void Store(float* p, const F32x16& a, FirstN n) {
  _mm256_maskstore_ps(p, HalfMask(n, 0), a.v[0]);
  _mm256_maskstore_ps(AddressOf(p, 8), HalfMask(n, 1), a.v[1]);
}
BNGRAD_INLINE void Store(double* p, const F64x16& a, All) {
  for (int k = 0; k < 4; ++k) _mm256_storeu_pd(p + 4 * k, a.v[k]);
}
BNGRAD_INLINE void Store(double* p, const F64x16& a, FirstN n) {
  for (int k = 0; k < 4; ++k) _mm256_maskstore_pd(AddressOf(p, 4 * k), DoubleMask(n, k), a.v[k]);
}

BNGRAD_INLINE F32x16 Broadcast16(float s) { return {{_mm256_set1_ps(s), _mm256_set1_ps(s)}}; }
BNGRAD_INLINE F32x16 Add16(const F32x16& a, const F32x16& b) {
  return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F32x16 Sub16(const F32x16& a, const F32x16& b) {
  return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F32x16 Mul16(const F32x16& a, const F32x16& b) {
  return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F32x16 Div16(const F32x16& a, const F32x16& b) {
  return {{_mm256_div_ps(a.v[0], b.v[0]), _mm256_div_ps(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F32x16 Sqrt16(const F32x16& a) { return {{_mm256_sqrt_ps(a.v[0]), _mm256_sqrt_ps(a.v[1])}}; }

BNGRAD_INLINE F64x16 Broadcast16(double s) {
  const __m256d v = _mm256_set1_pd(s);
  return {{v, v, v, v}};
}
BNGRAD_INLINE F64x16 Add16(const F64x16& a, const F64x16& b) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_add_pd(a.v[k], b.v[k]);
  return r;
}
BNGRAD_INLINE F64x16 Sub16(const F64x16& a, const F64x16& b) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_sub_pd(a.v[k], b.v[k]);
  return r;
}
BNGRAD_INLINE F64x16 Mul16(const F64x16& a, const F64x16& b) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_mul_pd(a.v[k], b.v[k]);
  return r;
}
BNGRAD_INLINE F64x16 Div16(const F64x16& a, const F64x16& b) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_div_pd(a.v[k], b.v[k]);
  return r;
}
BNGRAD_INLINE F64x16 Sqrt16(const F64x16& a) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_sqrt_pd(a.v[k]);
  return r;
}
BNGRAD_INLINE F64x16 AddExactProduct16(const F64x16& sum, const F64x16& a, const F64x16& b) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_fmadd_pd(a.v[k], b.v[k], sum.v[k]);
  return r;
}

BNGRAD_INLINE F32x16 IfPositive(const F32x16& z, const F32x16& a) {
  F32x16 r;
  for (int k = 0; k < 2; ++k) {
    r.v[k] = _mm256_and_ps(a.v[k], _mm256_cmp_ps(z.v[k], _mm256_setzero_ps(), _CMP_GT_OQ));
  }
  return r;
}
BNGRAD_INLINE F64x16 IfPositive(const F64x16& z, const F64x16& a) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) {
    r.v[k] = _mm256_and_pd(a.v[k], _mm256_cmp_pd(z.v[k], _mm256_setzero_pd(), _CMP_GT_OQ));
  }
  return r;
}

BNGRAD_INLINE F32x16 ZeroTail(const F32x16& a, All) { return a; }
BNGRAD_INLINE F32x16 ZeroTail(const F32x16& a, FirstN n) {
  F32x16 r;
  for (int k = 0; k < 2; ++k) r.v[k] = _mm256_and_ps(a.v[k], _mm256_castsi256_ps(HalfMask(n, k)));
  return r;
}
BNGRAD_INLINE F64x16 ZeroTail(const F64x16& a, All) { return a; }
BNGRAD_INLINE F64x16 ZeroTail(const F64x16& a, FirstN n) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_and_pd(a.v[k], _mm256_castsi256_pd(DoubleMask(n, k)));
  return r;
}

BNGRAD_INLINE F32x16 Blend(const F32x16& a, const F32x16& b, FirstN n) {
  F32x16 r;
  for (int k = 0; k < 2; ++k) {
    r.v[k] = _mm256_blendv_ps(b.v[k], a.v[k], _mm256_castsi256_ps(HalfMask(n, k)));
  }
  return r;
}
BNGRAD_INLINE F64x16 Blend(const F64x16& a, const F64x16& b, FirstN n) {
  F64x16 r;
  for (int k = 0; k < 4; ++k) {
    r.v[k] = _mm256_blendv_pd(b.v[k], a.v[k], _mm256_castsi256_pd(DoubleMask(n, k)));
  }
  return r;
}

// Exchanges the middle quarters: shuffling and unpacking work on the halves of a register alone.
BNGRAD_INLINE __m256 InOrder(__m256 a) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), _MM_SHUFFLE(3, 1, 2, 0)));
}
BNGRAD_INLINE __m256d InOrder(__m256d a) { return _mm256_permute4x64_pd(a, _MM_SHUFFLE(3, 1, 2, 0)); }
BNGRAD_INLINE void Deinterleave(const F32x16& low, const F32x16& high, F32x16& even, F32x16& odd) {
  const F32x16* const from[2] = {&low, &high};
  for (int k = 0; k < 2; ++k) {
    const __m256 a = from[k]->v[0], b = from[k]->v[1];
    even.v[k] = InOrder(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    odd.v[k] = InOrder(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  }
}
BNGRAD_INLINE void Interleave(const F32x16& even, const F32x16& odd, F32x16& low, F32x16& high) {
  F32x16* const to[2] = {&low, &high};
  for (int k = 0; k < 2; ++k) {
    const __m256 a = InOrder(even.v[k]), b = InOrder(odd.v[k]);
    to[k]->v[0] = _mm256_unpacklo_ps(a, b);
    to[k]->v[1] = _mm256_unpackhi_ps(a, b);
  }
}
BNGRAD_INLINE void Deinterleave(const F64x16& low, const F64x16& high, F64x16& even, F64x16& odd) {
  const F64x16* const from[2] = {&low, &high};
  for (int k = 0; k < 4; ++k) {
    const __m256d a = from[k / 2]->v[k % 2 * 2], b = from[k / 2]->v[k % 2 * 2 + 1];
    even.v[k] = InOrder(_mm256_unpacklo_pd(a, b));
    odd.v[k] = InOrder(_mm256_unpackhi_pd(a, b));
  }
}
BNGRAD_INLINE void Interleave(const F64x16& even, const F64x16& odd, F64x16& low, F64x16& high) {
  F64x16* const to[2] = {&low, &high};
  for (int k = 0; k < 4; ++k) {
    const __m256d a = InOrder(even.v[k]), b = InOrder(odd.v[k]);
    to[k / 2]->v[k % 2 * 2] = _mm256_unpacklo_pd(a, b);
    to[k / 2]->v[k % 2 * 2 + 1] = _mm256_unpackhi_pd(a, b);
  }
}

BNGRAD_INLINE __m256d SumOfQuarters(const F64x16& a) {
  return _mm256_add_pd(_mm256_add_pd(a.v[0], a.v[2]), _mm256_add_pd(a.v[1], a.v[3]));
}

// Past the cache, to a cache line boundary; Fence() before anyone else reads it.
BNGRAD_INLINE void Stream(float* p, const F32x16& a) {
  _mm256_stream_ps(p, a.v[0]);
  _mm256_stream_ps(p + 8, a.v[1]);
}
BNGRAD_INLINE void Stream(double* p, const F64x16& a) {
  for (int k = 0; k < 4; ++k) _mm256_stream_pd(p + 4 * k, a.v[k]);
}
BNGRAD_INLINE void Fence() { _mm_sfence(); }

// float16: F16C.
BNGRAD_INLINE F32x16 FromHalf(__m256i bits) {
  return {
      {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))}};
}
BNGRAD_INLINE __m256i ToHalf(const F32x16& a) {
  const __m128i low = _mm256_cvtps_ph(a.v[0], _MM_FROUND_TO_NEAREST_INT);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                 _mm256_cvtps_ph(a.v[1], _MM_FROUND_TO_NEAREST_INT), 1);
}

// bfloat16: see FromFloat in float16-inl.h.
BNGRAD_INLINE __m256 UpperHalfToFloat(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
BNGRAD_INLINE __m256i RoundToUpperHalf(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
BNGRAD_INLINE F32x16 FromUpperHalf(__m256i bits) {
  return {
      {UpperHalfToFloat(_mm256_castsi256_si128(bits)), UpperHalfToFloat(_mm256_extracti128_si256(bits, 1))}};
}
BNGRAD_INLINE __m256i ToUpperHalf(const F32x16& a) {
  const __m256i packed = _mm256_packus_epi32(RoundToUpperHalf(a.v[0]), RoundToUpperHalf(a.v[1]));
  return _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));  // packing goes by halves of a register
}

#include "x86.h"
