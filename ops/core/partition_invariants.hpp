// The invariants of a partition that the sweep and the kernels rely on. Kernels check none of them: too many
// channels in a tile would overflow a stack buffer, and overlapping rows would be summed twice.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/layout.hpp"
#include "core/partition.hpp"
#include "kernels/kernel.h"
#include "kernels/tuning.h"

namespace bngrad {

// Returns a description of the first violated invariant, or null.
inline const char* BrokenInvariant(const Layout& layout, const Partition& p) {
  const bool rows_family = layout.family == Family::kRows;
  const int64_t kept = rows_family ? layout.channel.size : layout.inner;
  // True if `parts` non-empty parts of at most `size` elements make up `whole`.
  const auto covers = [](int64_t parts, int64_t size, int64_t whole) {
    return whole == 0 ? parts == 0
                      : size > 0 && parts > 0 && (parts - 1) * size < whole && whole <= parts * size;
  };

  if (p.tiles != Count(layout.outer_kept) * p.tiles_per_outer ||
      !covers(p.tiles_per_outer, p.tile_channels, kept)) {
    return "each channel belongs to one tile";
  }
  if (p.tiles == 0) return nullptr;
  if (p.fold < 1 || p.width != p.tile_channels * p.fold) return "width is tile_channels * fold";
  if (p.rows != Count(layout.outer_reduced) * layout.row.size)
    return "rows is the number of rows of the layout";
  const int64_t whole = rows_family ? layout.inner : p.tile_channels;
  if (p.segment_rows < 1 || p.pieces < 0 || (rows_family && !covers(p.pieces, p.piece, whole)) ||
      (!rows_family && p.pieces != 1)) {
    return "each element of a row belongs to one piece";
  }
  const int64_t runs = p.rows / p.segment_rows + (p.rows % p.segment_rows > 0);
  if (p.segments != runs * p.pieces) return "each row belongs to one segment";
  if (p.single_thread && !p.tile_at_a_time) return "single_thread requires tile_at_a_time";

  if (rows_family) {
    if (p.tile_channels > kMaxTileChannels) return "a tile has at most kMaxTileChannels channels";
    if (p.tile_channels > 1 && layout.channel.stride != layout.inner)
      return "the channels of a tile are contiguous";
    if (p.pieces > 1 && p.tile_channels > 1) return "rows in pieces belong to one channel";
    if (p.pieces > 1 && p.piece % kLanes != 0) return "pieces start at a multiple of kLanes";
    if (p.fold != 1) return "rows are not folded";
  } else {
    if (p.tiles_per_outer > 1 && p.tile_channels % kLanes != 0)
      return "tiles of columns start at a multiple of kLanes";
    if (p.fold > 1 && p.tiles_per_outer > 1) return "folded rows are not divided into tiles";
    if (p.fold > 1 && layout.row.size > 1 && layout.row.stride != layout.inner)
      return "folded rows are contiguous";
    if (p.segment_rows % p.fold != 0) return "segments start at a folded row";
  }
  return nullptr;
}

// The same for a block passed to a kernel, whose first element is at `offset`.
inline const char* BrokenInvariant(const Layout& layout, const Block& block, int64_t offset) {
  const bool rows_family = layout.family == Family::kRows;
  if (block.rows < 1 || block.channels < 1 || block.length < 1) return "a block is not empty";
  if (block.width < (rows_family ? block.channels : block.length))
    return "width is at least the number of channels";
  if (rows_family && block.channels > kMaxTileChannels)
    return "a block has at most kMaxTileChannels channels";
  const int64_t run = rows_family ? block.channels * block.length : block.length;
  if (block.rows > 1 && block.row_stride < run) return "rows do not overlap";
  const int64_t end = offset + (block.rows - 1) * block.row_stride + run;
  if (offset < 0 || end > layout.channels * layout.reduced) return "a block lies within the array";
  return nullptr;
}

}  // namespace bngrad
