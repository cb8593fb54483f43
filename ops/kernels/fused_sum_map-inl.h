// The sweep that sums and maps in one loop. Included by table-inl.h. Sums read from memory and maps write
// past the caches: in one loop the two overlap, and each element is read once.

// Long rows, in the order in which SumRows sums the same block. Short ones are summed, and then mapped.
template <class Sum, class Map, class T>
void SumAndMapLongRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                       const void* factors, void* const* outputs) {
  if (block.length < kLongRow) {
    SumRows<Sum, T>(block, inputs, center, sums);
    return MapRows<Map, T>(block, inputs, factors, outputs);
  }
  const MapArrays<Map, T> arrays(block, inputs, factors, outputs);
  const StorePolicy policy = PolicyOfRows(block, arrays);
  SumLongRows<Sum, T>(block, inputs, center, sums, RowMap<Map, T>(block, arrays, policy));
  if (policy == kNonTemporal) Fence();
}

// Rows of any length: those that are not long are mapped strip by strip. Of rows in the caches that are
// summed in large groups, the nearest one would not hold what is mapped, too.
template <class Sum, class Map, class T>
void SumAndMapRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                   const void* factors, void* const* outputs) {
  const MapArrays<Map, T> arrays(block, inputs, factors, outputs);
  const bool fused = block.stream ? arrays.RowsAreLines(block) : block.length > kShortRow;
  if (block.length >= kLongRow || !fused) {
    return SumAndMapLongRows<Sum, Map, T>(block, inputs, center, sums, factors, outputs);
  }
  const StorePolicy policy = block.stream ? kNonTemporal : kTemporal;
  ForPolicy(policy, [&](StorePolicy known) BNGRAD_INLINE_LAMBDA {
    SumShortRows<Sum, T>(block, inputs, center, sums, known == kNonTemporal,
                         MapEpilogue<Map, T>(arrays, known));
  });
  if (policy == kNonTemporal) Fence();
}

// In the order in which SumColumns sums the same block.
template <class Sum, class Map, class T>
void SumAndMapColumns(const Block& block, const void* const* inputs, const double* center, double* sums,
                      const void* factors, void* const* outputs) {
  const MapArrays<Map, T> arrays(block, inputs, factors, outputs);
  const StorePolicy policy = block.stream && arrays.RowsAreLines(block) ? kNonTemporal : kTemporal;
  ForPolicy(policy, [&](StorePolicy known) BNGRAD_INLINE_LAMBDA {
    SumColumnsWith<Sum, T>(block, inputs, center, sums, MapEpilogue<Map, T>(arrays, known));
  });
  if (policy == kNonTemporal) Fence();
}
