// The verbs on AVX-512F (see table-inl.h). Included inside bngrad::avx512 and an unnamed namespace.

#include "common.h"

// True to compile sums and maps also as one loop.
constexpr bool kFuses = true;

struct F32x16 {
  __m512 v;
};
struct F64x16 {
  __m512d v[2];
};

BNGRAD_INLINE __mmask16 Mask(FirstN first) { return static_cast<__mmask16>((1u << first.n) - 1); }
BNGRAD_INLINE __mmask8 LowMask(FirstN first) { return static_cast<__mmask8>(Mask(first)); }
BNGRAD_INLINE __mmask8 HighMask(FirstN first) { return static_cast<__mmask8>(Mask(first) >> 8); }

BNGRAD_INLINE F32x16 Load(const float* p, All) { return {_mm512_loadu_ps(p)}; }
BNGRAD_INLINE F32x16 Load(const float* p, FirstN n) { return {_mm512_maskz_loadu_ps(Mask(n), p)}; }
BNGRAD_INLINE F64x16 Load(const double* p, All) { return {{_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}}; }
BNGRAD_INLINE F64x16 Load(const double* p, FirstN n) {
  return {{_mm512_maskz_loadu_pd(LowMask(n), p), _mm512_maskz_loadu_pd(HighMask(n), AddressOf(p, 8))}};
}

BNGRAD_INLINE F64x16 Widen(const float* p, All) {
  return {{_mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p + 8))}};
}
BNGRAD_INLINE void Convert(F32x16 from, F64x16& to) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(from.v), 1));
  to = {{_mm512_cvtps_pd(_mm512_castps512_ps256(from.v)), _mm512_cvtps_pd(high)}};
}
BNGRAD_INLINE F64x16 Widen(const float* p, FirstN n) {
  F64x16 r;
  Convert(Load(p, n), r);
  return r;
}
BNGRAD_INLINE void Convert(const F64x16& from, F64x16& to) { to = from; }
BNGRAD_INLINE void Convert(const F64x16& from, F32x16& to) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps(from.v[0])));
  to.v = _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps(from.v[1])), 1));
}
template <class Count>
BNGRAD_INLINE F64x16 Widen(const double* p, Count count) {
  return Load(p, count);
}

BNGRAD_INLINE void Store(float* p, F32x16 a, All) { _mm512_storeu_ps(p, a.v); }
BNGRAD_INLINE void Store(float* p, F32x16 a, FirstN n) { _mm512_mask_storeu_ps(p, Mask(n), a.v); }
BNGRAD_INLINE void Store(double* p, const F64x16& a, All) {
  _mm512_storeu_pd(p, a.v[0]);
  _mm512_storeu_pd(p + 8, a.v[1]);
}
BNGRAD_INLINE void Store(double* p, const F64x16& a, FirstN n) {
  _mm512_mask_storeu_pd(p, LowMask(n), a.v[0]);
  _mm512_mask_storeu_pd(AddressOf(p, 8), HighMask(n), a.v[1]);
}

