// MaxPoolGrad of random windows against loops over them: every element, with infinities and NaN, at ends of
// arrays.
#include "core/max_pool_grad.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "core/threads.hpp"

namespace {

using bngrad::MaxPoolGradArguments;
using bngrad::PoolAxis;

class Case {
 public:
  explicit Case(uint64_t seed) : random_(seed) {}

  // Returns whether the results are those of the loops.
  template <class T>
  bool Agrees(bngrad::ElementType type) {
    MaxPoolGradArguments a = {type, Draw(0, 4), {}, nullptr, nullptr, nullptr};
    int64_t size = 1, windows = 1;
    for (PoolAxis& axis : a.axes) {
      axis = DrawAxis(&axis == a.axes + bngrad::kMaxPoolAxes - 1);
      size *= axis.size;
      windows *= axis.windows;
    }
    const auto array = [&](int64_t count) { return std::vector<T>(static_cast<size_t>(count)); };
    std::vector<T> x = array(a.planes * size), dy = array(a.planes * windows), dx = array(a.planes * size);
    const T special =
        Draw(0, 1) == 0 ? std::numeric_limits<T>::quiet_NaN() : -std::numeric_limits<T>::infinity();
    const bool has_special = Draw(0, 1) == 0;
    for (T& value : x) value = has_special && Draw(0, 2) == 0 ? special : static_cast<T>(Draw(-2, 2));
    for (T& value : dy) value = static_cast<T>(Draw(-1000, 1000)) / 7;
    std::fill(dx.begin(), dx.end(), std::numeric_limits<T>::quiet_NaN());
    a.dY = dy.data(), a.X = x.data(), a.dX = dx.data();
    bngrad::PoolThreads threads(2);
    bngrad::MaxPoolGrad(a, threads);
    std::vector<T> expected = array(a.planes * size);
    for (int64_t p = 0; p < a.planes; ++p) {
      for (int64_t w = 0; w < windows; ++w) {
        const int64_t best = FirstLargest(a.axes, w, x.data() + p * size);
        if (best >= 0)
          expected[static_cast<size_t>(p * size + best)] += dy[static_cast<size_t>(p * windows + w)];
      }
    }
    return dx == expected;
  }

 private:
  int64_t Draw(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }

  PoolAxis DrawAxis(bool is_last) {
    if (!is_last && Draw(0, 2) == 0) return {1, 1, 1, 1, 1, 0};
    for (;;) {
      PoolAxis axis = {Draw(1, is_last && Draw(0, 9) == 0 ? 700 : 12), 0, Draw(1, 5), Draw(1, 4), 1, 0};
      if (Draw(0, 1) == 0)
        axis.kernel = Draw(2, 3), axis.stride = Draw(1, 2);
      else
        axis.dilation = Draw(1, 3);
      axis.begin = Draw(0, axis.kernel - 1);
      // Far from X, but for a window or two.
      if (Draw(0, 9) == 0) {
        axis = {axis.size, 0, axis.kernel, Draw(1 << 28, 1 << 30), Draw(1, 1 << 27), Draw(0, 1 << 30)};
      }
      const int64_t length = (axis.kernel - 1) * axis.dilation + 1;
      const int64_t room = axis.size + axis.begin + Draw(0, axis.kernel - 1) - length;
      if (room < 0) continue;
      axis.windows = (Draw(0, 1) == 0 ? room : room + axis.stride - 1) / axis.stride + 1;
      while ((axis.windows - 1) * axis.stride >= axis.size + axis.begin) --axis.windows;
      return axis;
    }
  }

  // The index in a plane, or -1 for a window without elements.
  template <class T>
  static int64_t FirstLargest(const PoolAxis* axes, int64_t window, const T* x) {
    const int64_t at[] = {window / axes[2].windows / axes[1].windows,
                          window / axes[2].windows % axes[1].windows, window % axes[2].windows};
    int64_t best = -1;
    for (int64_t k = 0; k < axes[0].kernel * axes[1].kernel * axes[2].kernel; ++k) {
      const int64_t element[] = {k / axes[2].kernel / axes[1].kernel, k / axes[2].kernel % axes[1].kernel,
                                 k % axes[2].kernel};
      int64_t index = 0;
      bool inside = true;
      for (int i = 0; i < bngrad::kMaxPoolAxes; ++i) {
        const int64_t place = at[i] * axes[i].stride - axes[i].begin + element[i] * axes[i].dilation;
        inside = inside && place >= 0 && place < axes[i].size;
        index = index * axes[i].size + place;
      }
      if (inside && (best < 0 || x[index] > x[best])) best = index;
    }
    return best;
  }

  std::mt19937_64 random_;
};

}  // namespace

int main() {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    if (!Case(seed).Agrees<float>(bngrad::ElementType::kFloat) ||
        !Case(seed).Agrees<double>(bngrad::ElementType::kDouble)) {
      std::printf("MaxPoolGrad: wrong for seed %d\n", static_cast<int>(seed));
      return 1;
    }
  }
  return 0;
}
