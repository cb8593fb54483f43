// One random call of bngrad_adam_update, valid or not, checked against the formula in double.
#pragma once
#include <vector>

#include "fuzz_buffer.hpp"

// Returns a digest of the outputs, which must be the same on every instruction set; calls fail(what) if
// something is wrong.
template <class Fail>
uint64_t FuzzAdamUpdate(Random& random, const Fail& fail) {
  const int32_t type = random.OneIn(2) ? BNGRAD_FLOAT : BNGRAD_DOUBLE;
  const int64_t count = random.OneIn(50) ? 40000 + random.Below(10000) : random.Below(100);
  constexpr int kCoefficients = 9, kInputs = 4, kArrays = 7;
  double c[kCoefficients];
  for (double& coefficient : c) coefficient = static_cast<float>(0.1 + random.From0To1());
  std::vector<Buffer> arrays;
  void* p[kArrays];
  for (int k = 0; k < kArrays; ++k) {
    arrays.emplace_back(static_cast<size_t>(count) * SizeOf(type),
                        SizeOf(type) * static_cast<size_t>(random.OneIn(2) ? 0 : random.Below(33)));
    // The average of squares is not negative.
    for (int64_t i = 0; k < kInputs && i < count; ++i)
      Put(arrays.back().data(), type, i, 2 * random.From0To1() - (k == 3 ? 0 : 1));
    p[k] = k >= kInputs && random.OneIn(8) ? nullptr : arrays.back().data();
  }
  const int fault = count == 0 ? 0 : static_cast<int>(random.Below(10));
  const double* coefficients = c;
  int32_t called_type = type;
  int64_t called_count = count;
  if (fault == 1) p[random.Below(kInputs)] = nullptr;
  if (fault == 2) p[random.Below(kInputs)] = arrays[0].data() + 1;
  if (fault == 3) p[kInputs + random.Below(kArrays - kInputs)] = p[random.Below(kInputs)];
  if (fault == 4) coefficients = nullptr;
  if (fault == 5) called_type = random.OneIn(2) ? BNGRAD_FLOAT16 : static_cast<int32_t>(random.Below(9)) + 2;
  if (fault == 6) called_count = random.OneIn(2) ? -count : INT64_MAX - count;
  const int32_t status =
      bngrad_adam_update(called_count, called_type, coefficients, p[0], p[1], p[2], p[3], p[4], p[5], p[6],
                         static_cast<int32_t>(random.Below(6)) - 1, nullptr, 0);
  const bool valid = fault == 0 || fault > 6;
  if (status != (valid ? BNGRAD_OK : BNGRAD_INVALID_ARGUMENT)) fail("bngrad_adam_update: wrong status");
  uint64_t digest = 0xcbf29ce484222325u;
  for (int k = 0; k < kArrays; ++k) {
    const Buffer& array = arrays[static_cast<size_t>(k)];
    if (!array.MarginsIntact()) fail("bngrad_adam_update wrote around an array");
    if (k < kInputs) continue;
    if ((!valid || p[k] == nullptr) && !array.Untouched()) fail("bngrad_adam_update wrote, but was not to");
    for (size_t i = 0; i < array.size(); ++i) digest = (digest ^ array.data()[i]) * 0x100000001b3u;
  }
  for (int64_t i = 0; valid && i < count; ++i) {
    const auto at = [&](int k) { return Get(arrays[static_cast<size_t>(k)].data(), type, i); };
    const double g = at(1) * c[0] + c[1] * at(0), m = at(2) + c[3] * (g - at(2));
    const double v = c[4] * at(3) + c[5] * g * g, step = c[6] * m / (std::sqrt(v) / c[7] + c[8]);
    const double expected[] = {at(0) * c[2] - step, m, v};
    for (int k = 0; k < kArrays - kInputs; ++k) {
      // Terms of at most 2, and quotients of at most 60: epsilon is 0.1 or more.
      const bool right = std::abs(at(kInputs + k) - expected[k]) <= 1000 * UnitOf(type);
      if (p[kInputs + k] != nullptr && !right) return fail("bngrad_adam_update: a value is wrong"), digest;
    }
  }
  return digest;
}
