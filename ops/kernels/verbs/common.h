// Definitions that all sets of verbs share. Included first by each <isa>.cc, inside bngrad::<isa> and an
// unnamed namespace.

// GCC stops to inline at some size of the caller, and would then pass vectors in memory: each verb, and each
// small function on top of them, is part of the loop that calls it. Builds that are not for speed leave it
// out.
#if !defined(BNGRAD_FORCE_INLINE)
#define BNGRAD_INLINE inline
#define BNGRAD_INLINE_LAMBDA
#elif defined(_MSC_VER) && !defined(__clang__)
#define BNGRAD_INLINE __forceinline
#define BNGRAD_INLINE_LAMBDA
#else
#define BNGRAD_INLINE inline __attribute__((always_inline))
#define BNGRAD_INLINE_LAMBDA __attribute__((always_inline))
#endif

// Loops over registers, which must not stay loops.
#if defined(__clang__)
#define BNGRAD_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define BNGRAD_UNROLL _Pragma("GCC unroll 16")
#else
#define BNGRAD_UNROLL
#endif

// Which of 16 lanes a load or a store touches; a load makes the others zero.
struct All {};
struct FirstN {
  int64_t n;
};

// The address of p[i], whether the array has that element or not.
template <class T>
BNGRAD_INLINE T* AddressOf(T* p, int64_t i) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(i) * sizeof(T));
}
