// Depthwise convolutions of random shapes: the values of plain loops in double, the same bits on every
// instruction set and with any number of threads, and nothing written around the results.
//
// depthwise_test [COUNT [SEED]]
#include "core/depthwise.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/dispatch.hpp"
#include "fuzz_buffer.hpp"

using namespace bngrad;

namespace {

int failures = 0;

std::string Text(const WindowAxis& a) {
  std::string text;
  for (const int64_t value : {a.size, a.out, a.kernel, a.stride, a.dilation, a.begin})
    text += " " + std::to_string(value);
  return text;
}

void Fail(const DepthwiseShape& s, const char* isa, const char* what) {
  if (++failures > 20) return;
  std::printf("%s: %s: batch %d channels %d multiplier %d, rows%s, columns%s\n", isa, what,
              static_cast<int>(s.batch), static_cast<int>(s.channels), static_cast<int>(s.multiplier),
              Text(s.rows).c_str(), Text(s.columns).c_str());
}

WindowAxis RandomAxis(Random& random, int64_t most) {
  WindowAxis a = {random.OneIn(20) ? 0 : 1 + random.Below(most),
                  0,
                  1 + random.Below(4),
                  1 + random.Below(4),
                  1 + random.Below(3),
                  0};
  if (random.OneIn(3)) a.stride = 2;
  if (random.OneIn(2)) a.dilation = 1;
  const int64_t window = (a.kernel - 1) * a.dilation + 1;
  a.begin = random.Below(window);
  const int64_t room = a.size + a.begin + random.Below(window) - window;
  a.out = room < 0 ? 0 : room / a.stride + 1;
  return a;
}

template <class T>
class Case {
 public:
  Case(const DepthwiseShape& shape, Random& random)
      : s_(shape),
        x_(Count(s_.batch * s_.channels * s_.in_plane())),
        y_(Count(s_.batch * s_.channels * s_.multiplier * s_.out_plane())),
        w_(Count(s_.channels * s_.multiplier * s_.elements())),
        b_(Count(s_.channels * s_.multiplier)) {
    for (std::vector<T>* array : {&x_, &w_, &b_, &y_}) {
      for (T& value : *array) value = static_cast<T>(2 * random.From0To1() - 1);
    }
    Reference();
  }

  void Check() {
    PoolThreads one(1), three(3);
    std::vector<Buffer> first = Results(*IsaAt(IsaCount() - 1).table, one, "scalar");
    for (size_t i = 0; i < first.size(); ++i) Compare(first[i], expected_[i]);
    for (int i = 0; i < IsaCount(); ++i) {
      if (!IsaAt(i).supported()) continue;
      for (PoolThreads* const threads : {&one, &three}) {
        const std::vector<Buffer> results = Results(*IsaAt(i).table, *threads, IsaAt(i).name);
        for (size_t k = 0; k < results.size(); ++k) {
          if (std::memcmp(results[k].data(), first[k].data(), first[k].size()) == 0) continue;
          Fail(s_, IsaAt(i).name,
               threads == &one ? "other bits than scalar" : "other bits with three threads");
        }
      }
    }
  }

 private:
  static size_t Count(int64_t count) { return static_cast<size_t>(count); }

  std::vector<Buffer> Results(const KernelTable& table, PoolThreads& threads, const char* isa) const {
    std::vector<Buffer> results;
    for (const std::vector<T>* like : {&y_, &y_, &x_, &w_}) results.emplace_back(like->size() * sizeof(T));
    DepthwiseConv(s_, x_.data(), w_.data(), b_.data(), results[0].data(), table, threads);
    DepthwiseConv(s_, x_.data(), w_.data(), nullptr, results[1].data(), table, threads);
    DepthwiseConvGrad(s_, y_.data(), x_.data(), w_.data(), results[2].data(), results[3].data(), table,
                      threads);
    for (const Buffer& result : results) {
      if (!result.MarginsIntact()) Fail(s_, isa, "wrote around an array");
    }
    return results;
  }

  void Reference() {
    for (const std::vector<T>* like : {&y_, &y_, &x_, &w_}) expected_.emplace_back(like->size(), 0.0);
    const WindowAxis &r = s_.rows, &c = s_.columns;
    const int64_t outputs = s_.channels * s_.multiplier;
    for (int64_t plane = 0; plane < s_.batch * outputs; ++plane) {
      const int64_t m = plane % outputs,
                    data = (plane / outputs * s_.channels + m / s_.multiplier) * s_.in_plane();
      for (int64_t o = 0; o < s_.out_plane(); ++o) {
        const size_t y = Count(plane * s_.out_plane() + o);
        expected_[0][y] = b_[Count(m)];
        for (int64_t k = 0; k < s_.elements(); ++k) {
          const int64_t row = o / c.out * r.stride + k / c.kernel * r.dilation - r.begin;
          const int64_t column = o % c.out * c.stride + k % c.kernel * c.dilation - c.begin;
          if (row < 0 || row >= r.size || column < 0 || column >= c.size) continue;
          const size_t x = Count(data + row * c.size + column), w = Count(m * s_.elements() + k);
          expected_[0][y] += static_cast<double>(w_[w]) * x_[x];
          expected_[1][y] += static_cast<double>(w_[w]) * x_[x];
          expected_[2][x] += static_cast<double>(w_[w]) * y_[y];
          expected_[3][w] += static_cast<double>(y_[y]) * x_[x];
        }
      }
    }
  }

  void Compare(const Buffer& result, const std::vector<double>& expected) const {
    const T* const values = reinterpret_cast<const T*>(result.data());
    // Terms of at most 1; a kernel has 16 elements, and dW's long sums are in double.
    const double bound =
        sizeof(T) == sizeof(float) ? 2e-5 : 1e-13 * (1 + std::sqrt(static_cast<double>(y_.size())));
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!(std::abs(static_cast<double>(values[i]) - expected[i]) <= bound * (1 + std::abs(expected[i])))) {
        return Fail(s_, "scalar", "a value is wrong");
      }
    }
  }

  const DepthwiseShape s_;
  std::vector<T> x_, y_, w_, b_;
  std::vector<std::vector<double>> expected_;
};

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 300;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  for (int i = 0; i < count; ++i) {
    Random random(seed, static_cast<uint64_t>(i));
    DepthwiseShape s = {};
    s.batch = random.Below(4);
    s.channels = 1 + random.Below(random.OneIn(4) ? 40 : 4);
    s.multiplier = random.OneIn(3) ? 1 + random.Below(3) : 1;
    s.columns = RandomAxis(random, random.OneIn(3) ? 70 : 20);
    s.rows = random.OneIn(4) ? WindowAxis{1, 1, 1, 1, 1, 0} : RandomAxis(random, 20);
    s.type = ElementType::kFloat;
    Case<float>(s, random).Check();
    s.type = ElementType::kDouble;
    Case<double>(s, random).Check();
  }
  std::printf("%d shapes, %d failures\n", count, failures);
  return failures == 0 ? 0 : 1;
}
