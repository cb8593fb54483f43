// Adding up lanes, for AVX2 and AVX-512, from where four sums are left of them: lanes i, i+4, i+8 and i+12 of
// each are added by SumOfQuarters(a). Included inside bngrad::<isa> and an unnamed namespace.

inline double SumOfLanes(const F64x16& a) {
  const __m256d of4 = SumOfQuarters(a);
  const __m128d of2 = _mm_add_pd(_mm256_castpd256_pd128(of4), _mm256_extractf128_pd(of4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(of2, _mm_unpackhi_pd(of2, of2)));
}

inline void AddSumsOfLanes4(double* sums, const double* lanes, int64_t stride) {
  __m256d of4[4], of2[2];
  for (int k = 0; k < 4; ++k) of4[k] = SumOfQuarters(Load(lanes + k * stride, All{}));
  for (int k = 0; k < 2; ++k) {  // of vectors k and k + 2
    const __m256d low = _mm256_permute2f128_pd(of4[k], of4[k + 2], 0x20);
    of2[k] = _mm256_add_pd(low, _mm256_permute2f128_pd(of4[k], of4[k + 2], 0x31));
  }
  const __m256d of1 = _mm256_add_pd(_mm256_unpacklo_pd(of2[0], of2[1]), _mm256_unpackhi_pd(of2[0], of2[1]));
  _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), of1));
}
