#include "core/partition.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/tuning.h"

namespace bngrad {
namespace {

// The elements of a tile of columns that stay in the level 2 cache for a second read.
constexpr int64_t kCachedElements = kTileBytes / static_cast<int64_t>(sizeof(float));

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The least number of channels whose rows are a multiple of a cache line and of kLanes.
int64_t ChannelsPerLines(const Layout& layout, int64_t element_size) {
  const int64_t line = std::max(kLanes, static_cast<int64_t>(kCacheLine) / element_size);
  return line / std::gcd(layout.inner, line);
}

// Rounds down to channels whose tiles are whole cache lines. Rows shorter than kLongRow are written with
// non-temporal stores only if they are, so then the result may be larger than `channels`.
int64_t RoundForNonTemporalStores(const Layout& layout, int64_t element_size, int64_t channels) {
  const int64_t least = ChannelsPerLines(layout, element_size), whole = channels / least * least;
  if (whole > 0) return whole;
  return channels * layout.inner < kLongRow ? std::min(least, layout.channel.size) : channels;
}

// Rounds to channels whose tiles are whole cache lines, since vectors that cross lines are slow to load and
// store, unless that leaves too few tiles.
int64_t RoundForTemporalStores(const Layout& layout, int64_t element_size, int64_t channels) {
  const int64_t least = ChannelsPerLines(layout, element_size);
  const int64_t whole = std::max((channels + least / 2) / least * least, least);
  return layout.channels >= kEnoughTiles * whole ? whole : channels;
}

void TileRows(const Layout& layout, int64_t element_size, bool read_once, Partition& p) {
  const auto at_least_1 = [](int64_t n) { return std::max<int64_t>(n, 1); };
  const int64_t wanted = CeilDiv(kTermsPerLane * kLanes, at_least_1(layout.inner));
  // Long rows take half the cache; another tile size would change the order of sums.
  const int64_t together = layout.inner >= kLongRow ? 2 : 1;
  const int64_t fitting = at_least_1(kTileBytes / element_size / together / at_least_1(layout.reduced));
  const int64_t shared =
      at_least_1(p.single_thread ? layout.channel.size : layout.channels / (2 * kEnoughTiles));
  p.tile_channels = std::min({wanted, shared, kMaxTileChannels});
  if (!read_once) p.tile_channels = std::min(p.tile_channels, fitting);
  if (p.non_temporal) {
    p.tile_channels = RoundForNonTemporalStores(layout, element_size, p.tile_channels);
  } else if (!p.single_thread && layout.inner < kLongRow) {
    p.tile_channels = RoundForTemporalStores(layout, element_size, p.tile_channels);
  }
  p.tiles_per_outer = CeilDiv(layout.channel.size, p.tile_channels);
  p.fold = 1;
  p.width = p.tile_channels;

  const int64_t segment = kTermsPerLane * kLanes;
  p.piece = std::min(layout.inner, segment);
  p.segment_rows = std::max<int64_t>(segment / std::max<int64_t>(layout.inner, 1), 1);
  p.tile_at_a_time = true;
}

// Rows of a few channels leave most lanes empty, and rows that are no multiple of kLanes end in a partial
// vector. Such rows are contiguous, so `fold` of them are treated as one; the sums of a channel are added at
// the end.
int64_t Fold(int64_t columns, int64_t rows) {
  const int64_t least = std::max<int64_t>(kNarrowColumns / columns, 1);
  for (const int64_t whole : {kNarrowColumns, kLanes}) {
    const int64_t step = whole / std::gcd(whole, columns), fold = CeilDiv(least, step) * step;
    if (fold * columns <= kMaxTileColumns && fold * kMinFoldedRows <= rows) return fold;
  }
  return least;
}

void TileColumns(const Layout& layout, Partition& p) {
  const int64_t columns = std::max<int64_t>(layout.inner, 1);
  const bool large = layout.channels * layout.reduced >= kLargeElements;
  const bool cacheable = large && layout.reduced <= kCachedElements / kNarrowColumns;
  int64_t most = large ? kMaxLargeColumns : kMaxTileColumns;
  if (cacheable) {
    const int64_t cached = kCachedElements / std::max<int64_t>(layout.reduced, 1);
    most = std::clamp(cached / kNarrowColumns * kNarrowColumns, kNarrowColumns, kMaxTileColumns);
  }
  p.tiles_per_outer = CeilDiv(layout.inner, most);
  const int64_t even = CeilDiv(columns, std::max<int64_t>(p.tiles_per_outer, 1));
  p.tile_channels = std::min(CeilDiv(even, kLanes) * kLanes, columns);
  p.tiles_per_outer = CeilDiv(layout.inner, p.tile_channels);

  p.fold = Fold(columns, layout.row.size);
  p.width = p.tile_channels * p.fold;

  p.piece = layout.inner;
  p.segment_rows = std::clamp(kCachedElements / p.width, kSegmentRows, kTermsPerLane) * p.fold;
  p.tile_at_a_time = cacheable;
}

// Chooses segment_rows so that the number of segments is a multiple of kSegmentMultiple, if they stay long
// enough.
void BalanceSegments(Partition& p) {
  const int64_t even = CeilDiv(CeilDiv(p.rows, p.segment_rows), kSegmentMultiple) * kSegmentMultiple;
  const int64_t folded = CeilDiv(p.rows, p.fold);
  p.segment_rows = std::max(CeilDiv(folded, std::max<int64_t>(even, 1)), kMinSegmentRows) * p.fold;
}

}  // namespace

Partition MakePartition(const Layout& layout, int64_t element_size, bool read_once) {
  Partition p = {};
  const int64_t elements = layout.channels * layout.reduced;
  const int64_t channels = std::min(layout.channels, kSingleThreadElements / kElementsPerChannel);
  const int64_t channel_elements = layout.family == Family::kRows ? channels * kElementsPerChannel : 0;
  p.single_thread = elements + channel_elements <= kSingleThreadElements;
  p.non_temporal = elements * element_size >= kNonTemporalBytes;
  if (layout.family == Family::kRows) {
    TileRows(layout, element_size, read_once, p);
    p.pieces = p.piece > 0 ? CeilDiv(layout.inner, p.piece) : 0;
  } else {
    TileColumns(layout, p);
    p.pieces = 1;
  }
  p.tiles = Count(layout.outer_kept) * p.tiles_per_outer;
  p.rows = Count(layout.outer_reduced) * layout.row.size;
  p.tile_at_a_time = p.single_thread || (p.tile_at_a_time && p.tiles >= kEnoughTiles);
  if (layout.family == Family::kColumns && !p.tile_at_a_time) BalanceSegments(p);
  p.segments = CeilDiv(p.rows, p.segment_rows) * p.pieces;
  return p;
}

}  // namespace bngrad