BNGRAD_INLINE F32x16 Broadcast16(float s) { return {_mm512_set1_ps(s)}; }
BNGRAD_INLINE F32x16 Add16(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
BNGRAD_INLINE F32x16 Sub16(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
BNGRAD_INLINE F32x16 Mul16(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
BNGRAD_INLINE F32x16 Div16(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
BNGRAD_INLINE F32x16 Sqrt16(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }

BNGRAD_INLINE F64x16 Broadcast16(double s) { return {{_mm512_set1_pd(s), _mm512_set1_pd(s)}}; }
BNGRAD_INLINE F64x16 Add16(const F64x16& a, const F64x16& b) {
  return {{_mm512_add_pd(a.v[0], b.v[0]), _mm512_add_pd(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F64x16 Sub16(const F64x16& a, const F64x16& b) {
  return {{_mm512_sub_pd(a.v[0], b.v[0]), _mm512_sub_pd(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F64x16 Mul16(const F64x16& a, const F64x16& b) {
  return {{_mm512_mul_pd(a.v[0], b.v[0]), _mm512_mul_pd(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F64x16 Div16(const F64x16& a, const F64x16& b) {
  return {{_mm512_div_pd(a.v[0], b.v[0]), _mm512_div_pd(a.v[1], b.v[1])}};
}
BNGRAD_INLINE F64x16 Sqrt16(const F64x16& a) { return {{_mm512_sqrt_pd(a.v[0]), _mm512_sqrt_pd(a.v[1])}}; }
BNGRAD_INLINE F64x16 AddExactProduct16(const F64x16& sum, const F64x16& a, const F64x16& b) {
  return {{_mm512_fmadd_pd(a.v[0], b.v[0], sum.v[0]), _mm512_fmadd_pd(a.v[1], b.v[1], sum.v[1])}};
}

BNGRAD_INLINE F32x16 IfPositive(F32x16 z, F32x16 a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(z.v, _mm512_setzero_ps(), _CMP_GT_OQ), a.v)};
}
BNGRAD_INLINE F64x16 IfPositive(const F64x16& z, const F64x16& a) {
  F64x16 r;
  for (int k = 0; k < 2; ++k) {
    r.v[k] = _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(z.v[k], _mm512_setzero_pd(), _CMP_GT_OQ), a.v[k]);
  }
  return r;
}

BNGRAD_INLINE F32x16 ZeroTail(F32x16 a, All) { return a; }
BNGRAD_INLINE F32x16 ZeroTail(F32x16 a, FirstN n) { return {_mm512_maskz_mov_ps(Mask(n), a.v)}; }
BNGRAD_INLINE F64x16 ZeroTail(const F64x16& a, All) { return a; }
BNGRAD_INLINE F64x16 ZeroTail(const F64x16& a, FirstN n) {
  return {{_mm512_maskz_mov_pd(LowMask(n), a.v[0]), _mm512_maskz_mov_pd(HighMask(n), a.v[1])}};
}

BNGRAD_INLINE F32x16 Blend(F32x16 a, F32x16 b, FirstN n) { return {_mm512_mask_mov_ps(b.v, Mask(n), a.v)}; }
BNGRAD_INLINE F64x16 Blend(const F64x16& a, const F64x16& b, FirstN n) {
  return {{_mm512_mask_mov_pd(b.v[0], LowMask(n), a.v[0]), _mm512_mask_mov_pd(b.v[1], HighMask(n), a.v[1])}};
}

// Lane i of the pair of registers, of which the second has lanes 16 (8) to 31 (15).
BNGRAD_INLINE F32x16 Permuted(F32x16 low, F32x16 high, __m512i lanes) {
  return {_mm512_permutex2var_ps(low.v, lanes, high.v)};
}
BNGRAD_INLINE void Deinterleave(F32x16 low, F32x16 high, F32x16& even, F32x16& odd) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = Permuted(low, high, evens);
  odd = Permuted(low, high, _mm512_add_epi32(evens, _mm512_set1_epi32(1)));
}
BNGRAD_INLINE void Interleave(F32x16 even, F32x16 odd, F32x16& low, F32x16& high) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  low = Permuted(even, odd, first);
  high = Permuted(even, odd, _mm512_add_epi32(first, _mm512_set1_epi32(8)));
}
BNGRAD_INLINE void Deinterleave(const F64x16& low, const F64x16& high, F64x16& even, F64x16& odd) {
  const __m512i evens = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
  const __m512i odds = _mm512_add_epi64(evens, _mm512_set1_epi64(1));
  even = {{_mm512_permutex2var_pd(low.v[0], evens, low.v[1]),
           _mm512_permutex2var_pd(high.v[0], evens, high.v[1])}};
  odd = {
      {_mm512_permutex2var_pd(low.v[0], odds, low.v[1]), _mm512_permutex2var_pd(high.v[0], odds, high.v[1])}};
}
BNGRAD_INLINE void Interleave(const F64x16& even, const F64x16& odd, F64x16& low, F64x16& high) {
  const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(4));
  low = {{_mm512_permutex2var_pd(even.v[0], first, odd.v[0]),
          _mm512_permutex2var_pd(even.v[0], second, odd.v[0])}};
  high = {{_mm512_permutex2var_pd(even.v[1], first, odd.v[1]),
           _mm512_permutex2var_pd(even.v[1], second, odd.v[1])}};
}

BNGRAD_INLINE __m256d SumOfQuarters(const F64x16& a) {
  const __m512d of8 = _mm512_add_pd(a.v[0], a.v[1]);
  return _mm256_add_pd(_mm512_castpd512_pd256(of8), _mm512_extractf64x4_pd(of8, 1));
}

// Past the cache, to a cache line boundary; Fence() before anyone else reads it.
BNGRAD_INLINE void Stream(float* p, F32x16 a) { _mm512_stream_ps(p, a.v); }
BNGRAD_INLINE void Stream(double* p, const F64x16& a) {
  _mm512_stream_pd(p, a.v[0]);
  _mm512_stream_pd(p + 8, a.v[1]);
}
BNGRAD_INLINE void Fence() { _mm_sfence(); }

// float16.
BNGRAD_INLINE F32x16 FromHalf(__m256i bits) { return {_mm512_cvtph_ps(bits)}; }
BNGRAD_INLINE __m256i ToHalf(F32x16 a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// bfloat16: see FromFloat in float16-inl.h.
BNGRAD_INLINE F32x16 FromUpperHalf(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
BNGRAD_INLINE __m256i ToUpperHalf(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

#include "x86.h"
