// Every kernel function of every instruction set in kernels.inc that this machine runs, on lengths around the
// edges of a vector, at addresses of any alignment: the results have the bits that the scalar kernels give,
// whatever lies around the arrays stays as it was, and where the system has pages to protect, nothing past
// them is even read.
//
// kernels_test [NAME ...] [every=N] compares one shape in N.
// Prints a line an instruction set, of all or of those that are named, and what was wrong. One that this
// machine does not have is skipped, in its line; whoever runs this looks whether it should have been.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "core/dispatch.hpp"
#include "core/element_type.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

using namespace bngrad;

namespace {

// Bytes that end where a page begins that nobody may touch, or begin where one ends.
class Guarded {
 public:
  enum Side { kGuardAfter, kGuardBefore };
  Guarded(size_t size, Side side) : size_(size) {
#if defined(__unix__) || defined(__APPLE__)
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    inside_ = (size + page - 1) / page * page;
    std::vector<char*>& spare = spare_[inside_];
    if (spare.empty()) {
      void* const all = mmap(nullptr, inside_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (all == MAP_FAILED) std::abort();
      base_ = static_cast<char*>(all);
      mprotect(base_ + page, inside_, PROT_READ | PROT_WRITE);
    } else {
      base_ = spare.back();
      spare.pop_back();
    }
    data_ = base_ + page + (side == kGuardAfter ? inside_ - size : 0);
#else
    (void)side;
    base_ = static_cast<char*>(std::calloc(size + 1, 1));
    data_ = base_;
#endif
  }
  ~Guarded() {
#if defined(__unix__) || defined(__APPLE__)
    spare_[inside_].push_back(base_);
#else
    std::free(base_);
#endif
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  // Those of each size that are free: mapping takes longer than most kernels.
  static inline std::map<size_t, std::vector<char*>> spare_;
  size_t size_;
  [[maybe_unused]] size_t inside_ = 0;
  char *base_, *data_;
};

int failures = 0;

void Fail(const char* isa, const char* function, int kind, const Block& block, const char* what) {
  if (++failures <= 20) {
    std::printf("%s %s kind %d rows %d channels %d length %d: %s\n", isa, function, kind,
                static_cast<int>(block.rows), static_cast<int>(block.channels),
                static_cast<int>(block.length), what);
  }
}

template <class T>
T Rounded(double value) {
  return static_cast<T>(value);
}

// Of values about 1 the upper bits, which is all the precision that these two have.
template <>
BFloat16 Rounded<BFloat16>(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  return {static_cast<uint16_t>(bits >> 16)};
}
template <>
Float16 Rounded<Float16>(double value) {
  if (std::abs(value) < 1e-4) return {0};
  int exponent;
  const double fraction = std::frexp(std::abs(value), &exponent);  // from 0.5 to 1
  const auto mantissa = static_cast<unsigned>((2 * fraction - 1) * 1024);
  const auto biased = static_cast<unsigned>(exponent + 14);
  return {static_cast<uint16_t>((value < 0 ? 0x8000u : 0u) | biased << 10 | mantissa)};
}

// The type that maps compute in.
template <class T>
struct ArithmeticOf {
  using Type = float;
};
template <>
struct ArithmeticOf<double> {
  using Type = double;
};

// Of a table, for to draw each anew took most of the test's time.
template <class T>
void Fill(char* data, size_t count, std::mt19937& random) {
  static const std::vector<double> normals = [] {
    std::vector<double> values(4099);
    std::mt19937 own;
    std::normal_distribution<double> normal(1, 1);
    for (double& value : values) value = normal(own);
    return values;
  }();
  size_t next = random() % normals.size();
  for (size_t i = 0; i < count; ++i) {
    const T value = Rounded<T>(normals[next]);
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
    if (++next == normals.size()) next = 0;
  }
}

// The sums beside a map, by MapKind.
constexpr SumKind kSums[kMapKinds] = {kSumX,        kSumGrad,     kSumGrad,    kSumReluGrad,
                                      kSumReluGrad, kSumGradGrad, kSumGradGrad};

// One shape, all kinds, one instruction set against scalar.
template <class T>
class Comparison {
 public:
  Comparison(const Isa& isa, const TypeKernels& kernels, const TypeKernels& scalar, const Block& block,
             bool rows, Guarded::Side side, size_t inputs_later = 0, size_t outputs_later = 0)
      : isa_(isa),
        kernels_(kernels),
        scalar_(scalar),
        block_(block),
        rows_(rows),
        elements_(static_cast<size_t>((block.rows - 1) * block.row_stride +
                                      (rows ? block.channels : 1) * block.length)),
        values_(static_cast<size_t>(rows ? block.channels : block.length)),
        side_(side),
        outputs_later_(outputs_later),
        x_memory_(elements_ * sizeof(T) + inputs_later, side),
        dy_memory_(elements_ * sizeof(T) + inputs_later, side),
        third_memory_(elements_ * sizeof(T) + inputs_later, side),
        x_(x_memory_.data() + inputs_later),
        dy_(dy_memory_.data() + inputs_later),
        third_(third_memory_.data() + inputs_later) {
    std::mt19937 random(static_cast<unsigned>(block.length));
    Fill<T>(x_, elements_, random);
    Fill<T>(dy_, elements_, random);
    Fill<T>(third_, elements_, random);
    for (int kind = 0; kind < kSumKinds; ++kind) Sum(kind, random);
    for (int kind = 0; kind < kMapKinds; ++kind) Map(kind, random);
    const auto& both = rows ? kernels.sum_and_map_rows : kernels.sum_and_map_columns;
    for (int kind = 0; kind < kMapKinds; ++kind) {
      if (both[kind] != nullptr) SumAndMap(kind, both[kind], random);
    }
  }

 private:
  void Sum(int kind, std::mt19937& random) {
    Block block = block_;
    block.width = static_cast<int64_t>(values_);
    const size_t count = values_ * static_cast<size_t>(kSumCounts[kind]);
    Guarded center(values_ * sizeof(double), side_);
    Guarded sums(count * sizeof(double), side_), expected(count * sizeof(double), side_);
    Fill<double>(center.data(), values_, random);
    Fill<double>(sums.data(), count, random);
    std::memcpy(expected.data(), sums.data(), sums.size());
    const void* const inputs[] = {x_, dy_, third_};
    const double* const c = reinterpret_cast<const double*>(center.data());
    (rows_ ? kernels_.sum_rows : kernels_.sum_columns)[kind](block, inputs, c,
                                                             reinterpret_cast<double*>(sums.data()));
    (rows_ ? scalar_.sum_rows : scalar_.sum_columns)[kind](block, inputs, c,
                                                           reinterpret_cast<double*>(expected.data()));
    if (std::memcmp(sums.data(), expected.data(), sums.size()) != 0) {
      Fail(isa_.name, rows_ ? "sum_rows" : "sum_columns", kind, block, "other bits than scalar");
    }
  }

  void Map(int kind, std::mt19937& random) {
    Block block = block_;
    block.width = static_cast<int64_t>(values_);
    const size_t count = values_ * static_cast<size_t>(kFactorCounts[kind]);
    using Arithmetic = typename ArithmeticOf<T>::Type;
    Guarded factors(count * sizeof(Arithmetic), side_);
    Fill<Arithmetic>(factors.data(), count, random);
    // Every output alone, and all at once.
    const int all = (1 << kOutputCounts[kind]) - 1;
    for (int wanted = 1; wanted <= all; ++wanted) Map(kind, block, factors, wanted);
  }

  void Map(int kind, const Block& block, const Guarded& factors, int wanted) {
    const size_t size = elements_ * sizeof(T) + outputs_later_;
    const Guarded output[] = {{size, side_}, {size, side_}};
    const Guarded expected[] = {{size, side_}, {size, side_}};
    void *outputs[kMaxOutputs] = {}, *expecteds[kMaxOutputs] = {};
    for (int k = 0; k < kMaxOutputs; ++k) {
      // Gaps between rows must keep this; scalar writes the same elements, and no test of its own would see
      // less.
      std::memset(output[k].data(), 0x5a, output[k].size());
      std::memset(expected[k].data(), 0x5a, expected[k].size());
      if ((wanted >> k & 1) == 0) continue;
      outputs[k] = output[k].data() + outputs_later_;
      expecteds[k] = expected[k].data() + outputs_later_;
    }
    const void* const inputs[] = {x_, dy_, third_};
    (rows_ ? kernels_.map_rows : kernels_.map_columns)[kind](block, inputs, factors.data(), outputs);
    (rows_ ? scalar_.map_rows : scalar_.map_columns)[kind](block, inputs, factors.data(), expecteds);
    for (int k = 0; k < kMaxOutputs; ++k) {
      if (std::memcmp(output[k].data(), expected[k].data(), output[k].size()) != 0) {
        Fail(isa_.name, rows_ ? "map_rows" : "map_columns", kind, block, "other bits than scalar");
      }
      if (outputs[k] != nullptr) CheckGaps(kind, block, static_cast<const char*>(outputs[k]));
    }
  }

  // The same bits as in two loops, of arrays that are not the ones summed.
  void SumAndMap(int kind, SumAndMapFunction both, std::mt19937& random) {
    const int sum = kSums[kind];
    Block block = block_;
    block.width = static_cast<int64_t>(values_);
    const size_t count = values_ * static_cast<size_t>(kSumCounts[sum]);
    using Arithmetic = typename ArithmeticOf<T>::Type;
    Guarded center(values_ * sizeof(double), side_);
    Guarded factors(values_ * static_cast<size_t>(kFactorCounts[kind]) * sizeof(Arithmetic), side_);
    Guarded sums(count * sizeof(double), side_), expected_sums(count * sizeof(double), side_);
    const size_t size = elements_ * sizeof(T) + outputs_later_;
    const Guarded output[] = {{size, side_}, {size, side_}};
    const Guarded expected[] = {{size, side_}, {size, side_}};
    Fill<double>(center.data(), values_, random);
    Fill<Arithmetic>(factors.data(), values_ * static_cast<size_t>(kFactorCounts[kind]), random);
    for (const Guarded* array : {&sums, &expected_sums}) std::memset(array->data(), 0, array->size());
    void *outputs[kMaxOutputs] = {}, *expected_outputs[kMaxOutputs] = {};
    for (int k = 0; k < kOutputCounts[kind]; ++k) {
      std::memset(output[k].data(), 0x5a, output[k].size());
      std::memset(expected[k].data(), 0x5a, expected[k].size());
      outputs[k] = output[k].data() + outputs_later_;
      expected_outputs[k] = expected[k].data() + outputs_later_;
    }
    const void* const inputs[] = {x_, dy_, third_};
    const double* const c = reinterpret_cast<const double*>(center.data());
    both(block, inputs, c, reinterpret_cast<double*>(sums.data()), factors.data(), outputs);
    (rows_ ? scalar_.sum_rows : scalar_.sum_columns)[sum](block, inputs, c,
                                                          reinterpret_cast<double*>(expected_sums.data()));
    (rows_ ? scalar_.map_rows : scalar_.map_columns)[kind](block, inputs, factors.data(), expected_outputs);
    bool same = std::memcmp(sums.data(), expected_sums.data(), sums.size()) == 0;
    for (int k = 0; k < kOutputCounts[kind]; ++k) {
      same = same && std::memcmp(output[k].data(), expected[k].data(), output[k].size()) == 0;
    }
    const char* const name = rows_ ? "sum_and_map_rows" : "sum_and_map_columns";
    if (!same) Fail(isa_.name, name, kind, block, "other bits than scalar's two");
  }

  void CheckGaps(int kind, const Block& block, const char* output) {
    std::vector<bool> written(elements_, false);
    for (int64_t row = 0; row < block.rows; ++row) {
      for (int64_t channel = 0; channel < (rows_ ? block.channels : 1); ++channel) {
        const int64_t start = row * block.row_stride + channel * block.length;
        for (int64_t i = 0; i < block.length; ++i) written[static_cast<size_t>(start + i)] = true;
      }
    }
    T untouched;
    std::memset(&untouched, 0x5a, sizeof(T));
    for (size_t i = 0; i < elements_; ++i) {
      const bool changed = std::memcmp(output + i * sizeof(T), &untouched, sizeof(T)) != 0;
      if (changed != written[i]) {
        Fail(isa_.name, rows_ ? "map_rows" : "map_columns", kind, block, "wrote the wrong elements");
        return;
      }
    }
  }

  const Isa& isa_;
  const TypeKernels &kernels_, &scalar_;
  const Block block_;
  const bool rows_;
  const size_t elements_, values_;
  const Guarded::Side side_;
  const size_t outputs_later_;  // in bytes, in a page
  const Guarded x_memory_, dy_memory_, third_memory_;
  char *const x_, *const dy_, *const third_;
};

// AdamUpdate of arrays of some elements, with each choice of outputs.
template <class T>
void CompareAdam(const Isa& isa, AdamFunction update, AdamFunction scalar, size_t count, Guarded::Side side) {
  using Arrays = std::vector<std::unique_ptr<Guarded>>;
  const size_t size = count * sizeof(T);
  std::mt19937 random(static_cast<unsigned>(count));
  Arrays arrays;
  const void* inputs[kAdamInputs];
  for (const void*& input : inputs) {
    arrays.push_back(std::make_unique<Guarded>(size, side));
    Fill<T>(arrays.back()->data(), count, random);
    input = arrays.back()->data();
  }
  const T coefficients[kAdamCoefficients] = {T(0.5),  T(0.01), T(0.9), T(0.1), T(0.99),
                                             T(0.01), T(0.3),  T(0.7), T(1e-8)};
  for (int wanted = 1; wanted < 1 << kAdamOutputs; ++wanted) {
    Arrays made;
    void *outputs[kAdamOutputs] = {}, *expected[kAdamOutputs] = {};
    for (int k = 0; k < kAdamOutputs; ++k) {
      if ((wanted >> k & 1) == 0) continue;
      for (void** const output : {outputs, expected}) {
        made.push_back(std::make_unique<Guarded>(size, side));
        output[k] = made.back()->data();
        std::memset(output[k], 0x5a, size);
      }
    }
    const int64_t elements = static_cast<int64_t>(count);
    update(elements, inputs, coefficients, outputs);
    scalar(elements, inputs, coefficients, expected);
    for (int k = 0; k < kAdamOutputs; ++k) {
      if (outputs[k] != nullptr && std::memcmp(outputs[k], expected[k], size) != 0) {
        Fail(isa.name, "adam_update", k, {1, 0, 1, elements, false, 0}, "other bits than scalar");
      }
    }
  }
}

template <class T>
int CompareAdam(const Isa& isa, const TypeKernels& kernels, const TypeKernels& scalar) {
  int compared = 0;
  for (size_t count = 0; count <= 70; ++count) {
    for (const Guarded::Side side : {Guarded::kGuardAfter, Guarded::kGuardBefore}) {
      CompareAdam<T>(isa, kernels.adam_update, scalar.adam_update, count, side);
      ++compared;
    }
  }
  return compared;
}

constexpr int kManyChannels = 60;

// One shape in `every` is compared; each length has dozens of shapes.
int every = 1;
bool IsDue() {
  static int shapes = 0;
  return shapes++ % every == 0;
}

// Behind a row: so many elements that the next one begins at a cache line, whatever their type.
constexpr int64_t kToCacheLine = 32;
int64_t Stride(int64_t run, int64_t gap) {
  return gap == kToCacheLine ? (run / kToCacheLine + 1) * kToCacheLine : run + gap;
}

template <class T>
int Compare(const Isa& isa, const TypeKernels& kernels, const TypeKernels& scalar) {
  int shapes = 0;
  std::vector<int64_t> lengths = {128, 129, 196, 511, 512, 529, 1100};  // from 511 on one run is streamed
  for (int64_t length = 1; length <= 70; ++length) lengths.push_back(length);
  for (const int64_t length : lengths) {
    for (const int64_t gap : {int64_t{0}, int64_t{5}, kToCacheLine}) {
      for (const int64_t rows : {1, 8, 19}) {
        for (const Guarded::Side side : {Guarded::kGuardAfter, Guarded::kGuardBefore}) {
          // Only there the first row begins at a cache line, too.
          if (gap == kToCacheLine && side != Guarded::kGuardBefore) continue;
          for (const int64_t channels : {1, 3, kManyChannels}) {
            // Past the cache, where the run of the channels is long enough; many short channels make one that
            // is.
            if (channels == kManyChannels && (rows != 19 || length > 129)) continue;
            if (!IsDue()) continue;
            Comparison<T>(isa, kernels, scalar,
                          {rows, Stride(channels * length, gap), channels, length, gap > 0, 0}, true, side);
            ++shapes;
          }
          if (!IsDue()) continue;
          Comparison<T>(isa, kernels, scalar, {rows, Stride(length, gap), 1, length, gap > 0, 0}, false,
                        side);
          ++shapes;
        }
      }
    }
  }
  // Rows that all have one place in their pages, or every other one, and outputs that have it, too, or one
  // some bytes later or earlier.
  constexpr int64_t kPage = 4096 / static_cast<int64_t>(sizeof(T)), kChannels = 24;
  for (const int64_t length : {7, 49, 100, 131, 196, 256}) {
    for (const int64_t rows : {3, 8, 19}) {
      const int64_t stride = (kChannels * length / kPage + 1) * kPage;
      for (const int64_t more : {int64_t{0}, kPage / 2}) {
        for (const bool stream : {false, true}) {
          const Block block = {rows, stride + more, kChannels, length, stream, 0};
          const Block columns = {rows, stride + more, 1, kChannels * length, stream, 0};
          const auto compare = [&](size_t inputs_later, size_t outputs_later) {
            if (!IsDue()) return;
            Comparison<T>(isa, kernels, scalar, block, true, Guarded::kGuardBefore, inputs_later,
                          outputs_later);
            Comparison<T>(isa, kernels, scalar, columns, false, Guarded::kGuardBefore, inputs_later,
                          outputs_later);
            shapes += 2;
          };
          for (const size_t later : {0, 64, 192, 320, 1024}) compare(0, later);
          compare(64, 0);
        }
      }
    }
  }
  return shapes;
}

void Compare(const Isa& isa) {
  if (!isa.supported()) {
    std::printf("%s: skipped, this machine has none\n", isa.name);
    return;
  }
  const KernelTable& kernels = *isa.table;
  const KernelTable& scalar = *IsaAt(IsaCount() - 1).table;
  const int shapes = Compare<float>(isa, kernels.float32, scalar.float32) +
                     Compare<double>(isa, kernels.float64, scalar.float64) +
                     Compare<Float16>(isa, kernels.float16, scalar.float16) +
                     Compare<BFloat16>(isa, kernels.bfloat16, scalar.bfloat16);
  const int updates = CompareAdam<float>(isa, kernels.float32, scalar.float32) +
                      CompareAdam<double>(isa, kernels.float64, scalar.float64);
  std::printf("%s: %d shapes, each with every kind of sum and map; %d updates\n", isa.name, shapes, updates);
}

}  // namespace

int main(int argc, char** argv) {
  const auto is_asked_for = [&](const char* name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [&](char* a) { return !std::strcmp(a, name); });
  };
  int found = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "every=", 6) == 0) every = std::max(1, std::atoi(argv[i] + 6));
  }
  for (int i = 0; i < IsaCount(); ++i) {
    if (!is_asked_for(IsaAt(i).name)) continue;
    Compare(IsaAt(i));
    ++found;
  }
  if (found == 0) std::printf("no instruction set has such a name\n");
  if (failures > 0) std::printf("%d failures\n", failures);
  return found > 0 && failures == 0 ? 0 : 1;
}
