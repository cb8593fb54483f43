// Numbers that decide speed, not meaning, of the kernels and of their driver: each with the reason for it.
#pragma once
#include <cstdint>

#include "kernel.h"

namespace bngrad {

// Bytes ahead of the element that is summed: the CPU's own prefetching stops at each page and at each row.
constexpr int64_t kPrefetchDistance = 4096;

// The same for short rows, of which several are read at once.
constexpr int64_t kShortRowPrefetchDistance = 2048;

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

// Columns of such rows: with their sums they stay in the nearest cache.
constexpr int64_t kColumnsOfRows = 1024;

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

}  // namespace bngrad
