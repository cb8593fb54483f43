#include "core/depthwise.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/small_buffer.hpp"
#include "kernels/tuning.h"

namespace bngrad {
namespace {

int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The phases of a padded plane, with room for what windows meet and for what vectors read after them.
struct Phases {
  PhaseLayout layout;
  int64_t elements;
};

// The phases of a dimension that windows meet, and the elements of one of them.
int64_t PhasesMet(const WindowAxis& axis) {
  return std::min(axis.stride, (axis.kernel - 1) * axis.dilation + 1);
}
int64_t PhaseLength(const WindowAxis& axis) {
  const int64_t of_data = (axis.begin + axis.size - 1) / axis.stride + 1;
  return std::max(of_data, axis.out + (axis.kernel - 1) * axis.dilation / axis.stride);
}

Phases MakePhases(PhaseLayout layout, int64_t rows, int64_t columns) {
  layout.row_stride = columns;
  layout.column_phase = rows * columns + kLanes;
  layout.row_phase = layout.column_phases * layout.column_phase;
  return {layout, layout.row_phases * layout.row_phase + kLanes};
}

// X by the phases of the strides, so that a kernel element meets contiguous elements.
Phases DataPhases(const DepthwiseShape& s) {
  const WindowAxis &r = s.rows, &c = s.columns;
  return MakePhases(
      {r.size, c.size, r.begin, c.begin, r.stride, c.stride, PhasesMet(r), PhasesMet(c), 0, 0, 0},
      PhaseLength(r), PhaseLength(c));
}

// Where the first element of a phase's windows meets it, for each kernel element.
std::vector<int64_t> DataOffsets(const DepthwiseShape& s, const PhaseLayout& layout) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < s.rows.kernel; ++i) {
    for (int64_t j = 0; j < s.columns.kernel; ++j) {
      const int64_t row = i * s.rows.dilation, column = j * s.columns.dilation;
      offsets.push_back(row % layout.row_step * layout.row_phase + row / layout.row_step * layout.row_stride +
                        column % layout.column_step * layout.column_phase + column / layout.column_step);
    }
  }
  return offsets;
}

// Runs of planes, each a task with scratch memory of its own. Planes are independent of each other, so the
// number of tasks changes no result.
class PlaneTasks {
 public:
  PlaneTasks(Parallel& parallel, int64_t planes, int64_t work_of_plane)
      : parallel_(parallel), planes_(planes) {
    single_thread_ = planes * work_of_plane < kSingleThreadElements;
    const int64_t most = single_thread_ ? 1 : kTasksPerThread * static_cast<int64_t>(parallel.threads());
    of_task_ = Quotient(std::max<int64_t>(planes, 1), std::max<int64_t>(1, std::min(planes, most)));
    tasks_ = Quotient(planes, of_task_);
  }

  int64_t tasks() const { return tasks_; }

  // Calls body(task, first, last).
  template <class Body>
  void Run(const Body& body) const {
    ForEach(parallel_, single_thread_, tasks_,
            [&](int64_t task) { body(task, task * of_task_, std::min(planes_, (task + 1) * of_task_)); });
  }

 private:
  Parallel& parallel_;
  const int64_t planes_;
  bool single_thread_;
  int64_t of_task_, tasks_;
};

// `elements` values for each task.
template <class T>
class TaskScratch {
 public:
  // Throws std::bad_alloc.
  TaskScratch(const PlaneTasks& tasks, int64_t elements) : elements_(elements) {
    buffer_.Allocate(static_cast<size_t>(tasks.tasks() * elements));
  }
  T* Zeros(int64_t task) {
    T* const values = buffer_.data() + task * elements_;
    std::memset(values, 0, static_cast<size_t>(elements_) * sizeof(T));
    return values;
  }

 private:
  const int64_t elements_;
  SmallBuffer<T, 16> buffer_;
};

template <class T>
class Depthwise {
 public:
  Depthwise(const DepthwiseShape& shape, const KernelTable& table, Parallel& parallel)
      : s_(shape), kernels_(KernelsFor(table, shape.type)), parallel_(parallel) {}

