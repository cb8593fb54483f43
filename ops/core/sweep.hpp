// Runs an op over all of X: sums per channel, factors computed from the sums, then a map over the elements. A
// Program defines what is summed and computed; Sweep decides the order, the threads and the memory.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

// Channels [first, first + count) of a tile, and the tile's scratch memory. Sum k or factor k of the tile's
// channel c is at index k*width + c.
struct Channels {
  int64_t first, count, width;
  const double* sums;  // of the step that Finish is called for
  double* center;      // subtracted from X in the next step
  void* factors;       // of the map, in the arithmetic type

  double Sum(int k, int64_t c) const { return sums[k * width + c]; }
  template <class Arithmetic>
  void SetFactor(int k, int64_t c, double value) const {
    static_cast<Arithmetic*>(factors)[k * width + c] = static_cast<Arithmetic>(value);
  }
};

// A number as high + low, see MapKind. The low part of an infinity is 0, not NaN.
template <class Arithmetic>
struct Split {
  explicit Split(double value) : high(static_cast<Arithmetic>(value)), low(value - high) {
    if (!std::isfinite(high)) low = 0;
  }
  double high, low;
};

// An op: a sequence of summing steps, then a map. Called from several threads, for different tiles.
class Program {
 public:
  virtual ~Program() = default;
  virtual int steps() const = 0;
  virtual SumKind sum(int step) const = 0;
  virtual MapKind map() const = 0;
  // True if the factors are complete after Begin: then elements are mapped right after they are summed.
  virtual bool fuses_map() const { return false; }
  // Before the first step.
  virtual void Begin(const Channels& channels) const = 0;
  // After each step.
  virtual void Finish(int step, const Channels& channels) const = 0;
};

struct Operands {
  ElementType type;
  const void* inputs[kMaxInputs];  // in the order of SumKind; null if no step reads it
  void* outputs[kMaxOutputs];      // null: not computed
};

void Sweep(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program,
           Parallel& parallel);

// Sweep with the instance of a program template for the arithmetic type of the operands.
template <template <class Arithmetic> class ProgramOf, class Arguments>
void SweepWith(const Layout& layout, const KernelTable& table, const Operands& operands,
               const Arguments& arguments, Parallel& parallel) {
  if (operands.type == ElementType::kDouble) {
    Sweep(layout, table, operands, ProgramOf<double>(layout, arguments), parallel);
  } else {
    Sweep(layout, table, operands, ProgramOf<float>(layout, arguments), parallel);
  }
}

}  // namespace bngrad
