// Divides a segment of a tile into the blocks that kernels are called with.
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
  // Keeps references to both.
  Blocks(const Layout& layout, const Partition& partition) : layout_(layout), partition_(partition) {
    assert(BrokenInvariant(layout, partition) == nullptr);
  }

  // The first channel of a tile, and the number of its channels.
  int64_t FirstChannel(int64_t tile) const { return Outer(tile) * KeptSize() + Begin(tile); }
  int64_t ChannelCount(int64_t tile) const {
    return std::min(partition_.tile_channels, KeptSize() - Begin(tile));
  }

  // The offset of a tile's first element.
  int64_t Start(int64_t tile) const {
    return OffsetOf(layout_.outer_kept, Outer(tile)) + Begin(tile) * (IsRows() ? layout_.channel.stride : 1);
  }

  // Calls work(block, offset of its first element) for each block of a segment of a tile: one per index of
  // the outer reduced dimensions.
  template <class Work>
  void ForEach(int64_t tile, int64_t segment, const Work& work) const {
    const int64_t channels = ChannelCount(tile);
    const int64_t piece = segment % partition_.pieces * partition_.piece;
    const int64_t base = Start(tile) + (IsRows() ? piece : 0);

    Block block = {};
    block.row_stride = layout_.row.stride;
    block.channels = channels;
    block.length = IsRows() ? std::min(partition_.piece, layout_.inner - piece) : channels;
    block.stream = partition_.non_temporal;
    block.width = partition_.width;

    int64_t row = segment / partition_.pieces * partition_.segment_rows;
    const int64_t end = std::min(row + partition_.segment_rows, partition_.rows);
    while (row < end) {
      const int64_t outer = row / layout_.row.size, first = row % layout_.row.size;
      block.rows = std::min(end - row, layout_.row.size - first);
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

  // The size of the innermost kept dimension, the index of the tile's first channel in it, and the index of
  // the tile over outer_kept.
  int64_t KeptSize() const { return IsRows() ? layout_.channel.size : layout_.inner; }
  int64_t Begin(int64_t tile) const { return tile % partition_.tiles_per_outer * partition_.tile_channels; }
  int64_t Outer(int64_t tile) const { return tile / partition_.tiles_per_outer; }

  // Replaces rows by fewer rows of `fold` times the length; the remainder is one shorter row.
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
