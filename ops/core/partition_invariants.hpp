// What the driver and the kernels take for granted of a partition. A kernel checks none of it: a tile with
// too many channels would write past its stack, and rows that overlap would be summed twice.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/layout.hpp"
#include "core/partition.hpp"
#include "kernels/kernel.h"

namespace bngrad {

// The first invariant that does not hold, as text; null if all of them do.
inline const char* BrokenInvariant(const Layout& layout, const Partition& p) {
  const bool rows_family = layout.family == Family::kRows;
  const int64_t kept = rows_family ? layout.channel.extent : layout.inner;
  // `parts` of at most `size` each make `whole`, and none is empty.
  const auto covers = [](int64_t parts, int64_t size, int64_t whole) {
    return whole == 0 ? parts == 0
                      : size > 0 && parts > 0 && (parts - 1) * size < whole && whole <= parts * size;
  };

  if (p.tiles != Count(layout.outer_kept) * p.tiles_per_outer ||
      !covers(p.tiles_per_outer, p.tile_extent, kept)) {
    return "every channel is in one tile";
  }
  if (p.tiles == 0) return nullptr;
  if (p.fold < 1 || p.width != p.tile_extent * p.fold) return "each channel of a tile has `fold` places";
  if (p.rows != Count(layout.outer_reduced) * layout.row.extent) return "rows are those of the layout";
  const int64_t whole = rows_family ? layout.inner : p.tile_extent;
  if (p.segment_rows < 1 || p.pieces < 0 || (rows_family && !covers(p.pieces, p.piece, whole)) ||
      (!rows_family && p.pieces != 1)) {
    return "every element of a row is in one piece";
  }
  const int64_t runs = p.rows / p.segment_rows + (p.rows % p.segment_rows > 0);
  if (p.segments != runs * p.pieces) return "every row is in one segment";
  if (p.one_thread && !p.tile_at_a_time) return "one thread has a tile at a time";

  if (rows_family) {
    if (p.tile_extent > kMaxTileChannels) return "a kernel has room for a tile's channels";
    if (p.tile_extent > 1 && layout.channel.stride != layout.inner) return "a tile's channels lie together";
    if (p.pieces > 1 && p.tile_extent > 1) return "a row in pieces is of one channel";
    if (p.pieces > 1 && p.piece % kLanes != 0) return "pieces begin at a strip";
    if (p.fold != 1) return "rows are not folded";
  } else {
    if (p.tiles_per_outer > 1 && p.tile_extent % kLanes != 0) return "tiles of columns begin at a strip";
    if (p.fold > 1 && p.tiles_per_outer > 1) return "folded rows are whole";
    if (p.fold > 1 && layout.row.extent > 1 && layout.row.stride != layout.inner)
      return "folded rows lie together";
    if (p.segment_rows % p.fold != 0) return "segments begin at a folded row";
  }
  return nullptr;
}

// The same of a block that a kernel is about to be called with, whose first element is at `offset`.
inline const char* BrokenInvariant(const Layout& layout, const Block& block, int64_t offset) {
  const bool rows_family = layout.family == Family::kRows;
  if (block.rows < 1 || block.channels < 1 || block.length < 1) return "a block has elements";
  if (block.width < (rows_family ? block.channels : block.length)) return "each sum has a place";
  if (rows_family && block.channels > kMaxTileChannels) return "a kernel has room for a block's channels";
  const int64_t run = rows_family ? block.channels * block.length : block.length;
  if (block.rows > 1 && block.row_stride < run) return "rows do not overlap";
  const int64_t end = offset + (block.rows - 1) * block.row_stride + run;
  if (offset < 0 || end > layout.channels * layout.reduced) return "a block lies in the array";
  return nullptr;
}

}  // namespace bngrad
