// For AMD's Zen 4, which has the instructions of AVX-512 and units of 256 bits, and converts eight floats in
// one instruction more slowly than in two. Included by an <isa>.cc after the verbs of AVX-512, with VL and
// FMA, inside bngrad::<isa> and an unnamed namespace.

// 16 doubles that long rows are summed in (measured, sums alone, with the additions below: 8x32x3136 1.25
// times as fast). Twice as many instructions reach half as far ahead, so that what nobody has asked for is
// waited for: short rows are 1.03 to 1.08 times as fast in the second level, and 0.92 in the last; 1x512x49
// 0.86, columns 0.9.
struct F64Quarters {
  __m256d v[4];
};

inline __mmask8 QuarterMask(First first, int k) { return static_cast<__mmask8>(Mask(first) >> 4 * k & 15); }

inline void Fetch(const float* p, All, F64Quarters& to) {
  for (int k = 0; k < 4; ++k) to.v[k] = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k));
}
inline void Fetch(const float* p, First n, F64Quarters& to) {
  for (int k = 0; k < 4; ++k)
    to.v[k] = _mm256_cvtps_pd(_mm_maskz_loadu_ps(QuarterMask(n, k), AddressOf(p, 4 * k)));
}
// Elements of 16 bits.
template <class T, class Count>
void Fetch(const T* p, Count count, F64Quarters& to) {
  const F32x16 a = Load(p, count);
  to = {{_mm256_cvtps_pd(_mm512_castps512_ps128(a.v)), _mm256_cvtps_pd(_mm512_extractf32x4_ps(a.v, 1)),
         _mm256_cvtps_pd(_mm512_extractf32x4_ps(a.v, 2)), _mm256_cvtps_pd(_mm512_extractf32x4_ps(a.v, 3))}};
}

inline void Convert(const F64x16& from, F64Quarters& to) {
  for (int k = 0; k < 2; ++k) {
    to.v[2 * k] = _mm512_castpd512_pd256(from.v[k]);
    to.v[2 * k + 1] = _mm512_extractf64x4_pd(from.v[k], 1);
  }
}
inline void Convert(const F64Quarters& from, F64x16& to) {
  for (int k = 0; k < 2; ++k) {
    to.v[k] = _mm512_insertf64x4(_mm512_castpd256_pd512(from.v[2 * k]), from.v[2 * k + 1], 1);
  }
}

inline F64Quarters Add16(const F64Quarters& a, const F64Quarters& b) {
  F64Quarters r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_add_pd(a.v[k], b.v[k]);
  return r;
}
inline F64Quarters Sub16(const F64Quarters& a, const F64Quarters& b) {
  F64Quarters r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_sub_pd(a.v[k], b.v[k]);
  return r;
}
inline F64Quarters Mul16(const F64Quarters& a, const F64Quarters& b) {
  F64Quarters r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_mul_pd(a.v[k], b.v[k]);
  return r;
}
inline F64Quarters AddExactProduct16(const F64Quarters& sum, const F64Quarters& a, const F64Quarters& b) {
  F64Quarters r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_fmadd_pd(a.v[k], b.v[k], sum.v[k]);
  return r;
}

// Conversions take the units that add; those that multiply add a*1, with the same bits (measured, the op:
// short rows 1.01 to 1.06, 16 bits in the caches 1.03 to 1.04; sums of columns alone 1.0 to 1.08 times as
// fast; double 0.99 to 1.0).
inline F64x16 AddTerm16(const F64x16& sum, const F64x16& a) {
  return AddExactProduct16(sum, a, Broadcast16(1.0));
}
inline F32x16 AddTerm16(const F32x16& sum, const F32x16& a) {
  return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(1.0F), sum.v)};
}
inline F64Quarters AddTerm16(const F64Quarters& sum, const F64Quarters& a) {
  const __m256d one = _mm256_set1_pd(1.0);
  return AddExactProduct16(sum, a, {{one, one, one, one}});
}

inline F64Quarters IfPositive(const F64Quarters& z, const F64Quarters& a) {
  F64Quarters r;
  for (int k = 0; k < 4; ++k) {
    r.v[k] = _mm256_maskz_mov_pd(_mm256_cmp_pd_mask(z.v[k], _mm256_setzero_pd(), _CMP_GT_OQ), a.v[k]);
  }
  return r;
}
inline F64Quarters Keep(const F64Quarters& a, All) { return a; }
inline F64Quarters Keep(const F64Quarters& a, First n) {
  F64Quarters r;
  for (int k = 0; k < 4; ++k) r.v[k] = _mm256_maskz_mov_pd(QuarterMask(n, k), a.v[k]);
  return r;
}

// The type of the terms of long rows, for that of all others.
template <class Term, class T>
struct OfLongRows {
  using Type = Term;
};
template <class T>
struct OfLongRows<F64x16, T> {
  using Type = F64Quarters;
};
template <>
struct OfLongRows<F64x16, double> {
  using Type = F64x16;
};

// Rows of columns that are mapped together in the caches: the factors of a single one are most of what is
// loaded (measured, maps alone: 392x256 1.2, 392x512 1.1, 98x2048 1.4, 196x1024 0.95 times as fast; four
// together 1568x128 1.05, 392x512 0.9, 196x1024 0.85 times as fast as two).
constexpr int kMapRows = 2;

// Bytes of a factor of all columns from which rows are mapped some together past the caches, and whether
// there are registers for the factors of narrow ones (maps_of_columns-inl.h).
constexpr int64_t kWideRow = 4096;
constexpr bool kHoldsFactors = true;

// Whether it is minded where arrays and rows lie in their pages (alignment-inl.h).
constexpr bool kPlacesMatter = true;

// The level of the cache that elements of rows are asked to, and of wide columns: to the nearest so many are
// on their way at once as it has buffers, and what is asked for takes the room of what is used (measured
// beside 1, two threads, arrays at the same place of a page and at others: 32x1024x196 1.12 to 1.16,
// 32x256x784 1.16 to 1.19, 32x512x784 1.16, 8x256x3136 1.12 to 1.20, 32x64x3136 1.09 to 1.11, 32x2048x49 1.02
// to 1.04, 32x128x784 0.97 to 1.01, double 1.01 to 1.17; in the caches 0.97 to 1.0; half, twice and four
// times as far ahead 0.95 to 1.02; columns of 128 0.8). Of 16 bits, which are half as many bytes, 0.92
// to 1.02.
template <class T>
constexpr int kAskLevel = sizeof(T) < sizeof(float) ? 1 : 2;
