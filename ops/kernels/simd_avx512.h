// The verbs on AVX-512F, and what newer CPUs have for bfloat16 where the flags have it (see table-inl.h).
// Included inside bngrad::avx512 or bngrad::avx512_bf16 and an unnamed namespace.

#include "address-inl.h"

struct All {};
struct First {
  int64_t n;
};

struct F32x16 {
  __m512 v;
};
struct F64x16 {
  __m512d v[2];
};

inline __mmask16 Mask(First first) { return static_cast<__mmask16>((1u << first.n) - 1); }
inline __mmask8 LowMask(First first) { return static_cast<__mmask8>(Mask(first)); }
inline __mmask8 HighMask(First first) { return static_cast<__mmask8>(Mask(first) >> 8); }

inline F32x16 Load(const float* p, All) { return {_mm512_loadu_ps(p)}; }
inline F32x16 Load(const float* p, First n) { return {_mm512_maskz_loadu_ps(Mask(n), p)}; }
inline F64x16 Load(const double* p, All) { return {{_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}}; }
inline F64x16 Load(const double* p, First n) {
  return {{_mm512_maskz_loadu_pd(LowMask(n), p), _mm512_maskz_loadu_pd(HighMask(n), AddressOf(p, 8))}};
}

inline F64x16 Widen(const float* p, All) {
  return {{_mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p + 8))}};
}
inline void Convert(F32x16 from, F64x16& to) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(from.v), 1));
  to = {{_mm512_cvtps_pd(_mm512_castps512_ps256(from.v)), _mm512_cvtps_pd(high)}};
}
inline F64x16 Widen(const float* p, First n) {
  F64x16 r;
  Convert(Load(p, n), r);
  return r;
}
inline void Convert(const F64x16& from, F64x16& to) { to = from; }
inline void Convert(const F64x16& from, F32x16& to) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps(from.v[0])));
  to.v = _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps(from.v[1])), 1));
}
template <class Count>
F64x16 Widen(const double* p, Count count) {
  return Load(p, count);
}

inline void Store(float* p, F32x16 a, All) { _mm512_storeu_ps(p, a.v); }
inline void Store(float* p, F32x16 a, First n) { _mm512_mask_storeu_ps(p, Mask(n), a.v); }
inline void Store(double* p, const F64x16& a, All) {
  _mm512_storeu_pd(p, a.v[0]);
  _mm512_storeu_pd(p + 8, a.v[1]);
}
inline void Store(double* p, const F64x16& a, First n) {
  _mm512_mask_storeu_pd(p, LowMask(n), a.v[0]);
  _mm512_mask_storeu_pd(AddressOf(p, 8), HighMask(n), a.v[1]);
}

inline F32x16 Broadcast16(float s) { return {_mm512_set1_ps(s)}; }
inline F32x16 Add16(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 Sub16(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 Mul16(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }

inline F64x16 Broadcast16(double s) { return {{_mm512_set1_pd(s), _mm512_set1_pd(s)}}; }
inline F64x16 Add16(const F64x16& a, const F64x16& b) {
  return {{_mm512_add_pd(a.v[0], b.v[0]), _mm512_add_pd(a.v[1], b.v[1])}};
}
inline F64x16 Sub16(const F64x16& a, const F64x16& b) {
  return {{_mm512_sub_pd(a.v[0], b.v[0]), _mm512_sub_pd(a.v[1], b.v[1])}};
}
inline F64x16 Mul16(const F64x16& a, const F64x16& b) {
  return {{_mm512_mul_pd(a.v[0], b.v[0]), _mm512_mul_pd(a.v[1], b.v[1])}};
}
inline F64x16 AddExactProduct16(const F64x16& sum, const F64x16& a, const F64x16& b) {
  return {{_mm512_fmadd_pd(a.v[0], b.v[0], sum.v[0]), _mm512_fmadd_pd(a.v[1], b.v[1], sum.v[1])}};
}

inline F32x16 IfPositive(F32x16 z, F32x16 a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(z.v, _mm512_setzero_ps(), _CMP_GT_OQ), a.v)};
}
inline F64x16 IfPositive(const F64x16& z, const F64x16& a) {
  F64x16 r;
  for (int k = 0; k < 2; ++k) {
    r.v[k] = _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(z.v[k], _mm512_setzero_pd(), _CMP_GT_OQ), a.v[k]);
  }
  return r;
}

