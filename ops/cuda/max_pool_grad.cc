#include "cuda/max_pool_grad.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "cuda/kernels/max_pool_grad.h"

namespace bngrad::cuda {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
// Of planes that are computed together: the places of their windows take 64 MiB.
#if defined(BNGRAD_CUDA_WINDOWS)
constexpr int64_t kWindowsTogether = BNGRAD_CUDA_WINDOWS;  // fewer for the tests
#else
constexpr int64_t kWindowsTogether = 1 << 24;
#endif

int64_t ReachOf(const PoolAxis& axis) { return (axis.kernel - 1) * axis.dilation; }

PoolDim MakeDim(const PoolAxis& axis) {
  PoolDim dim = {};
  dim.size = MakeDivisor(axis.size);
  dim.windows = MakeDivisor(axis.windows);
  dim.stride = MakeDivisor(axis.stride);
  dim.kernel = static_cast<int32_t>(axis.kernel);
  dim.dilation = static_cast<int32_t>(axis.dilation);
  dim.begin = static_cast<int32_t>(axis.begin);
  dim.reach_windows = static_cast<int32_t>(ReachOf(axis) / axis.stride);
  dim.reach_rest = static_cast<int32_t>(ReachOf(axis) % axis.stride);
  return dim;
}

}  // namespace

void MaxPoolGrad(const MaxPoolGradArguments& a, Device& device) {
  if (a.planes == 0) return;
  int64_t size = 1, windows = 1, most = 0;
  for (const PoolAxis& axis : a.axes) {
    size *= axis.size;
    windows *= axis.windows;
    most = std::max({most, axis.begin + axis.size, (axis.windows - 1) * axis.stride + ReachOf(axis)});
  }
  if (size == 0) return;
  if (windows == 0) return device.Zero(a.dX, static_cast<size_t>(a.planes * size) * SizeOf(a.type));
  most = std::max({most, size, windows});
  if (most > kMost) {
    throw InvalidArgument("a plane of X has elements, windows or padding up to an index of " +
                          std::to_string(most) + "; a GPU takes at most " + std::to_string(kMost) +
                          ". Run the model on the CPU");
  }
  const int64_t together =
      std::min(a.planes, std::max<int64_t>(1, std::min(kWindowsTogether / windows, kMost / size)));
  MaxPoolArguments arguments = {
      0,       0, MakeDim(a.axes[0]), MakeDim(a.axes[1]), MakeDim(a.axes[2]), nullptr, nullptr, nullptr,
      nullptr, 0};
  arguments.places =
      static_cast<uint32_t*>(device.Scratch(static_cast<size_t>(together * windows) * sizeof(uint32_t)));
  const auto launch = [&](const char* kernel, int64_t count) {
    arguments.blocks = device.BlocksOfLoop(count);
    device.Launch(a.type, kernel, arguments.blocks, 1, &arguments);
  };
  for (int64_t first = 0; first < a.planes; first += together) {
    const int64_t planes = std::min(together, a.planes - first);
    const size_t before = static_cast<size_t>(first) * SizeOf(a.type);
    const size_t of_x = before * static_cast<size_t>(size), of_dy = before * static_cast<size_t>(windows);
    arguments.x = static_cast<const char*>(a.X) + of_x;
    arguments.dy = static_cast<const char*>(a.dY) + of_dy;
    arguments.dx = static_cast<char*>(a.dX) + of_x;
    arguments.elements = static_cast<uint32_t>(planes * size);
    arguments.windows = static_cast<uint32_t>(planes * windows);
    launch("max_pool_find", planes * windows);
    launch("max_pool_add", planes * size);
  }
}

}  // namespace bngrad::cuda
