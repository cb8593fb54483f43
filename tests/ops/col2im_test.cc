// ColumnsToImages and ExchangeDimensions of random sizes against loops over all elements: the same bits.
#include "core/col2im.hpp"

#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "core/exchange.hpp"

namespace {

using bngrad::WindowAxis;
using Array = std::vector<float>;

class Case {
 public:
  explicit Case(uint64_t seed) : random_(seed) {}

  bool SumsAgree() {
    const int64_t images = Draw(1, 5), channels = Draw(1, 40);
    const WindowAxis r = DrawAxis(), c = DrawAxis();
    const int64_t elements = r.kernel * c.kernel, windows = r.out * c.out, plane = r.size * c.size;
    const Array products = Random(channels * elements * images * windows);
    Array data(static_cast<size_t>(images * channels * plane), std::numeric_limits<float>::quiet_NaN());
    bngrad::PoolThreads threads(2);
    bngrad::ColumnsToImages(products.data(), images, channels, r, c, data.data(), threads);
    Array expected(data.size());
    const float* product = products.data();
    for (int64_t row = 0; row < channels * elements; ++row) {
      for (int64_t column = 0; column < images * windows; ++column, ++product) {
        const int64_t k = row % elements, o = column % windows;
        const int64_t i = o / c.out * r.stride + k / c.kernel * r.dilation - r.begin;
        const int64_t j = o % c.out * c.stride + k % c.kernel * c.dilation - c.begin;
        if (i < 0 || i >= r.size || j < 0 || j >= c.size) continue;
        const int64_t at = (column / windows * channels + row / elements) * plane + i * c.size + j;
        expected[static_cast<size_t>(at)] += *product;
      }
    }
    return data == expected;
  }

  bool ExchangeAgrees() {
    const int64_t first = Draw(1, 70), second = Draw(1, 150), size = Draw(1, 3) == 1 ? 1 : Draw(1, 90);
    const Array x = Random(first * second * size);
    Array y(x.size());
    bngrad::PoolThreads threads(2);
    bngrad::ExchangeDimensions(x.data(), first, second, size, y.data(), threads);
    for (int64_t at = 0; at < first * second * size; ++at) {
      const int64_t i = at / size / second, j = at / size % second;
      if (y[static_cast<size_t>((j * first + i) * size + at % size)] != x[static_cast<size_t>(at)])
        return false;
    }
    return true;
  }

 private:
  int64_t Draw(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }

  // Windows of which some do not meet data, and data that is in no window.
  WindowAxis DrawAxis() { return {Draw(1, 9), Draw(1, 6), Draw(1, 4), Draw(1, 3), Draw(1, 3), Draw(0, 12)}; }

  Array Random(int64_t count) {
    Array values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(Draw(-1000, 1000)) / 7;
    return values;
  }

  std::mt19937_64 random_;
};

}  // namespace

int main() {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    if (Case(seed).SumsAgree() && Case(seed).ExchangeAgrees()) continue;
    std::printf("wrong for seed %d\n", static_cast<int>(seed));
    return 1;
  }
  return 0;
}
