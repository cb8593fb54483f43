// What the sweeps write for each element, and how. Included by each <isa>.cc after its verbs, inside
// bngrad::<isa> and an unnamed namespace. The mean is subtracted before anything is multiplied: folding these
// formulas to a*dY + b*X + c would lose the digits that X and mean share.

struct MapForward {
  static constexpr int kKind = kMapForward;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Sub16(Load(in[0] + i, count), f[0]), f[1]);
    out[0] = Add16(Mul16(d, f[2]), f[3]);
  }
};

template <class Dy>
struct MapGradTraining {
  static constexpr int kKind = Dy::kRelu ? kMapReluGradTraining : kMapGradTraining;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_dy = Sub16(Dy::Loaded(in, i, count), f[2]);
    out[0] = Mul16(f[1], Sub16(centered_dy, Add16(Mul16(d, f[4]), f[3])));
  }
};

template <class Dy>
struct MapGradFrozen {
  static constexpr int kKind = Dy::kRelu ? kMapReluGradFrozen : kMapGradFrozen;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    out[0] = Mul16(f[0], Dy::Loaded(in, i, count));
  }
};

struct MapGradGradTraining {
  static constexpr int kKind = kMapGradGradTraining;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    const V centered_ddx = Sub16(Load(in[2] + i, count), f[4]);
    const V centered_dy = Sub16(Load(in[1] + i, count), f[5]);
    out[0] = Add16(Mul16(f[1], centered_ddx), Add16(Mul16(d, f[2]), f[3]));
    out[1] = Sub16(Sub16(Mul16(f[2], centered_dy), Mul16(f[6], centered_ddx)), Add16(Mul16(d, f[7]), f[8]));
  }
};

struct MapGradGradFrozen {
  static constexpr int kKind = kMapGradGradFrozen;
  template <class T, class V, class Count>
  static void Apply(const T* const* in, int64_t i, const V* f, V* out, Count count) {
    const V d = Sub16(Load(in[0] + i, count), f[0]);
    out[0] = Add16(Mul16(f[1], Load(in[2] + i, count)), Add16(Mul16(d, f[2]), f[3]));
    out[1] = Mul16(f[2], Load(in[1] + i, count));
  }
};

// How results are written: through the cache, or past it in whole lines.
struct Cached {
  static constexpr bool kWholeLines = false;
  template <class T, class V, class Count>
  static void Put(T* p, const V& v, Count count) {
    Store(p, v, count);
  }
};
struct Streamed {
  static constexpr bool kWholeLines = true;
  template <class T, class V>
  static void Put(T* p, const V& v, All) {
    Stream(p, v);
  }
};

// Elements from i on of each output that is wanted; a map with one output has it wanted.
template <class Map, class Way, class T, class V, class Count>
void PutElements(T* const* out, int64_t i, const V* results, Way, Count count) {
  constexpr int kOutputs = kOutputCounts[Map::kKind];
  for (int k = 0; k < kOutputs; ++k) {
    if (kOutputs == 1 || out[k] != nullptr) Way::Put(out[k] + i, results[k], count);
  }
}
template <class Map, class Way, class T, class V, class Count>
void MapElements(const T* const* in, T* const* out, int64_t i, const V* f, Way way, Count count) {
  V results[kOutputCounts[Map::kKind]];
  Map::Apply(in, i, f, results, count);
  PutElements<Map>(out, i, results, way, count);
}

// Strips of 16 elements that make a cache line, at the least one. Where some rows are written side by side,
// each has them one after the other: half of a line that waits for its other half is in the way of the next
// (measured, 16 bits, two threads: 32x1024x196 1.2, 128x256x196 1.08; frozen 25088x256 2.0, 100352x64 1.4,
// 6272x1024 1.4 times as fast; 2048x49 1.0).
template <class T>
constexpr int kStripsOfLine = sizeof(T) < sizeof(float) ? 2 : 1;

// Whether elements of rows side by side are all loaded before one is stored, which takes a register for each:
// those of one place in a row are one place in all, where the rows and the arrays are whole pages apart
// (measured, Zen 4, two threads, arrays at the same place of a page: 8x2048x49 1.06 to 1.13, 8x1024x49 1.07,
// 16x1024x100 1.08 to 1.14, 8x512x49 1.03 to 1.1 times as fast; frozen 8x256x196 1.0 to 1.25, 8x512x196 1.04
// to 1.3; at other places 0.96 to 1.03; eight rows 0.88; 16 bits 0.86 to 1.0).
template <class T, int kRows>
constexpr bool kLoadsFirst =
    kPlacesMatter && sizeof(T) >= sizeof(float) && kRows * sizeof(T) <= 4 * sizeof(float);

// Elements of rows side by side, of each some strips.
template <bool kFirst, int kRows, int kStrips, class Map, class Way, class T, class V, class Count>
void MapElementsOfRows(const T* const* in, T* const* out, int64_t i, int64_t stride, const V* f, Way way,
                       Count count) {
  if constexpr (kFirst && kStrips == 1) {
    V results[kRows][kOutputCounts[Map::kKind]];
    BNGRAD_UNROLL_4
    for (int r = 0; r < kRows; ++r) Map::Apply(in, i + r * stride, f, results[r], count);
    BNGRAD_UNROLL_4
    for (int r = 0; r < kRows; ++r) PutElements<Map>(out, i + r * stride, results[r], way, count);
  } else {
    BNGRAD_UNROLL_4
    for (int r = 0; r < kRows; ++r) {
      for (int s = 0; s < kStrips; ++s) {
        MapElements<Map>(in, out, i + s * kLanes + r * stride, f, way, count);
      }
    }
  }
}
