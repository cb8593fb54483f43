// Where the elements of a tile's segment lie: the blocks that kernels are called with.
#pragma once
#include <algorithm>
#include <cassert>
#include <cstdint>

#include "core/layout.hpp"
#include "core/partition.hpp"
#include "core/partition_invariants.hpp"
#include "kernels/kernel.h"

namespace bngrad {

class Blocks {
 public:
  // Both stay where they are.
  Blocks(const Layout& layout, const Partition& partition) : layout_(layout), partition_(partition) {
    assert(BrokenInvariant(layout, partition) == nullptr);
  }

  // A tile's channels: the first, and how many.
  int64_t FirstChannel(int64_t tile) const { return Outer(tile) * KeptExtent() + Begin(tile); }
  int64_t Extent(int64_t tile) const { return std::min(partition_.tile_extent, KeptExtent() - Begin(tile)); }

  // The offset of a tile's first element.
  int64_t Start(int64_t tile) const {
    return OffsetOf(layout_.outer_kept, Outer(tile)) + Begin(tile) * (IsRows() ? layout_.channel.stride : 1);
  }

  // Calls work(block, offset of its first element) for the blocks that a tile's segment is made of: one for
  // each index of the outer reduced dimensions that it touches.
  template <class Work>
  void ForEach(int64_t tile, int64_t segment, const Work& work) const {
    const int64_t channels = Extent(tile);
    const int64_t piece = segment % partition_.pieces * partition_.piece;
    const int64_t base = Start(tile) + (IsRows() ? piece : 0);

    Block block = {};
    block.row_stride = layout_.row.stride;
    block.channels = channels;
    block.length = IsRows() ? std::min(partition_.piece, layout_.inner - piece) : channels;
    block.stream = partition_.stream;
    block.width = partition_.width;

    int64_t row = segment / partition_.pieces * partition_.segment_rows;
    const int64_t end = std::min(row + partition_.segment_rows, partition_.rows);
    while (row < end) {
      const int64_t outer = row / layout_.row.extent, first = row % layout_.row.extent;
      block.rows = std::min(end - row, layout_.row.extent - first);
      row += block.rows;
      const int64_t offset = base + OffsetOf(layout_.outer_reduced, outer) + first * layout_.row.stride;
      if (partition_.fold == 1) {
        Call(work, block, offset);
      } else {
        Folded(block, offset, work);
      }
    }
  }

 private:
  bool IsRows() const { return layout_.family == Family::kRows; }

  // Of the innermost kept block: its extent, the first of a tile's channels in it, and how many such blocks
  // lie before the tile's.
  int64_t KeptExtent() const { return IsRows() ? layout_.channel.extent : layout_.inner; }
  int64_t Begin(int64_t tile) const { return tile % partition_.tiles_per_outer * partition_.tile_extent; }
  int64_t Outer(int64_t tile) const { return tile / partition_.tiles_per_outer; }

  // The same rows as fewer, `fold` times as long; those left over make one shorter row.
  template <class Work>
  void Folded(const Block& block, int64_t offset, const Work& work) const {
    Block folded = block;
    folded.rows = block.rows / partition_.fold;
    folded.row_stride = folded.length = partition_.width;
    if (folded.rows > 0) Call(work, folded, offset);
    const int64_t done = folded.rows * partition_.fold;
    if (done == block.rows) return;
    folded.length = (block.rows - done) * block.length;
    folded.rows = 1;
    Call(work, folded, offset + done * block.length);
  }

  template <class Work>
  void Call(const Work& work, const Block& block, int64_t offset) const {
    assert(BrokenInvariant(layout_, block, offset) == nullptr);
    work(block, offset);
  }

  const Layout& layout_;
  const Partition& partition_;
};

}  // namespace bngrad