inline F32x16 Keep(F32x16 a, All) { return a; }
inline F32x16 Keep(F32x16 a, First n) { return {_mm512_maskz_mov_ps(Mask(n), a.v)}; }
inline F64x16 Keep(const F64x16& a, All) { return a; }
inline F64x16 Keep(const F64x16& a, First n) {
  return {{_mm512_maskz_mov_pd(LowMask(n), a.v[0]), _mm512_maskz_mov_pd(HighMask(n), a.v[1])}};
}

inline F32x16 Blend(F32x16 a, F32x16 b, First n) { return {_mm512_mask_mov_ps(b.v, Mask(n), a.v)}; }
inline F64x16 Blend(const F64x16& a, const F64x16& b, First n) {
  return {{_mm512_mask_mov_pd(b.v[0], LowMask(n), a.v[0]), _mm512_mask_mov_pd(b.v[1], HighMask(n), a.v[1])}};
}

inline __m256d SumOfQuarters(const F64x16& a) {
  const __m512d of8 = _mm512_add_pd(a.v[0], a.v[1]);
  return _mm256_add_pd(_mm512_castpd512_pd256(of8), _mm512_extractf64x4_pd(of8, 1));
}

// Past the cache, to a cache line boundary; Fence() before anyone else reads it.
inline void Stream(float* p, F32x16 a) { _mm512_stream_ps(p, a.v); }
inline void Stream(double* p, const F64x16& a) {
  _mm512_stream_pd(p, a.v[0]);
  _mm512_stream_pd(p + 8, a.v[1]);
}
inline void Fence() { _mm_sfence(); }

// float16.
inline F32x16 FromHalf(__m256i bits) { return {_mm512_cvtph_ps(bits)}; }
inline __m256i ToHalf(F32x16 a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// bfloat16: see FromFloat in float16-inl.h.
inline __m512i RoundedUpperHalf(__m512i bits) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  return _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
}
#if defined(__AVX512BF16__)
// One instruction instead of two: bytes 2k and 2k+1 become the upper ones of lane k (measured, two threads:
// 8x512x14x14 1.10, 8x512x7x7 1.09, 32x512x28x28 1.01 times as fast).
inline F32x16 FromUpperHalf(__m256i bits) {
  const __m512i from = _mm512_setr_epi32(
      0x01000000, 0x03020000, 0x05040000, 0x07060000, 0x09080000, 0x0b0a0000, 0x0d0c0000, 0x0f0e0000,
      0x11100000, 0x13120000, 0x15140000, 0x17160000, 0x19180000, 0x1b1a0000, 0x1d1c0000, 0x1f1e0000);
  constexpr __mmask64 kUpper = 0xcccccccccccccccc;
  return {_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(kUpper, from, _mm512_castsi256_si512(bits)))};
}
// One instruction, which makes zeros of subnormal numbers (by Intel's manual, and on Zen 5): they are rare,
// and zeros, which have no exponent either, are looked for first (measured, without: 8x512x14x14 0.94).
inline __m256i ToUpperHalf(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m256i upper = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v));
  const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  if (small == 0) return upper;
  const __mmask16 subnormal = _mm512_mask_test_epi32_mask(small, bits, _mm512_set1_epi32(0x7fffff));
  if (subnormal == 0) return upper;
  const __m512i all = _mm512_cvtepu16_epi32(upper);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(all, subnormal, RoundedUpperHalf(bits)));
}
#else
inline F32x16 FromUpperHalf(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline __m256i ToUpperHalf(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v), upper = _mm512_srli_epi32(bits, 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(RoundedUpperHalf(bits), nan, upper, _mm512_set1_epi32(0x40)));
}
#endif

#include "simd_16bit.h"
#include "simd_prefetch.h"
#include "simd_sums.h"
