// How the work is cut. A tile is a run of neighbouring channels; a segment is a part of the M elements of
// each of them. Both follow from the op, the shape and the type alone, and sums are made per segment and then
// added up in one fixed tree: whatever the number of threads, the same numbers are added in the same order.
#pragma once
#include <cstdint>

#include "core/layout.hpp"

namespace bngrad {

struct Partition {
  // A tile has `tile_extent` channels (of the innermost kept block; the last tile of each may have fewer).
  // `width` places hold its sums: one a channel, or `fold` for each (see MakePartition).
  int64_t tile_extent;
  int64_t tiles_per_outer;  // along the innermost kept block
  int64_t tiles;
  int64_t fold;
  int64_t width;

  // A segment has `segment_rows` rows (the last one fewer) of a piece of at most `piece` elements.
  int64_t rows;
  int64_t segment_rows;
  int64_t piece;
  int64_t pieces;
  int64_t segments;

  // One task does all of a tile, whose second reading then comes from cache; else every phase is a loop of
  // its own over all tiles and segments.
  bool tile_at_a_time;
  // Too little work to be worth waking a thread.
  bool one_thread;
  // Outputs are to be written past the caches.
  bool stream;
};

// `read_once`: elements are mapped right after they are summed, so that a tile need not stay in a cache.
Partition MakePartition(const Layout& layout, int64_t element_size, bool read_once);

}  // namespace bngrad
