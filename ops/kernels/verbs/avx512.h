// The verbs on AVX-512F (see table-inl.h). Included inside bngrad::avx512 and an unnamed namespace.

#include "common.h"

struct F32x16 {
  __m512 v[1];
};
struct F64x16 {
  __m512d v[2];
};

BNGRAD_INLINE __m512 LoadRegister(const float* p) { return _mm512_loadu_ps(p); }
BNGRAD_INLINE __m512d LoadRegister(const double* p) { return _mm512_loadu_pd(p); }
BNGRAD_INLINE void StoreRegister(float* p, __m512 a) { _mm512_storeu_ps(p, a); }
BNGRAD_INLINE void StoreRegister(double* p, __m512d a) { _mm512_storeu_pd(p, a); }
BNGRAD_INLINE void StreamRegister(float* p, __m512 a) { _mm512_stream_ps(p, a); }
BNGRAD_INLINE void StreamRegister(double* p, __m512d a) { _mm512_stream_pd(p, a); }
BNGRAD_INLINE __m512 Splat(float s) { return _mm512_set1_ps(s); }
BNGRAD_INLINE __m512d Splat(double s) { return _mm512_set1_pd(s); }
BNGRAD_INLINE __m512 Add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
BNGRAD_INLINE __m512d Add(__m512d a, __m512d b) { return _mm512_add_pd(a, b); }
BNGRAD_INLINE __m512 Sub(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
BNGRAD_INLINE __m512d Sub(__m512d a, __m512d b) { return _mm512_sub_pd(a, b); }
BNGRAD_INLINE __m512 Mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
BNGRAD_INLINE __m512d Mul(__m512d a, __m512d b) { return _mm512_mul_pd(a, b); }
BNGRAD_INLINE __m512d MulAdd(__m512d a, __m512d b, __m512d sum) { return _mm512_fmadd_pd(a, b, sum); }
BNGRAD_INLINE __m512 IfPositive(__m512 z, __m512 a) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_GT_OQ), a);
}
BNGRAD_INLINE __m512d IfPositive(__m512d z, __m512d a) {
  return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(z, _mm512_setzero_pd(), _CMP_GT_OQ), a);
}
// The first n lanes of a, the others of b; n may be negative, or more than there are.
BNGRAD_INLINE __m512 Select(__m512 a, __m512 b, int64_t n) {
  return _mm512_mask_mov_ps(b, static_cast<__mmask16>((1u << n) - 1), a);
}
BNGRAD_INLINE __m512d Select(__m512d a, __m512d b, int64_t n) {
  const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm512_mask_mov_pd(b, _mm512_cmpgt_epi64_mask(_mm512_set1_epi64(n), lane), a);
}

BNGRAD_INLINE F64x16 Widen(const float* p, All) {
  return {{_mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p + 8))}};
}
BNGRAD_INLINE void Convert(F32x16 from, F64x16& to) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(from.v[0]), 1));
  to = {{_mm512_cvtps_pd(_mm512_castps512_ps256(from.v[0])), _mm512_cvtps_pd(high)}};
}
BNGRAD_INLINE void Convert(const F64x16& from, F32x16& to) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps(from.v[0])));
  to.v[0] = _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps(from.v[1])), 1));
}
BNGRAD_INLINE __m256d SumOfQuarters(const F64x16& a) {
  const __m512d of8 = _mm512_add_pd(a.v[0], a.v[1]);
  return _mm256_add_pd(_mm512_castpd512_pd256(of8), _mm512_extractf64x4_pd(of8, 1));
}

// float16.
BNGRAD_INLINE F32x16 FromHalf(__m256i bits) { return {{_mm512_cvtph_ps(bits)}}; }
BNGRAD_INLINE __m256i ToHalf(F32x16 a) {
  return _mm512_cvtps_ph(a.v[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// bfloat16: see FromFloat in float16-inl.h.
BNGRAD_INLINE F32x16 FromUpperHalf(__m256i bits) {
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))}};
}
BNGRAD_INLINE __m256i ToUpperHalf(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v[0]), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v[0], a.v[0], _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

#include "x86.h"