  void Forward(const T* x, const T* w, const T* bias, T* y) const {
    if (s_.out_plane() == 0) return;
    const Phases phases = DataPhases(s_);
    const std::vector<int64_t> offsets = DataOffsets(s_, phases.layout);
    const Correlation windows = OfWindows(phases.layout, offsets);
    const PlaneTasks tasks(parallel_, s_.batch * s_.channels, work());
    TaskScratch<T> scratch(tasks, phases.elements);
    tasks.Run([&](int64_t task, int64_t first, int64_t last) {
      Correlation c = windows;
      T* const split = scratch.Zeros(task);
      for (int64_t plane = first; plane < last; ++plane) {
        kernels_.split_phases(phases.layout, x + plane * s_.in_plane(), split);
        for (int64_t i = 0; i < s_.multiplier; ++i) {
          const int64_t m = plane % s_.channels * s_.multiplier + i;
          c.weights = w + m * s_.elements();
          c.bias = bias == nullptr ? nullptr : bias + m;
          kernels_.correlate(c, split, y + (plane * s_.multiplier + i) * s_.out_plane());
        }
      }
    });
  }

  void WeightGradient(const T* dy, const T* x, T* dw) const {
    if (s_.out_plane() == 0) {
      std::fill_n(dw, s_.channels * s_.multiplier * s_.elements(), T(0));
      return;
    }
    const Phases phases = DataPhases(s_);
    const std::vector<int64_t> offsets = DataOffsets(s_, phases.layout);
    const Correlation c = OfWindows(phases.layout, offsets);
    const int64_t weights = s_.multiplier * s_.elements();
    const PlaneTasks tasks(parallel_, s_.channels, s_.batch * work());
    TaskScratch<T> scratch(tasks, phases.elements);
    TaskScratch<double> sums(tasks, weights * kLanes);
    tasks.Run([&](int64_t task, int64_t first, int64_t last) {
      T* const split = scratch.Zeros(task);
      for (int64_t channel = first; channel < last; ++channel) {
        double* const lanes = sums.Zeros(task);
        for (int64_t n = 0; n < s_.batch; ++n) {
          const int64_t plane = n * s_.channels + channel;
          kernels_.split_phases(phases.layout, x + plane * s_.in_plane(), split);
          for (int64_t i = 0; i < s_.multiplier; ++i) {
            const T* const gradient = dy + (plane * s_.multiplier + i) * s_.out_plane();
            kernels_.correlate_weights(c, split, gradient, lanes + i * s_.elements() * kLanes);
          }
        }
        for (int64_t k = 0; k < weights; ++k)
          dw[channel * weights + k] = static_cast<T>(SumOf(lanes + k * kLanes));
      }
    });
  }

  void DataGradient(const T* dy, const T* w, T* dx) const;

 private:
  int64_t work() const { return s_.in_plane() + s_.multiplier * s_.out_plane(); }

  // The correlation of the phases of X with the kernel, for each window.
  Correlation OfWindows(const PhaseLayout& layout, const std::vector<int64_t>& offsets) const {
    return {s_.rows.out,   s_.columns.out, layout.row_stride, s_.columns.out,
            s_.elements(), offsets.data(), nullptr,           nullptr};
  }

