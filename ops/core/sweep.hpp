// Runs the phases of an op over all of X: sums per channel, numbers made of them, output elements for each
// element. What is summed and made is the Program's business, where and by whom is the Sweep's.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

// Channels [first, first + count) of a tile, and its scratch. Quantity k of the tile's channel c is at
// k*width + c in sums and factors.
struct Channels {
  int64_t first, count, width;
  const double* sums;  // of the step that Finish is called for
  double* center;      // what the next step subtracts from X
  void* factors;       // for the map, in the arithmetic type

  double Sum(int k, int64_t c) const { return sums[k * width + c]; }
  template <class Arithmetic>
  void SetFactor(int k, int64_t c, double value) const {
    static_cast<Arithmetic*>(factors)[k * width + c] = static_cast<Arithmetic>(value);
  }
};

// A number in two parts, see MapKind. One that is infinite has no low part: it would be NaN.
template <class Arithmetic>
struct Split {
  explicit Split(double value) : high(static_cast<Arithmetic>(value)), low(value - high) {
    if (!std::isfinite(high)) low = 0;
  }
  double high, low;
};

// An op as a sequence of steps that sum, and at most one map. Called from several threads, for different
// tiles.
class Program {
 public:
  virtual ~Program() = default;
  virtual int steps() const = 0;
  virtual SumKind sum(int step) const = 0;
  virtual MapKind map() const = 0;
  // Whether Begin has made all that the map needs: then elements are mapped right after they are summed.
  virtual bool maps_at_once() const { return false; }
  // Before the first step.
  virtual void Begin(const Channels& channels) const = 0;
  // After each step.
  virtual void Finish(int step, const Channels& channels) const = 0;
};

struct Operands {
  ElementType type;
  const void* inputs[kMaxInputs];  // in the order of SumKind; null where no step needs it
  void* outputs[kMaxOutputs];      // null: not wanted
};

void Sweep(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program,
           Parallel& parallel);

}  // namespace bngrad
