// Selects the kernels: the best instruction set that this machine supports, or the one named by BNGRAD_ISA.
#pragma once
#include <string>

#include "kernels/kernel.h"

namespace bngrad {

struct Isa {
  const char* name;
  bool (*supported)();
  const KernelTable* table;
};

constexpr const char* kIsaVariable = "BNGRAD_ISA";

// The instruction sets compiled in, best first. The last one, scalar, runs on any machine.
int IsaCount();
const Isa& IsaAt(int i);

// The selection is made at the first successful call and kept. Throws InvalidArgument if BNGRAD_ISA is
// unknown or unsupported on this machine: an explicit choice is never replaced silently.
const Isa& ActiveIsa();

}  // namespace bngrad
