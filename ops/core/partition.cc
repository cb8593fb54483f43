#include "core/partition.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/kernel.h"

namespace bngrad {
namespace {

// Below this much work, in elements, waking threads costs more than it. Rows have a part for each channel,
// too: its factors, and the lanes of its sums (measured, two threads beside one: 1x512x49 1.15,
// 2x256x49 1.28, 2x512x7 1.22, 4x128x49 1.04, 1x128x196 0.98; and below it 8x64x49 0.86, 1x64x196 0.87,
// 1x256x49 0.98, 1x32x784 1.1).
constexpr int64_t kOneThreadElements = 1 << 15;
constexpr int64_t kElementsOfChannel = 64;

// Fewer tiles than this cannot keep the threads of a usual machine busy.
constexpr int64_t kEnoughTiles = 16;

// A lane adds at most about this many numbers, one after the other, before the tree: the rounding of
// float64 sums stays within a few 1e-16 of their terms.
constexpr int64_t kLaneTerms = 1024;

// Rows family: channels are tiled until a row of the tile has this many elements, for memory is read at full
// speed only in long runs. But the tile of X and that of dY must stay in the second level cache, to be read
// again (measured, 32x256x56x56: 0.72 of what memory can do; from the last level 0.59; frozen, where nothing
// is read again, longer runs are 32x256x784 1.16, 64x1024x147 1.28 times as fast), and there should be tiles
// for many threads. The tile is in bytes (measured, beside 2^16 elements: 16 bits 8x512x784 1.13,
// 32x512x784 1.07, 32x1024x196 1.05, double 8x512x784 1.09, 32x512x196 1.05; in the caches 0.99 to 1.01).
constexpr int64_t kRowElements = 1 << 14;
constexpr int64_t kTileBytes = 1 << 18;
constexpr int64_t kPlentyOfTiles = 32;

// An output of this size will not be found in cache by whoever reads it; writing it past the cache, which
// takes whole cache lines, saves reading it first.
constexpr int64_t kStreamBytes = 8 << 20;

// Columns family: width of a tile, and the elements for which the second reading comes from cache.
constexpr int64_t kMaxTileColumns = 1024;
constexpr int64_t kMinTileColumns = 64;
constexpr int64_t kCachedElements = 1 << 16;

// Columns family: where X is so large that no cache holds it, a tile for its own cache pays, which is short
// pieces of every row (measured: 784x2048 0.75, 256x65536 1.3 times as fast as in phases). If the cache would
// not hold even such, whole rows pay, whose sums are not in the nearest cache (6272x2048 1.06 to 1.1,
// 25088x2048 1.07 to 1.18, 4096x4096 1.1 times as fast as tiles of 1024, 1568x2048 0.94 to 0.98).
constexpr int64_t kLargeElements = 1 << 22;
constexpr int64_t kMaxLargeColumns = 4096;

// Columns family: a segment leaves its sums behind for each column, so it should not be short, and must not
// be very short. For threads to share them evenly, their number is a multiple of this.
constexpr int64_t kSegmentRows = 128;
constexpr int64_t kMinSegmentRows = 16;
constexpr int64_t kEvenSegments = 4;

// Columns family: as many folded rows are worth more places to add up.
constexpr int64_t kFoldedRows = 64;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// So many channels make rows of whole cache lines, and strips of lanes.
int64_t ChannelsOfLines(const Layout& layout, int64_t element_size) {
  const int64_t line = std::max(kLanes, static_cast<int64_t>(kCacheLine) / element_size);
  return line / std::gcd(layout.inner, line);
}

// As many channels as make tiles begin and end at a cache line, and at a strip of lanes; more than the second
// level was to hold if fewer would not be written past the caches at all (measured, two threads:
// 32x2048x49 1.1, 128x256x196 1.4, 128x1024x49 1.6, 512x512x49 1.4, 16 bits 256x256x196 1.4 times as fast).
// Else that many are too many (64x1024x147 0.88, 16x512x729 0.68).
int64_t WholeLinesPastCaches(const Layout& layout, int64_t element_size, int64_t channels) {
  const int64_t least = ChannelsOfLines(layout, element_size), whole = channels / least * least;
  if (whole > 0) return whole;
  return channels * layout.inner < kLongRow ? std::min(least, layout.channel.extent) : channels;
}

// The same in the caches, where strips that cross cache lines are slow to load and to store (measured, two
// threads: 8x544x49 1.22, 8x672x49 1.26, 8x1000x49 1.08, 8x256x49 1.13 times as fast), unless that leaves too
// few tiles (8x128x49 0.92, 8x32x196 0.80).
int64_t WholeLinesInCaches(const Layout& layout, int64_t element_size, int64_t channels) {
  const int64_t least = ChannelsOfLines(layout, element_size);
  const int64_t whole = std::max((channels + least / 2) / least * least, least);
  return layout.channels >= kEnoughTiles * whole ? whole : channels;
}

void TileRows(const Layout& layout, int64_t element_size, bool read_once, Partition& p) {
  const auto at_least_1 = [](int64_t n) { return std::max<int64_t>(n, 1); };
  const int64_t wanted = CeilDiv(kRowElements, at_least_1(layout.inner));
  // Long rows may be mapped while the next tile is summed: then two tiles must stay.
  const int64_t together = layout.inner >= kLongRow ? 2 : 1;
  const int64_t fitting = at_least_1(kTileBytes / element_size / together / at_least_1(layout.reduced));
  const int64_t shared = at_least_1(p.one_thread ? layout.channel.extent : layout.channels / kPlentyOfTiles);
  p.tile_extent = std::min({wanted, shared, kMaxTileChannels});
  if (!read_once) p.tile_extent = std::min(p.tile_extent, fitting);
  if (p.stream) {
    p.tile_extent = WholeLinesPastCaches(layout, element_size, p.tile_extent);
  } else if (!p.one_thread && layout.inner < kLongRow) {
    p.tile_extent = WholeLinesInCaches(layout, element_size, p.tile_extent);
  }
  p.tiles_per_outer = CeilDiv(layout.channel.extent, p.tile_extent);
  p.fold = 1;
  p.width = p.tile_extent;

  const int64_t segment = kLaneTerms * kLanes;
  p.piece = std::min(layout.inner, segment);
  p.segment_rows = std::max<int64_t>(segment / std::max<int64_t>(layout.inner, 1), 1);
  p.tile_at_a_time = true;
}

// Rows of a few channels would leave most lanes empty, and those that fill no whole lanes end in a part of a
// vector, and of a cache line. They are contiguous, so `fold` of them are treated as one: every place of it
// sums its own rows, and the places of a channel are added at the end (measured: 1000000x3 1.4 times as fast
// by 64 as by 21, 100000x100 1.2 times by 4 as by 1).
int64_t Fold(int64_t columns, int64_t rows) {
  const int64_t least = std::max<int64_t>(kMinTileColumns / columns, 1);
  for (const int64_t whole : {kMinTileColumns, kLanes}) {
    const int64_t step = whole / std::gcd(whole, columns), fold = CeilDiv(least, step) * step;
    if (fold * columns <= kMaxTileColumns && fold * kFoldedRows <= rows) return fold;
  }
  return least;
}

void TileColumns(const Layout& layout, Partition& p) {
  const int64_t columns = std::max<int64_t>(layout.inner, 1);
  const bool large = layout.channels * layout.reduced >= kLargeElements;
  const bool cacheable = large && layout.reduced <= kCachedElements / kMinTileColumns;
  int64_t most = large ? kMaxLargeColumns : kMaxTileColumns;
  if (cacheable) {
    const int64_t cached = kCachedElements / std::max<int64_t>(layout.reduced, 1);
    most = std::clamp(cached / kMinTileColumns * kMinTileColumns, kMinTileColumns, kMaxTileColumns);
  }
  p.tiles_per_outer = CeilDiv(layout.inner, most);
  const int64_t even = CeilDiv(columns, std::max<int64_t>(p.tiles_per_outer, 1));
  p.tile_extent = std::min(CeilDiv(even, kLanes) * kLanes, columns);
  p.tiles_per_outer = CeilDiv(layout.inner, p.tile_extent);

  p.fold = Fold(columns, layout.row.extent);
  p.width = p.tile_extent * p.fold;

  p.piece = layout.inner;
  p.segment_rows = std::clamp(kCachedElements / p.width, kSegmentRows, kLaneTerms) * p.fold;
  p.tile_at_a_time = cacheable;
}

// As many rows for each segment as make their number a multiple, if that leaves them long enough.
void EvenSegments(Partition& p) {
  const int64_t even = CeilDiv(CeilDiv(p.rows, p.segment_rows), kEvenSegments) * kEvenSegments;
  const int64_t folded = CeilDiv(p.rows, p.fold);
  p.segment_rows = std::max(CeilDiv(folded, std::max<int64_t>(even, 1)), kMinSegmentRows) * p.fold;
}

}  // namespace

Partition MakePartition(const Layout& layout, int64_t element_size, bool read_once) {
  Partition p = {};
  const int64_t elements = layout.channels * layout.reduced;
  const int64_t channels = std::min(layout.channels, kOneThreadElements / kElementsOfChannel);
  const int64_t of_channels = layout.family == Family::kRows ? channels * kElementsOfChannel : 0;
  p.one_thread = elements + of_channels <= kOneThreadElements;
  p.stream = elements * element_size >= kStreamBytes;
  if (layout.family == Family::kRows) {
    TileRows(layout, element_size, read_once, p);
    p.pieces = p.piece > 0 ? CeilDiv(layout.inner, p.piece) : 0;
  } else {
    TileColumns(layout, p);
    p.pieces = 1;
  }
  p.tiles = Count(layout.outer_kept) * p.tiles_per_outer;
  p.rows = Count(layout.outer_reduced) * layout.row.extent;
  p.tile_at_a_time = p.one_thread || (p.tile_at_a_time && p.tiles >= kEnoughTiles);
  if (layout.family == Family::kColumns && !p.tile_at_a_time) EvenSegments(p);
  p.segments = CeilDiv(p.rows, p.segment_rows) * p.pieces;
  return p;
}

}  // namespace bngrad
