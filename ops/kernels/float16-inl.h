// The 16-bit types in plain C++, bit for bit what the vector units do. Included inside an unnamed namespace,
// after <cstring>. Nothing here makes or reads a float that is denormal where the value is not: threads may
// be set to flush those to zero.

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float ToFloat(float value) { return value; }

inline float ToFloat(Float16 half) {
  constexpr uint32_t kRebias = (127 - 15) << 23, kQuiet = 1u << 22;
  const uint32_t sign = (half.bits & 0x8000u) << 16, magnitude = half.bits & 0x7fffu;
  uint32_t bits = (magnitude << 13) + kRebias;
  if (magnitude < 0x0400) {  // zero, denormal
    bits = BitsOf(static_cast<float>(magnitude) * 0x1p-24f);
  } else if (magnitude >= 0x7c00) {  // infinity, NaN
    bits += kRebias;
    if (magnitude > 0x7c00) bits |= kQuiet;
  }
  return FloatOf(sign | bits);
}

inline float ToFloat(BFloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }

inline void FromFloat(float value, float* to) { *to = value; }

inline void FromFloat(float value, Float16* to) {
  const uint32_t sign = BitsOf(value) >> 16 & 0x8000u, magnitude = BitsOf(value) & 0x7fffffffu;
  uint32_t bits;
  if (magnitude > 0x7f800000u) {  // NaN
    bits = 0x7e00 | (magnitude >> 13 & 0x1ff);
  } else if (magnitude >= 0x47800000u) {  // 2^16 and more
    bits = 0x7c00;
  } else if (magnitude < 0x38800000u) {  // below 2^-14; the last bit of 0.5 + such a number is worth 2^-24
    bits = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  } else {  // from 65520 on the carry makes infinity
    bits = (magnitude - ((127u - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  to->bits = static_cast<uint16_t>(sign | bits);
}

inline void FromFloat(float value, BFloat16* to) {
  const uint32_t bits = BitsOf(value);
  // Rounding the bits of a NaN could carry into infinity or zero.
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = static_cast<uint16_t>(rounded);
}
