// Our gradients through the C interface, and the roof, for bench_kernels.py, which compiles this: the
// protocol is that of kernel_serve.py.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "bngrad.h"
#include "kernel_serve.hpp"

namespace {

// `drawn` as the first bytes of an element of a type. It is of bfloat16's precision and float16's range, so
// that the roof, which reads every type's bytes as floats, meets none that is slow to add.
uint64_t Element(int32_t type, float drawn) {
  const float least = std::copysign(std::max(std::fabs(drawn), 1.0F / 1024), drawn);
  uint32_t bits;
  std::memcpy(&bits, &least, sizeof(bits));
  bits &= 0xffff0000;
  if (type == BNGRAD_BFLOAT16) return bits >> 16;
  if (type == BNGRAD_FLOAT16) return bits >> 31 << 15 | ((bits & 0x7fffffff) - (112U << 23)) >> 13;
  if (type == BNGRAD_FLOAT) return bits;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof(bits));
  const double value = rounded;
  uint64_t result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

// At a cache line, and written to: pages that never were are all one page of zeros, which no cache misses.
struct Array {
  Room room;

  void Draw(int64_t size, int32_t type, bool positive, int64_t number = 0) {
    static const std::map<int32_t, int64_t> sizes = {
        {BNGRAD_FLOAT, 4}, {BNGRAD_DOUBLE, 8}, {BNGRAD_FLOAT16, 2}, {BNGRAD_BFLOAT16, 2}};
    const int64_t element = sizes.at(type), drawn = std::min<int64_t>(size, 1 << 16);
    room.Allocate(size * element, number);
    std::mt19937 generator(static_cast<unsigned>(size));
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> about_one(0.5F, 1.5F);
    // Drawing gigabytes would take longer than timing them: values repeat.
    for (int64_t i = 0; i < size; ++i) {
      char* const place = room.data() + i * element;
      if (i >= drawn) {
        std::memcpy(place, place - drawn * element, element);
        continue;
      }
      const uint64_t bits = Element(type, positive ? about_one(generator) : normal(generator));
      std::memcpy(place, &bits, element);
    }
  }
};

// What is timed of the library at a path.
struct Library {
  void* const handle;
  template <class Function>
  Function* Find(const char* name) const {
    void* const found = handle == nullptr ? nullptr : dlsym(handle, name);
    if (found != nullptr) return reinterpret_cast<Function*>(found);
    std::cerr << dlerror() << std::endl;
    std::exit(1);
  }

  decltype(bngrad_add_arrays)* add_arrays = Find<decltype(bngrad_add_arrays)>("bngrad_add_arrays");
  decltype(bngrad_batch_normalization_grad)* grad =
      Find<decltype(bngrad_batch_normalization_grad)>("bngrad_batch_normalization_grad");
  decltype(bngrad_batch_normalization_relu_grad)* relu_grad =
      Find<decltype(bngrad_batch_normalization_relu_grad)>("bngrad_batch_normalization_relu_grad");

  explicit Library(const char* path) : handle(dlopen(path, RTLD_NOW)) {}
};

struct Worker {
  const int32_t threads;
  const Library library;
  const std::unique_ptr<const Library> before;  // an older one, if there is any
  std::vector<int64_t> dims, axes;
  bngrad_layout layout = {};
  bool relu = false, frozen = false;
  int64_t floats = 0;  // of the roof's arrays, which have as many bytes as X
  Array dy, z, x, dx, scale, mean, inv_std, dscale, dbias;

  Worker(int32_t threads, const char* path, const char* before)
      : threads(threads), library(path), before(before == nullptr ? nullptr : new Library(before)) {}

  std::string Prepare(std::istringstream& words) {
    static const std::map<std::string, int32_t> types = {{"float", BNGRAD_FLOAT},
                                                         {"double", BNGRAD_DOUBLE},
                                                         {"float16", BNGRAD_FLOAT16},
                                                         {"bfloat16", BNGRAD_BFLOAT16}};
    std::string dtype, op, order;
    words >> dtype >> op >> frozen >> order;
    relu = op == "relu-grad";
    dims.assign(std::istream_iterator<int64_t>(words), {});
    const int64_t channels = dims[1];
    if (order == "NHWC") std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
    const int64_t kept = order == "NHWC" ? static_cast<int64_t>(dims.size()) - 1 : 1;
    axes.clear();
    for (int64_t axis = 0; axis < static_cast<int64_t>(dims.size()); ++axis) {
      if (axis != kept) axes.push_back(axis);
    }
    const int32_t type = types.at(dtype), parameter = type == BNGRAD_DOUBLE ? type : BNGRAD_FLOAT;
    layout = {
        dims.data(), axes.data(), static_cast<int32_t>(dims.size()), static_cast<int32_t>(axes.size()), type,
        parameter,   parameter};
    const int64_t size = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>());
    floats = size * (type == BNGRAD_DOUBLE ? 2 : 1) / (type == parameter ? 1 : 2);
    int64_t number = 0;
    for (Array* array : {&dy, &x, &dx}) array->Draw(size, type, false, number++);
    z.Draw(relu ? size : 0, type, false, number);
    for (Array* array : {&mean, &dscale, &dbias}) array->Draw(channels, parameter, false);
    for (Array* array : {&scale, &inv_std}) array->Draw(channels, parameter, true);
    const std::string ways = before ? "bngrad roof before" : "bngrad roof";
    std::istringstream each(ways);
    for (std::string way; each >> way;) {
      char error[256] = "";
      if (Call(way, error, sizeof(error)) != BNGRAD_OK) return "refused " + way + ": " + error;
    }
    return "ways " + ways;
  }

  void Run(const std::string& way) { Call(way, nullptr, 0); }

  int32_t Call(const std::string& way, char* error, size_t error_size) const {
    const auto at = [](const Array& array) { return array.room.data(); };
    if (way == "roof") {
      const auto as_floats = [](const Array& array) { return reinterpret_cast<float*>(array.room.data()); };
      return library.add_arrays(floats, as_floats(dy), as_floats(x), as_floats(dx), threads, error,
                                error_size);
    }
    const Library& of = way == "before" ? *before : library;
    if (relu) {
      return of.relu_grad(&layout, !frozen, at(dy), at(z), at(x), at(scale), at(mean), at(inv_std), at(dx),
                          at(dscale), at(dbias), threads, error, error_size);
    }
    return of.grad(&layout, !frozen, at(dy), at(x), at(scale), at(mean), at(inv_std), at(dx), at(dscale),
                   at(dbias), threads, error, error_size);
  }
};

}  // namespace

// Arguments: the number of threads, the library's path and, if there is one, that of an older library.
int main(int argc, char** argv) {
  Worker worker(std::stoi(argv[1]), argv[2], argc > 3 ? argv[3] : nullptr);
  Serve(worker);
}
