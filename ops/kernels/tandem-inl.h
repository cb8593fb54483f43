// The sweep that sums one tile and maps another. Included by each <isa>.cc after the two, inside
// bngrad::<isa> and an unnamed namespace. Sums read from memory and maps write past the caches: in one loop
// the two overlap (measured, 32x64x112x112: 1.07 to 1.2 times as fast).

template <class Sum, class Map, class T>
void SumAndMapRows(const Block& block, const void* const* inputs, const double* center, double* sums,
                   const void* const* map_inputs, const void* factors, void* const* outputs) {
  if (Streams<Map, T>(block, outputs)) {
    RowMap<Map, T, Streamed> map(block, map_inputs, factors, outputs);
    SumRows<Sum, T>(block, inputs, center, sums, map);
    Fence();
  } else {
    SumRows<Sum, T>(block, inputs, center, sums);
    MapRows<Map, T>(block, map_inputs, factors, outputs);
  }
}
