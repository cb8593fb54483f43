// A thread's floating-point mode: rounding direction, flush to zero, denormals are zero. Worker threads use
// the caller's mode, so that results do not depend on the number of threads.
#pragma once
#if defined(BNGRAD_X86_64)
#include <xmmintrin.h>
#elif defined(BNGRAD_AARCH64)
#include <cstdint>
#else
#include <cfenv>
#endif

namespace bngrad {

// Accesses the control register directly: <cfenv> also handles the x87 unit, which is slow. Exception flags
// are not part of the mode and stay with each thread.
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
  bool operator!=(const FloatMode&) const { return true; }  // there is no standard comparison

 private:
  FloatMode() { std::fegetenv(&environment_); }
  std::fenv_t environment_;
};

#endif

// Sets the mode of this thread for the lifetime of the object.
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
