// Divides the work into tiles (runs of adjacent channels) and segments (parts of the M elements of each
// channel). The partition depends on the op, the shape and the type only. Sums are computed per segment and
// added in a fixed tree, so results have the same bits for every number of threads.
#pragma once
#include <cstdint>

#include "core/layout.hpp"

namespace bngrad {

struct Partition {
  // A tile has tile_channels channels of the innermost kept dimension; the last tile may have fewer.
  // width = tile_channels*fold is the number of sums of each kind; `fold` rows are treated as one (see Fold).
  int64_t tile_channels;
  int64_t tiles_per_outer;  // along the innermost kept dimension
  int64_t tiles;
  int64_t fold;
  int64_t width;

  // A segment has segment_rows rows of at most `piece` elements each; the last segment may have fewer.
  int64_t rows;
  int64_t segment_rows;
  int64_t piece;
  int64_t pieces;
  int64_t segments;

  // Each task runs all phases of its tiles, so that the second read of a tile comes from the cache. Otherwise
  // each phase is a parallel loop over all tiles and segments.
  bool tile_at_a_time;
  // There is too little work to wake other threads.
  bool single_thread;
  // Outputs are written with non-temporal stores.
  bool non_temporal;
};

// read_once: elements are mapped right after they are summed, so tiles need not fit in the cache.
Partition MakePartition(const Layout& layout, int64_t element_size, bool read_once);

}  // namespace bngrad
