// The sweep that sums and maps in one loop, one tile or two. Included by table-inl.h. Sums read from memory
// and maps write past the caches: in one loop the two overlap. In the caches, what is mapped is in the
// nearest one still; past them, rows that are read are left only once.

// Long rows, in the order in which SumRows sums the same block. Short ones are summed, and then mapped.
template <class Sum, class Map, class T>
void SumAndMapLongRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                       const void* const* map_inputs, const void* factors, void* const* outputs) {
  if (block.length < kLongRow) {
    SumRows<Sum, T>(block, inputs, center, sums);
    return MapRows<Map, T>(block, map_inputs, factors, outputs);
  }
  const MapArrays<Map, T> arrays(block, map_inputs, factors, outputs);
  const StorePolicy policy = PolicyOfRows(block, arrays);
  SumLongRows<Sum, T>(block, inputs, center, sums, RowMap<Map, T>(block, arrays, policy));
  if (policy == kNonTemporal) Fence();
}

// Rows of any length: those that are not long are mapped strip by strip.
template <class Sum, class Map, class T>
void SumAndMapRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                   const void* const* map_inputs, const void* factors, void* const* outputs) {
  const MapArrays<Map, T> arrays(block, map_inputs, factors, outputs);
  if (block.length >= kLongRow || AsColumns(block) || (block.stream && !arrays.RowsAreLines(block))) {
    return SumAndMapLongRows<Sum, Map, T>(block, inputs, center, sums, map_inputs, factors, outputs);
  }
  const StorePolicy policy = block.stream ? kNonTemporal : kTemporal;
  SumShortRows<Sum, T>(block, inputs, center, sums, MapEpilogue<Map, T>(arrays, policy));
  if (policy == kNonTemporal) Fence();
}

// In the order in which SumColumns sums the same block.
template <class Sum, class Map, class T>
void SumAndMapColumns(const Block& block, const void* const* inputs, const double* center, double* sums,
                      const void* const* map_inputs, const void* factors, void* const* outputs) {
  const MapArrays<Map, T> arrays(block, map_inputs, factors, outputs);
  const StorePolicy policy = block.stream && arrays.RowsAreLines(block) ? kNonTemporal : kTemporal;
  SumColumnsWith<Sum, T>(block, inputs, center, sums, MapEpilogue<Map, T>(arrays, policy));
  if (policy == kNonTemporal) Fence();
}
