#include "core/cpu_features.hpp"

#include <cstdint>

#if defined(BNGRAD_X86_64)
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace bngrad {

#if defined(BNGRAD_X86_64)
namespace {

struct Registers {
  uint32_t eax, ebx, ecx, edx;
};

// All zero if the CPU does not have the leaf.
Registers CpuId(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r = {};
#if defined(_MSC_VER) && !defined(__clang__)
  int v[4];
  __cpuid(v, 0);
  if (static_cast<uint32_t>(v[0]) < leaf) return r;
  __cpuidex(v, static_cast<int>(leaf), static_cast<int>(subleaf));
  r = {static_cast<uint32_t>(v[0]), static_cast<uint32_t>(v[1]), static_cast<uint32_t>(v[2]),
       static_cast<uint32_t>(v[3])};
#else
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
#endif
  return r;
}

// True if the operating system saves these register states (bits of XCR0) at a context switch.
bool SystemSaves(uint32_t parts) {
  constexpr uint32_t kOsxsave = 1u << 27;
  if ((CpuId(1).ecx & kOsxsave) == 0) return false;
#if defined(_MSC_VER) && !defined(__clang__)
  const uint32_t saved = static_cast<uint32_t>(_xgetbv(0));
#else
  uint32_t saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
#endif
  return (saved & parts) == parts;
}

constexpr uint32_t kXmmYmm = 0x6;          // SSE and AVX state
constexpr uint32_t kZmm = kXmmYmm | 0xe0;  // and opmask, upper halves, upper sixteen

}  // namespace

bool CpuHasAvx2() {
  constexpr uint32_t kFmaF16c = 1u << 12 | 1u << 29, kAvx2 = 1u << 5;
  return SystemSaves(kXmmYmm) && (CpuId(1).ecx & kFmaF16c) == kFmaF16c && (CpuId(7).ebx & kAvx2) != 0;
}

// macOS saves the state of AVX-512 from a thread's first use on, so that SystemSaves says no before: it gets
// AVX2, which gives the same bits.
bool CpuHasAvx512() {
#if defined(_MSC_VER) && !defined(__clang__)
  // /arch:AVX512 lets the compiler use DQ, CD, BW and VL, too.
  constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
#else
  constexpr uint32_t kAvx512 = 1u << 16;  // F
#endif
  return CpuHasAvx2() && SystemSaves(kZmm) && (CpuId(7).ebx & kAvx512) == kAvx512;
}

#else

bool CpuHasAvx2() { return false; }
bool CpuHasAvx512() { return false; }

#endif

}  // namespace bngrad
