// Addresses outside an array, which pointer arithmetic may not make. Included by the verbs' files, inside
// bngrad::<isa> and an unnamed namespace.

// The address of p[i], whether the array has that element or not.
template <class T>
T* AddressOf(T* p, int64_t i) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(i) * sizeof(T));
}
