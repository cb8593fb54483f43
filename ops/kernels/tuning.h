// Numbers that decide speed, not meaning, and the reason for each. The partition's decide in which order sums
// are made, too: other numbers give other last bits.
#pragma once
#include <cstdint>

#include "kernel.h"

namespace bngrad {

// The kernels.

// Channels of a tile of rows, at most: a kernel keeps their sums by lanes on its stack.
constexpr int64_t kMaxTileChannels = 64;

// Elements from which rows are summed one after the other; shorter ones in groups of rows, or as columns. A
// run of channels with fewer is written past the caches only if it is whole cache lines.
constexpr int64_t kLongRow = 32 * kLanes;

// Bytes ahead of the element that is summed, half as many in short rows, of which several are read at once:
// the CPU's own prefetching stops at each page and at each row.
constexpr int64_t kPrefetchDistance = 4096;

// The cache that rows are prefetched to: the nearest one has too few buffers for what is on its way.
constexpr int kPrefetchLevel = 2;

// Terms that are added up in float before they become double, at most: more would cost digits.
constexpr int64_t kTerms = 32;

// Rows that are read together, unless they are long: their sums and factors are loaded once.
constexpr int64_t kGroupRows = 4;

// Elements of a row up to which rows in the caches are mapped in groups, and summed in twice as large ones.
constexpr int64_t kShortRow = 8 * kLanes;

// Elements that are summed before as many are mapped: few, so that reading and writing overlap.
constexpr int64_t kFusedStep = 8 * kLanes;

// Elements of a row up to which, and rows from which, short rows in the caches are summed as columns.
constexpr int64_t kColumnsRow = 3 * kLanes;
constexpr int64_t kRowsOfColumns = 16;

// Groups of rows of columns ahead that are prefetched past the caches.
constexpr int64_t kGroupsAhead = 4;

// Columns up to which twice as many rows are summed together: their sums wait for those of the rows before.
constexpr int64_t kNarrowColumns = 4 * kLanes;

// Bytes of a row up to which columns in the caches are prefetched, too: longer rows the CPU prefetches
// itself.
constexpr int64_t kPrefetchedRow = 1024;

// Bytes of one factor of all columns from which rows are mapped in groups past the caches: the factors of
// fewer stay in the nearest cache.
constexpr int64_t kWideRow = 4096;

// Rows that are mapped together: their factors are loaded once, and the lines of more rows that have one
// place in their pages would not stay in the nearest cache.
constexpr int64_t kMapRows = 2;

// AdamUpdate (core/adam.cc): elements of a task. Non-temporal stores were measured to gain nothing.
constexpr int64_t kAdamTaskElements = 1 << 14;

// Depthwise convolutions (core/depthwise.cc): tasks for each thread, enough to balance them. Each has scratch
// memory.
constexpr int64_t kTasksPerThread = 4;

// Rows of a plane that are computed together, and kernel elements whose gradients are: they share loads.
constexpr int kRowsTogether = 4;
constexpr int kElementsTogether = 4;

// MaxPoolGrad (core/max_pool_grad.cc): windows that are compared together, which stay in the nearest cache,
// and elements of a task, unless a plane has more.
constexpr int64_t kMaxPoolColumns = 256;
constexpr int64_t kMaxPoolTaskElements = 1 << 14;

// BatchedConv (core/exchange.cc, ort/batched_conv.cc): elements that are read together, whole cache lines;
// columns of a product, enough to read the weights seldom. BatchedConvTranspose has the whole product in
// memory. Below the last number, products with vectors, which read the weights as often, are faster.
constexpr int64_t kExchangeElements = 64;
constexpr int64_t kBatchedColumns = 512;
constexpr int64_t kProductColumns = 128;
constexpr int64_t kFewColumns = 16;

// The partition (core/partition.cc).

// With less work than this, in elements, waking other threads does not pay off. In the rows family a channel
// counts as additional elements, for its factors and the reduction of its lanes.
constexpr int64_t kSingleThreadElements = 1 << 15;
constexpr int64_t kElementsPerChannel = 64;

// Fewer tiles than this are too few to balance over the threads of a typical machine.
constexpr int64_t kEnoughTiles = 16;

// The number of values that a lane adds sequentially is bounded, which bounds the rounding error of the sums.
constexpr int64_t kTermsPerLane = 1024;

// The tiles of X and dY must fit in the level 2 cache to be read again.
constexpr int64_t kTileBytes = 1 << 18;

// An output of this size leaves the cache before it is read: non-temporal stores avoid reading its lines
// first.
constexpr int64_t kNonTemporalBytes = 8 << 20;

// The width of a tile of columns, whose sums and factors stay in the nearest cache.
constexpr int64_t kMaxTileColumns = 1024;

// X of this size fits in no cache: tiles of columns then fit in the level 2 cache, or are this wide.
constexpr int64_t kLargeElements = 1 << 22;
constexpr int64_t kMaxLargeColumns = 4096;

// A segment stores a sum per column, so it should not be short, and must not be very short.
constexpr int64_t kSegmentRows = 128;
constexpr int64_t kMinSegmentRows = 16;

// The number of segments is a multiple of this, to balance the threads.
constexpr int64_t kSegmentMultiple = 4;

// The least number of folded rows for which a wider fold is worth the additional sums.
constexpr int64_t kMinFoldedRows = 64;

// The sweep (core/sweep.cc).

// Enough tasks to balance many threads, few enough to keep the scratch memory small.
constexpr int64_t kMaxTasks = 256;

}  // namespace bngrad
