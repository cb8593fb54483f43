// The least that a gradient has to do, for bench_kernels.py, which compiles this: the protocol is that of
// kernel_serve.py.
//
// A gradient that knows of channels only how large they are: the arrays are one long row, which is summed and
// mapped in loops of intrinsics. It has no ends of rows, no factors to load, and no lanes to add up; but in
// training mode no element is mapped before a channel's worth of them has been summed. What ours takes beside
// it is what all of those cost; what another library takes beside it is whether a gradient could be as fast
// as that at all, with sums in double or in float; elements of 16 bits have sums in float only.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "kernel_serve.hpp"

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kStreamBytes = 8 << 20;
// What is read of arrays that are larger than the caches is asked for so many elements before.
constexpr int64_t kAhead = 1024;

// Elements as floats in registers; what goes past the caches is stored with kStream.
struct Float {
  float value;
  static __m512 Load(const Float* p) { return _mm512_loadu_ps(p); }
  template <bool kStream>
  static void Store(Float* p, __m512 a) {
    kStream ? _mm512_stream_ps(&p->value, a) : _mm512_storeu_ps(&p->value, a);
  }
};

template <bool kStream>
void StoreBits(void* p, __m256i bits) {
  kStream ? _mm256_stream_si256(static_cast<__m256i*>(p), bits)
          : _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
}