  // Halves are added until one is left.
  static double SumOf(double* lanes) {
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

  const DepthwiseShape s_;
  const TypeKernels& kernels_;
  Parallel& parallel_;
};

// The elements of dX in one phase, by the kernel elements that meet them.
struct GradientPhase {
  Correlation correlation;
  int64_t at;                           // of the phase
  std::vector<int64_t> offsets, order;  // of these kernel elements, in all of the channel's
};

template <class T>
void Depthwise<T>::DataGradient(const T* dy, const T* w, T* dx) const {
  if (s_.out_plane() == 0) {
    std::fill_n(dx, s_.batch * s_.channels * s_.in_plane(), T(0));
    return;
  }
  const WindowAxis &r = s_.rows, &c = s_.columns;
  // dY with zeros around it: element o is at o + before.
  const auto before = [](const WindowAxis& a) {
    return std::max<int64_t>(0, Quotient((a.kernel - 1) * a.dilation - a.begin, a.stride));
  };
  const auto length = [](const WindowAxis& a) {
    return std::max(a.out, (a.size - 1 + a.begin) / a.stride + 1);
  };
  const int64_t row_before = before(r), column_before = before(c);
  const Phases padded = MakePhases({r.out, c.out, row_before, column_before, 1, 1, 1, 1, 0, 0, 0},
                                   row_before + length(r), column_before + length(c));
  // dX by phases, unless it is one.
  const int64_t row_phases = std::min(r.stride, r.size), column_phases = std::min(c.stride, c.size);
  const Phases merged =
      MakePhases({r.size, c.size, 0, 0, r.stride, c.stride, row_phases, column_phases, 0, 0, 0},
                 Quotient(r.size, r.stride), Quotient(c.size, c.stride));
  const bool is_one = r.stride == 1 && c.stride == 1;
  std::vector<GradientPhase> parts;
  for (int64_t p = 0; p < row_phases; ++p) {
    for (int64_t q = 0; q < column_phases; ++q) {
      GradientPhase part = {{}, p * merged.layout.row_phase + q * merged.layout.column_phase, {}, {}};
      for (int64_t m = 0; m < s_.multiplier; ++m) {
        for (int64_t k = 0; k < s_.elements(); ++k) {
          const int64_t row = p + r.begin - k / c.kernel * r.dilation;
          const int64_t column = q + c.begin - k % c.kernel * c.dilation;
          if (row % r.stride != 0 || column % c.stride != 0) continue;
          part.order.push_back(m * s_.elements() + k);
          part.offsets.push_back(m * padded.elements +
                                 (row / r.stride + row_before) * padded.layout.row_stride +
                                 column / c.stride + column_before);
        }
      }
      part.correlation = {Quotient(r.size - p, r.stride),
                          Quotient(c.size - q, c.stride),
                          padded.layout.row_stride,
                          is_one ? c.size : merged.layout.row_stride,
                          static_cast<int64_t>(part.order.size()),
                          nullptr,
                          nullptr,
                          nullptr};
      parts.push_back(std::move(part));
    }
  }
  const PlaneTasks tasks(parallel_, s_.batch * s_.channels, work());
  const int64_t weights = s_.multiplier * s_.elements();
  TaskScratch<T> scratch(tasks, s_.multiplier * padded.elements + weights + (is_one ? 0 : merged.elements));
  tasks.Run([&](int64_t task, int64_t first, int64_t last) {
    T* const gradient = scratch.Zeros(task);
    T* const met = gradient + s_.multiplier * padded.elements;
    T* const phases = met + weights;
    for (int64_t plane = first; plane < last; ++plane) {
      for (int64_t i = 0; i < s_.multiplier; ++i) {
        kernels_.split_phases(padded.layout, dy + (plane * s_.multiplier + i) * s_.out_plane(),
                              gradient + i * padded.elements);
      }
      T* const out = dx + plane * s_.in_plane();
      const T* const of_channel = w + plane % s_.channels * weights;
      for (const GradientPhase& part : parts) {
        for (size_t k = 0; k < part.order.size(); ++k) met[k] = of_channel[part.order[k]];
        Correlation correlation = part.correlation;
        correlation.offsets = part.offsets.data();
        correlation.weights = met;
        kernels_.correlate(correlation, gradient, is_one ? out : phases + part.at);
      }
      if (!is_one) kernels_.merge_phases(merged.layout, phases, out);
    }
  });
}

template <class T>
void Conv(const DepthwiseShape& shape, const void* x, const void* w, const void* bias, void* y,
          const KernelTable& table, Parallel& parallel) {
  Depthwise<T>(shape, table, parallel)
      .Forward(static_cast<const T*>(x), static_cast<const T*>(w), static_cast<const T*>(bias),
               static_cast<T*>(y));
}

template <class T>
void ConvGrad(const DepthwiseShape& shape, const void* dy, const void* x, const void* w, void* dx, void* dw,
              const KernelTable& table, Parallel& parallel) {
  const Depthwise<T> depthwise(shape, table, parallel);
  const T* const gradient = static_cast<const T*>(dy);
  if (dw != nullptr) depthwise.WeightGradient(gradient, static_cast<const T*>(x), static_cast<T*>(dw));
  if (dx != nullptr) depthwise.DataGradient(gradient, static_cast<const T*>(w), static_cast<T*>(dx));
}

}  // namespace

void DepthwiseConv(const DepthwiseShape& shape, const void* x, const void* w, const void* bias, void* y,
                   const KernelTable& table, Parallel& parallel) {
  (shape.type == ElementType::kDouble ? Conv<double> : Conv<float>)(shape, x, w, bias, y, table, parallel);
}

void DepthwiseConvGrad(const DepthwiseShape& shape, const void* dy, const void* x, const void* w, void* dx,
                       void* dw, const KernelTable& table, Parallel& parallel) {
  (shape.type == ElementType::kDouble ? ConvGrad<double> : ConvGrad<float>)(shape, dy, x, w, dx, dw, table,
                                                                            parallel);
}

}  // namespace bngrad
