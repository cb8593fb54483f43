#include "layout.hpp"

#include <limits>
#include <string>

namespace bngrad {
namespace {

std::vector<bool> ReducedDims(const Shape& shape, const std::vector<int64_t>& axes) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  std::vector<bool> reduced(shape.size(), false);
  for (const int64_t axis : axes) {
    if (axis < -rank || axis >= rank) {
      throw InvalidArgument("axes " + ToString(axes) + ": " + std::to_string(axis) +
                            " is out of range for X of shape " + ToString(shape) + ", expected " +
                            std::to_string(-rank) + " to " + std::to_string(rank - 1));
    }
    const size_t dim = static_cast<size_t>(axis < 0 ? axis + rank : axis);
    if (reduced[dim]) {
      throw InvalidArgument("axes " + ToString(axes) + " name dimension " + std::to_string(dim) +
                            " of X of shape " + ToString(shape) + " twice, expected each once");
    }
    reduced[dim] = true;
  }
  return reduced;
}

void CheckShape(const Shape& shape) {
  if (shape.empty() || shape.size() > kMaxRank) {
    throw InvalidArgument("X of shape " + ToString(shape) + " has rank " + std::to_string(shape.size()) +
                          ", expected 1 to " + std::to_string(kMaxRank));
  }
  // Extents of 0 do not hide an overflow of the others: offsets are products of some of them.
  int64_t limit = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(double));
  for (const int64_t extent : shape) {
    if (extent < 0)
      throw InvalidArgument("X has shape " + ToString(shape) + ", expected no negative dimension");
    if (extent > 0) limit /= extent;
  }
  if (limit == 0) throw InvalidArgument("X of shape " + ToString(shape) + " is too large to address");
}

struct MergedDim {
  bool reduced;
  Dim dim;
};

// Outermost first, alternately kept and reduced, at least one.
std::vector<MergedDim> Merge(const Shape& shape, const std::vector<bool>& reduced) {
  std::vector<MergedDim> merged;
  merged.reserve(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (!merged.empty() && merged.back().reduced == reduced[i]) {
      merged.back().dim.extent *= shape[i];
    } else {
      merged.push_back({reduced[i], {shape[i], 0}});
    }
  }
  if (merged.empty()) merged.push_back({false, {1, 0}});
  int64_t stride = 1;
  for (auto m = merged.rbegin(); m != merged.rend(); ++m) {
    m->dim.stride = stride;
    stride *= m->dim.extent;
  }
  return merged;
}

Dim TakeInnermost(std::vector<Dim>& dims) {
  if (dims.empty()) return {1, 0};
  const Dim innermost = dims.back();
  dims.pop_back();
  return innermost;
}

}  // namespace

int64_t Count(const std::vector<Dim>& dims) {
  int64_t count = 1;
  for (const Dim& dim : dims) count *= dim.extent;
  return count;
}

int64_t OffsetOf(const std::vector<Dim>& dims, int64_t index) {
  int64_t offset = 0;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    offset += index % dim->extent * dim->stride;
    index /= dim->extent;
  }
  return offset;
}

Layout MakeLayout(const Shape& shape, const std::vector<int64_t>& axes) {
  CheckShape(shape);
  const std::vector<bool> reduced = ReducedDims(shape, axes);

  Layout layout = {};
  layout.channels = layout.reduced = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    (reduced[i] ? layout.reduced : layout.channels) *= shape[i];
    if (!reduced[i]) layout.kept_shape.push_back(shape[i]);
  }

  std::vector<MergedDim> merged = Merge(shape, reduced);
  const MergedDim innermost = merged.back();
  merged.pop_back();
  layout.inner = innermost.dim.extent;
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