struct Float16 {
  uint16_t bits;
  static __m512 Load(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  template <bool kStream>
  static void Store(Float16* p, __m512 a) {
    StoreBits<kStream>(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

struct BFloat16 {
  uint16_t bits;
  static __m512 Load(const BFloat16* p) {
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
  }
  // With the CPU's own rounding, which takes subnormal numbers for zero; without it, by adding half of the
  // last bit, which is the least that rounding can be.
  template <bool kStream>
  static void Store(BFloat16* p, __m512 a) {
#if defined(__AVX512BF16__)
    StoreBits<kStream>(p, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
#else
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(0x8000));
    StoreBits<kStream>(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#endif
  }
};

// Sums in double of exact products, as ours.
struct InDouble {
  __m512d sums[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};
  void Add(const Float* dy, const Float* x) {
    for (int half = 0; half < 2; ++half) {
      const __m512d b = _mm512_cvtps_pd(_mm256_loadu_ps(&dy[8 * half].value));
      const __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(&x[8 * half].value));
      sums[half] = _mm512_add_pd(sums[half], b);
      sums[2 + half] = _mm512_fmadd_pd(b, a, sums[2 + half]);
    }
  }
  double Total() const {
    return _mm512_reduce_add_pd(sums[0] + sums[1]) + _mm512_reduce_add_pd(sums[2] + sums[3]);
  }
};

// Sums in float, as oneDNN; ours are in float for 512 elements of 16 bits.
struct InFloat {
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  template <class T>
  void Add(const T* dy, const T* x) {
    const __m512 b = T::Load(dy);
    sums[0] = _mm512_add_ps(sums[0], b);
    sums[1] = _mm512_fmadd_ps(b, _mm512_sub_ps(T::Load(x), _mm512_set1_ps(0.5F)), sums[1]);
  }
  double Total() const { return _mm512_reduce_add_ps(sums[0] + sums[1]); }
};

template <class T>
struct Arrays {
  const T* dy;
  const T* x;
  T* dx;
};

// Even and odd vectors have sums of their own, for an addition takes as long as several vectors do. A call
// would have them in memory.
template <class Sums, bool kStream, class T>
[[gnu::always_inline]] inline void Sum(const Arrays<T>& a, int64_t begin, int64_t end, Sums (&sums)[2]) {
  for (int64_t i = begin; i < end; i += 2 * kLanes) {
#pragma GCC unroll 2
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t at = i + j * kLanes;
      if (kStream) {
        _mm_prefetch(reinterpret_cast<const char*>(a.dy + at + kAhead), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(a.x + at + kAhead), _MM_HINT_T0);
      }
      sums[j].Add(a.dy + at, a.x + at);
    }
  }
}

template <bool kStream, class T>
void Map(const Arrays<T>& a, int64_t begin, int64_t end, float k) {
  const __m512 mean = _mm512_set1_ps(0.5F), gain = _mm512_set1_ps(1 + k), k1 = _mm512_set1_ps(k),
               low = _mm512_set1_ps(k * 2), k2 = _mm512_set1_ps(k * 3);
  for (int64_t i = begin; i < end; i += kLanes) {
    const __m512 d = _mm512_sub_ps(T::Load(a.x + i), mean);
    const __m512 centered = _mm512_sub_ps(T::Load(a.dy + i), k1);
    const __m512 dx = _mm512_mul_ps(gain, _mm512_sub_ps(centered, _mm512_add_ps(_mm512_mul_ps(d, k2), low)));
    T::template Store<kStream>(a.dx + i, dx);
  }
}

// Frozen: dX = gain * dY.
template <bool kStream, class T>
void MapFrozen(const Arrays<T>& a, int64_t begin, int64_t end) {
  const __m512 gain = _mm512_set1_ps(1.5F);
  for (int64_t i = begin; i < end; i += kLanes) {
    T::template Store<kStream>(a.dx + i, _mm512_mul_ps(gain, T::Load(a.dy + i)));
  }
}

// Of sums, what the map needs; it depends on them, so that neither is left out nor before.
template <class Sums>
float Factor(const Sums (&sums)[2]) {
  return static_cast<float>((sums[0].Total() + sums[1].Total()) * 1e-30);
}

// Rows that are reduced: tile after tile, each of which is read again from the first or second level, unless
// a channel is larger. If the result goes past the caches, the tile before is mapped in the same loop, in
// turns.
template <class Sums, bool kStream, class T>
void Rows(const Arrays<T>& a, int64_t begin, int64_t end, int64_t channel) {
  constexpr int64_t kSmallTile = kStream ? 1 << 15 : 1 << 13, kPart = 8 * kLanes;
  const int64_t tile = std::max(kSmallTile, (channel + kPart - 1) / kPart * kPart);
  const int64_t turn = kStream ? kPart : tile;
  // The turn in which a tile's sums are complete is the first in which it is mapped.
  const int64_t lag = tile - turn;
  Sums sums[2];
  float factor = 0;
  for (int64_t i = begin, mapped = i - lag; mapped < end; i += turn, mapped += turn) {
    if (i < end) Sum<Sums, kStream>(a, i, std::min(i + turn, end), sums);
    if ((mapped - begin) % tile == 0) factor = Factor(sums);
    if (mapped >= begin) Map<kStream>(a, mapped, std::min(mapped + turn, end), factor);
  }
}

// Rows and columns alike: what is summed is mapped at once.
template <class Sums, bool kStream, class T>
float Frozen(const Arrays<T>& a, int64_t begin, int64_t end) {
  constexpr int64_t kPart = 8 * kLanes;
  Sums sums[2];
  for (int64_t i = begin; i < end; i += kPart) {
    Sum<Sums, kStream>(a, i, std::min(i + kPart, end), sums);
    MapFrozen<kStream>(a, i, std::min(i + kPart, end));
  }
  return Factor(sums);
}

struct Worker {
  int threads;
  std::string type = {};
  int64_t size = 0;                   // of an element, in bytes
  int64_t elements = 0, channel = 0;  // in all, and of a channel
  bool columns = false, frozen = false;
  float result = 0;  // of sums that no map needs, so that they are not left out
  Room memory[3];

  std::string Prepare(std::istringstream& words) {
    std::string op, layout;
    words >> type >> op >> frozen >> layout;
    if (type == "double" || op != "grad") return "refused only the gradient, of no doubles";
    size = type == "float" ? sizeof(Float) : sizeof(Float16);
    if (!__builtin_cpu_supports("avx512f")) return "refused it is written for AVX-512";
    const std::vector<int64_t> extents{std::istream_iterator<int64_t>(words), {}};
    elements = std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<int64_t>());
    columns = layout == "NHWC";
    channel = elements / (columns ? extents.back() : extents[1]);
    int64_t number = 0;
    for (Room& array : memory) {
      // Room for what is asked for beyond the end, and whole vectors.
      const int64_t bytes = (elements + 4096) / 32 * 32 * size;
      array.Allocate(bytes, number++);
      std::memset(array.data(), 0x3c, bytes);  // in each type a number not far from one
    }
    return type == "float" ? "ways bare_double bare_float" : "ways bare_float";
  }

  template <class T, class Sums, bool kStream>
  void Run() {
    const auto at = [&](int i) { return reinterpret_cast<T*>(memory[i].data()); };
    const Arrays<T> a = {at(0), at(1), at(2)};
    const int64_t pairs = elements / (2 * kLanes);
    float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      const int64_t t = omp_get_thread_num();
      const int64_t begin = t * pairs / threads * 2 * kLanes, end = (t + 1) * pairs / threads * 2 * kLanes;
      if (frozen) {
        total += Frozen<Sums, kStream>(a, begin, end);
      } else if (columns) {
        Sums sums[2];
        Sum<Sums, kStream>(a, begin, end, sums);
#pragma omp barrier
        Map<kStream>(a, begin, end, Factor(sums));
      } else {
        Rows<Sums, kStream>(a, begin, end, channel);
      }
      _mm_sfence();
    }
    result = total;
  }

  template <class T, class Sums>
  void Run() {
    elements* size >= kStreamBytes ? Run<T, Sums, true>() : Run<T, Sums, false>();
  }

  void Run(const std::string& way) {
    if (way == "bare_double") {
      Run<Float, InDouble>();
    } else if (type == "float") {
      Run<Float, InFloat>();
    } else if (type == "float16") {
      Run<Float16, InFloat>();
    } else {
      Run<BFloat16, InFloat>();
    }
  }
};

}  // namespace

int main(int, char** argv) {
  Worker worker{std::stoi(argv[1])};
  Serve(worker);
}
