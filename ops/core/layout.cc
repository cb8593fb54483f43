#include "core/layout.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace bngrad {
namespace {

using Flags = FixedVector<bool, kMaxRank>;

Flags ReducedDims(const Shape& shape, const Shape& axes) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (axes.size() > shape.size()) {
    throw InvalidArgument("axes has " + std::to_string(axes.size()) + " values; expected at most " +
                          std::to_string(rank) + ", the rank of X of shape " + ToString(shape));
  }
  Flags reduced(shape.size());
  for (const int64_t axis : axes) {
    if (axis < -rank || axis >= rank) {
      throw InvalidArgument("axes " + ToString(axes) + ": axis " + std::to_string(axis) +
                            " is out of range for X of shape " + ToString(shape) + "; expected " +
                            std::to_string(-rank) + " to " + std::to_string(rank - 1));
    }
    const size_t dim = static_cast<size_t>(axis < 0 ? axis + rank : axis);
    if (reduced[dim]) {
      throw InvalidArgument("axes " + ToString(axes) + " contains dimension " + std::to_string(dim) +
                            " of X of shape " + ToString(shape) + " twice; expected each axis once");
    }
    reduced[dim] = true;
  }
  return reduced;
}

void CheckShape(const Shape& shape) {
  if (shape.empty()) {
    throw InvalidArgument("X of shape [] has rank 0; expected 1 to " + std::to_string(kMaxRank));
  }
  // A dimension of 0 must not hide an overflow of the others: offsets are products of any of them. Rounding
  // in double does not matter this far above real sizes.
  constexpr double kMaxElements =
      static_cast<double>(std::numeric_limits<int64_t>::max()) / 2 / sizeof(double);
  double elements = 1;
  for (const int64_t dim : shape) {
    if (dim < 0)
      throw InvalidArgument("X has shape " + ToString(shape) + "; expected dimensions of 0 or more");
    if (dim > 0) elements *= static_cast<double>(dim);
  }
  if (elements > kMaxElements) {
    throw InvalidArgument("X of shape " + ToString(shape) +
                          " is too large to address; expected at most 2^59 elements");
  }
}

struct MergedDim {
  bool reduced;
  Dim dim;
};

using MergedDims = FixedVector<MergedDim, kMaxRank>;

// Outermost first, kept and reduced alternating; at least one.
MergedDims Merge(const Shape& shape, const Flags& reduced) {
  MergedDims merged;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (!merged.empty() && merged.back().reduced == reduced[i]) {
      merged.back().dim.size *= shape[i];
    } else {
      merged.push_back({reduced[i], {shape[i], 0}});
    }
  }
  if (merged.empty()) merged.push_back({false, {1, 0}});
  int64_t stride = 1;
  for (size_t i = merged.size(); i-- > 0;) {
    merged[i].dim.stride = stride;
    stride *= merged[i].dim.size;
  }
  return merged;
}

Dim TakeInnermost(Dims& dims) {
  if (dims.empty()) return {1, 0};
  const Dim innermost = dims.back();
  dims.pop_back();
  return innermost;
}

}  // namespace

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

Shape MakeShape(const char* name, const int64_t* values, int64_t count) {
  if (count > kMaxRank) {
    throw InvalidArgument(std::string(name) + " has " + std::to_string(count) + " values; expected at most " +
                          std::to_string(kMaxRank));
  }
  Shape shape(static_cast<size_t>(count));
  std::copy_n(values, count, shape.begin());
  return shape;
}

int64_t Count(const Dims& dims) {
  int64_t count = 1;
  for (const Dim& dim : dims) count *= dim.size;
  return count;
}

int64_t OffsetOf(const Dims& dims, int64_t index) {
  int64_t offset = 0;
  for (size_t i = dims.size(); i-- > 0;) {
    offset += index % dims[i].size * dims[i].stride;
    index /= dims[i].size;
  }
  return offset;
}

Layout MakeLayout(const Shape& shape, const Shape& axes) {
  CheckShape(shape);
  const Flags reduced = ReducedDims(shape, axes);

  Layout layout;
  layout.channels = layout.reduced = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    (reduced[i] ? layout.reduced : layout.channels) *= shape[i];
    if (!reduced[i]) layout.kept_shape.push_back(shape[i]);
  }

  MergedDims merged = Merge(shape, reduced);
  const MergedDim innermost = merged.back();
  merged.pop_back();
  layout.inner = innermost.dim.size;
  for (const MergedDim& m : merged) (m.reduced ? layout.outer_reduced : layout.outer_kept).push_back(m.dim);
  layout.row = TakeInnermost(layout.outer_reduced);
  if (innermost.reduced) {
    layout.family = Family::kRows;
    layout.channel = TakeInnermost(layout.outer_kept);
  } else {
    layout.family = Family::kColumns;
    layout.channel = {1, 0};
  }
  return layout;
}

}  // namespace bngrad
