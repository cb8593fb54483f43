#include "cuda/plan.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace bngrad::cuda {
namespace {

constexpr int64_t kMaxLanes = 32;            // a warp reads a line
constexpr int64_t kBlocksPerProcessor = 8;   // wanted
constexpr int64_t kElementsPerBlock = 4096;  // at least, if a channel is divided
constexpr int64_t kMaxSplits = 65535;        // of a grid in y

void Append(ViewDims* dims, const Dim& dim) {
  dims->size[dims->count] = dim.size;
  dims->stride[dims->count] = dim.stride;
  ++dims->count;
}

// One at least, so that an index always has an offset.
ViewDims MakeDims(const Dims& outer, const Dim& innermost) {
  ViewDims dims = {0, {1, 1, 1, 1}, {}};
  if (innermost.size != 1 || outer.empty()) Append(&dims, innermost);
  for (size_t i = outer.size(); i-- > 0;) Append(&dims, outer[i]);
  return dims;
}

int64_t PowerOfTwo(int64_t least) {
  int64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

}  // namespace

Plan MakePlan(const Layout& layout, ElementType type, bool aligned, int processors) {
  Plan plan = {};
  plan.columns = layout.family == Family::kColumns;
  const int64_t wide = type == ElementType::kDouble ? 2 : 4;
  plan.wide = aligned && layout.inner % wide == 0;
  View& view = plan.view;
  view.channels = layout.channels;
  view.reduced = layout.reduced;
  view.width = plan.wide ? wide : 1;
  view.outer = MakeDims(layout.outer_reduced, layout.row);
  const int64_t vectors = layout.inner / view.width;
  int64_t groups = layout.channels, step = kThreads;
  if (plan.columns) {
    view.kept = MakeDims(layout.outer_kept, {1, 0});
    view.plane = 1;
    view.positions = layout.reduced;
    view.inner = layout.inner;
    view.lanes = static_cast<int32_t>(PowerOfTwo(std::clamp<int64_t>(vectors, 1, kMaxLanes)));
    view.tiles = std::max<int64_t>((vectors + view.lanes - 1) / view.lanes, 1);
    groups = layout.inner == 0 ? 0 : layout.channels / layout.inner * view.tiles;
    step = kThreads / view.lanes;
  } else {
    view.kept = MakeDims(layout.outer_kept, layout.channel);
    view.plane = std::max<int64_t>(vectors, 1);
    view.positions = layout.reduced / view.width;
    view.lanes = 1;
    view.tiles = 1;
  }
  view.step_outer = step / view.plane;
  view.step_inner = step % view.plane;
  if (groups > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument("X has " + std::to_string(layout.channels) + " channels in " +
                          std::to_string(groups) + " blocks; a GPU runs at most 2147483647");
  }
  plan.groups = static_cast<uint32_t>(groups);
  const int64_t elements =
      layout.channels == 0 ? 0 : layout.reduced * layout.channels / std::max<int64_t>(groups, 1);
  const int64_t wanted = kBlocksPerProcessor * processors / std::max<int64_t>(groups, 1) + 1;
  view.splits = static_cast<int32_t>(
      std::clamp<int64_t>(std::min(wanted, elements / kElementsPerBlock), 1, kMaxSplits));
  return plan;
}

}  // namespace bngrad::cuda
