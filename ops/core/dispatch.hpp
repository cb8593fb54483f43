// Which kernels run: the best that this machine has, or the ones that BNGRAD_ISA names.
#pragma once
#include <string>

#include "kernels/kernel.h"

namespace bngrad {

struct Isa {
  const char* name;
  bool (*supported)();
  bool (*best)();  // of those that are, on this CPU
  const KernelTable* table;
};

constexpr const char* kIsaVariable = "BNGRAD_ISA";

// Those compiled in, best first; the last one runs anywhere.
int IsaCount();
const Isa& IsaAt(int i);

// Decided at the first call that finds one, by the environment. Throws InvalidArgument when BNGRAD_ISA names
// none, or one that this machine cannot run: a forced choice is never replaced silently.
const Isa& ActiveIsa();

}  // namespace bngrad
