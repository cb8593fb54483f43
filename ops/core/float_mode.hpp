// How a thread rounds and whether it treats subnormal numbers as zeros. Other threads must do as the caller
// does, or results would depend on their number.
#pragma once
#if defined(BNGRAD_X86_64)
#include <xmmintrin.h>
#elif defined(BNGRAD_AARCH64)
#include <cstdint>
#else
#include <cfenv>
#endif

namespace bngrad {

// By the register itself: <cfenv> also reads and writes the old floating-point unit's, which takes ten times
// as long. The flags of exceptions that arithmetic has raised stay with the thread that raised them.
#if defined(BNGRAD_X86_64)

class FloatMode {
 public:
  static FloatMode OfThread() { return FloatMode(_mm_getcsr() & ~kFlags); }
  void Use() const { _mm_setcsr(control_ | (_mm_getcsr() & kFlags)); }
  bool operator!=(const FloatMode& other) const { return control_ != other.control_; }

 private:
  static constexpr unsigned kFlags = 0x3f;
  explicit FloatMode(unsigned control) : control_(control) {}
  unsigned control_;
};

#elif defined(BNGRAD_AARCH64)

class FloatMode {
 public:
  static FloatMode OfThread() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return FloatMode(control);
  }
  void Use() const { asm volatile("msr fpcr, %0" : : "r"(control_) : "memory"); }
  bool operator!=(const FloatMode& other) const { return control_ != other.control_; }

 private:
  explicit FloatMode(uint64_t control) : control_(control) {}
  uint64_t control_;
};

#else

class FloatMode {
 public:
  static FloatMode OfThread() { return FloatMode(); }
  void Use() const { std::fesetenv(&environment_); }
  bool operator!=(const FloatMode&) const { return true; }  // no standard function compares them

 private:
  FloatMode() { std::fegetenv(&environment_); }
  std::fenv_t environment_;
};

#endif

// Another thread's mode in this thread, while the object lives.
class ScopedFloatMode {
 public:
  explicit ScopedFloatMode(const FloatMode& mode) : own_(FloatMode::OfThread()), differs_(own_ != mode) {
    if (differs_) mode.Use();
  }
  ~ScopedFloatMode() {
    if (differs_) own_.Use();
  }
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;

 private:
  const FloatMode own_;
  const bool differs_;
};

}  // namespace bngrad
