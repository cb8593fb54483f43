#include "core/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <iterator>

#include "core/cpu_features.hpp"
#include "core/error.hpp"

namespace bngrad {

#define BNGRAD_KERNELS(isa, supported) \
  namespace isa {                      \
  extern const KernelTable kTable;     \
  }
#include "kernels/kernels.inc"
#undef BNGRAD_KERNELS

namespace {

const Isa kIsas[] = {
#define BNGRAD_KERNELS(isa, supported) {#isa, [] { return supported; }, &isa::kTable},
#include "kernels/kernels.inc"
#undef BNGRAD_KERNELS
};

const Isa& Choose() {
  const char* const forced = std::getenv(kIsaVariable);
  std::string names;
  for (const Isa& isa : kIsas) {
    if (forced == nullptr ? isa.supported() : std::string(forced) == isa.name) {
      if (isa.supported()) return isa;
      throw InvalidArgument(std::string(kIsaVariable) + "=" + forced +
                            " is not supported by this CPU or operating system; unset it to use the best "
                            "supported instruction set");
    }
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw InvalidArgument(std::string(kIsaVariable) + "=" + forced + " is unknown; expected one of " + names);
}

}  // namespace

int IsaCount() { return static_cast<int>(std::size(kIsas)); }

const Isa& IsaAt(int i) { return kIsas[i]; }

const Isa& ActiveIsa() {
  // An atomic, not a guarded static: see Pool::Instance. Concurrent first calls select the same.
  static std::atomic<const Isa*> active{nullptr};
  if (active == nullptr) active = &Choose();
  return *active;
}

}  // namespace bngrad
