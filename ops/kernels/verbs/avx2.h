// The verbs on AVX2 (see table-inl.h). Included inside bngrad::avx2 and an unnamed namespace.

#include "common.h"

struct F32x16 {
  __m256 v[2];
};
struct F64x16 {
  __m256d v[4];
};

BNGRAD_INLINE __m256 LoadRegister(const float* p) { return _mm256_loadu_ps(p); }
BNGRAD_INLINE __m256d LoadRegister(const double* p) { return _mm256_loadu_pd(p); }
BNGRAD_INLINE void StoreRegister(float* p, __m256 a) { _mm256_storeu_ps(p, a); }
BNGRAD_INLINE void StoreRegister(double* p, __m256d a) { _mm256_storeu_pd(p, a); }
BNGRAD_INLINE void StreamRegister(float* p, __m256 a) { _mm256_stream_ps(p, a); }
BNGRAD_INLINE void StreamRegister(double* p, __m256d a) { _mm256_stream_pd(p, a); }
BNGRAD_INLINE __m256 Splat(float s) { return _mm256_set1_ps(s); }
BNGRAD_INLINE __m256d Splat(double s) { return _mm256_set1_pd(s); }
BNGRAD_INLINE __m256 Add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
BNGRAD_INLINE __m256d Add(__m256d a, __m256d b) { return _mm256_add_pd(a, b); }
BNGRAD_INLINE __m256 Sub(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
BNGRAD_INLINE __m256d Sub(__m256d a, __m256d b) { return _mm256_sub_pd(a, b); }
BNGRAD_INLINE __m256 Mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
BNGRAD_INLINE __m256d Mul(__m256d a, __m256d b) { return _mm256_mul_pd(a, b); }
BNGRAD_INLINE __m256d MulAdd(__m256d a, __m256d b, __m256d sum) { return _mm256_fmadd_pd(a, b, sum); }
BNGRAD_INLINE __m256 IfPositive(__m256 z, __m256 a) {
  return _mm256_and_ps(a, _mm256_cmp_ps(z, _mm256_setzero_ps(), _CMP_GT_OQ));
}
BNGRAD_INLINE __m256d IfPositive(__m256d z, __m256d a) {
  return _mm256_and_pd(a, _mm256_cmp_pd(z, _mm256_setzero_pd(), _CMP_GT_OQ));
}
// The first n lanes of a, the others of b; n may be negative, or more than there are.
BNGRAD_INLINE __m256 Select(__m256 a, __m256 b, int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i first = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first));
}
BNGRAD_INLINE __m256d Select(__m256d a, __m256d b, int64_t n) {
  const __m256i first = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
  return _mm256_blendv_pd(b, a, _mm256_castsi256_pd(first));
}

BNGRAD_INLINE F64x16 Widen(const float* p, All) {
  F64x16 r;
  BNGRAD_UNROLL
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k));
  return r;
}
BNGRAD_INLINE void Convert(const F32x16& from, F64x16& to) {
  for (int k = 0; k < 2; ++k) {
    to.v[2 * k] = _mm256_cvtps_pd(_mm256_castps256_ps128(from.v[k]));
    to.v[2 * k + 1] = _mm256_cvtps_pd(_mm256_extractf128_ps(from.v[k], 1));
  }
}
BNGRAD_INLINE void Convert(const F64x16& from, F32x16& to) {
  for (int k = 0; k < 2; ++k) {
    to.v[k] = _mm256_set_m128(_mm256_cvtpd_ps(from.v[2 * k + 1]), _mm256_cvtpd_ps(from.v[2 * k]));
  }
}
BNGRAD_INLINE __m256d SumOfQuarters(const F64x16& a) {
  return _mm256_add_pd(_mm256_add_pd(a.v[0], a.v[2]), _mm256_add_pd(a.v[1], a.v[3]));
}

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
