// A random call of a function of bngrad.h, valid or with one fault.
#pragma once
#include <climits>
#include <string>
#include <vector>

#include "fuzz_buffer.hpp"

enum class Kind { kData, kScale, kStat };

struct Array {
  const char* name;
  Kind kind;
  bool output;
};

enum class Function { kGrad, kReluGrad, kGradGrad, kTraining, kStatistics };

// Arrays in the order of the arguments.
inline const std::vector<Array>& ArraysOf(Function function) {
  constexpr Kind kD = Kind::kData, kS = Kind::kScale, kT = Kind::kStat;
  static const std::vector<Array> arrays[] = {{{"dy", kD, false},
                                               {"x", kD, false},
                                               {"scale", kS, false},
                                               {"mean", kT, false},
                                               {"inv_std", kT, false},
                                               {"dx", kD, true},
                                               {"dscale", kS, true},
                                               {"dbias", kS, true}},
                                              {{"dz", kD, false},
                                               {"z", kD, false},
                                               {"x", kD, false},
                                               {"scale", kS, false},
                                               {"mean", kT, false},
                                               {"inv_std", kT, false},
                                               {"dx", kD, true},
                                               {"dscale", kS, true},
                                               {"dbias", kS, true}},
                                              {{"ddx", kD, false},
                                               {"ddscale", kS, false},
                                               {"ddbias", kS, false},
                                               {"dy", kD, false},
                                               {"x", kD, false},
                                               {"scale", kS, false},
                                               {"mean", kT, false},
                                               {"inv_std", kT, false},
                                               {"d_dy", kD, true},
                                               {"d_x", kD, true},
                                               {"d_scale", kS, true}},
                                              {{"x", kD, false},
                                               {"scale", kS, false},
                                               {"bias", kS, false},
                                               {"running_mean", kT, false},
                                               {"running_var", kT, false},
                                               {"y", kD, true},
                                               {"new_running_mean", kT, true},
                                               {"new_running_var", kT, true},
                                               {"saved_mean", kT, true},
                                               {"saved_inv_std", kT, true}},
                                              {{"x", kD, false}, {"mean", kT, true}, {"inv_std", kT, true}}};
  return arrays[static_cast<int>(function)];
}

// The arguments other than the arrays.
struct Arguments {
  Function function;
  std::vector<int64_t> dims, axes;
  bngrad_layout layout;  // dims and axes are set to copies in Call
  bool layout_is_null, dims_are_null, axes_are_null;
  int32_t flag;  // training_mode, or unbiased_running_var
  double epsilon, momentum;
  int32_t num_threads;
};

inline int32_t TypeOf(const bngrad_layout& layout, Kind kind) {
  return kind == Kind::kData ? layout.type : kind == Kind::kScale ? layout.scale_type : layout.stat_type;
}

inline int32_t Call(const Arguments& a, const std::vector<void*>& p, char* error, size_t error_size) {
  const auto copy = [](const std::vector<int64_t>& values) {
    Buffer buffer(values.size() * sizeof(int64_t));
    if (!values.empty()) std::memcpy(buffer.data(), values.data(), buffer.size());
    return buffer;
  };
  const Buffer dims = copy(a.dims), axes = copy(a.axes);
  bngrad_layout given = a.layout;
  given.dims = a.dims_are_null ? nullptr : reinterpret_cast<const int64_t*>(dims.data());
  given.axes = a.axes_are_null ? nullptr : reinterpret_cast<const int64_t*>(axes.data());
  const bngrad_layout* const layout = a.layout_is_null ? nullptr : &given;
  switch (a.function) {
    case Function::kGrad:
      return bngrad_batch_normalization_grad(layout, a.flag, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7],
                                             a.num_threads, error, error_size);
    case Function::kReluGrad:
      return bngrad_batch_normalization_relu_grad(layout, a.flag, p[0], p[1], p[2], p[3], p[4], p[5], p[6],
                                                  p[7], p[8], a.num_threads, error, error_size);
    case Function::kGradGrad:
      return bngrad_batch_normalization_grad_grad(layout, a.flag, p[0], p[1], p[2], p[3], p[4], p[5], p[6],
                                                  p[7], p[8], p[9], p[10], a.num_threads, error, error_size);
    case Function::kTraining:
      return bngrad_batch_normalization_training(layout, a.epsilon, a.momentum, a.flag, p[0], p[1], p[2],
                                                 p[3], p[4], p[5], p[6], p[7], p[8], p[9], a.num_threads,
                                                 error, error_size);
    case Function::kStatistics:
      break;
  }
  return bngrad_batch_normalization_statistics(layout, a.epsilon, p[0], p[1], p[2], a.num_threads, error,
                                               error_size);
}

inline int64_t Product(const std::vector<int64_t>& dims, const std::vector<bool>& reduced, bool of_reduced) {
  int64_t product = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (reduced[d] == of_reduced) product *= dims[d];
  }
  return product;
}

// Most shapes are small, so that a million of them take minutes; some are large enough for segments, tiles,
// threads and non-temporal stores. With a dimension of 0 others may be huge.
inline Arguments DrawArguments(Random& random, std::vector<bool>* reduced) {
  constexpr int64_t kDims[] = {1,  1,  2,  2,  3,  4,  5,  7,  8,  9,   13,  15,  16,   17,
                               23, 31, 32, 33, 48, 61, 64, 65, 97, 127, 256, 521, 1031, 4099};
  const int64_t budget = random.OneIn(50000) ? int64_t{1} << 22
                         : random.OneIn(400) ? 100000
                         : random.OneIn(8)   ? 4000
                                             : 300;
  Arguments a = {};
  a.function = static_cast<Function>(random.Below(5));
  const int64_t rank = 1 + random.Below(8);
  int64_t left = budget;
  reduced->clear();
  for (int64_t d = 0; d < rank; ++d) {
    int64_t dim = random.Of(kDims);
    if (budget > 300 && random.OneIn(rank)) dim = left;
    if (dim > left) dim = 1 + random.Below(left);
    left /= dim;
    a.dims.push_back(dim);
    reduced->push_back(random.OneIn(2));
  }
  for (size_t i = a.dims.size(); i-- > 1;) {
    std::swap(a.dims[i], a.dims[static_cast<size_t>(random.Below(static_cast<int64_t>(i) + 1))]);
  }
  if (random.OneIn(30)) {
    const size_t empty = static_cast<size_t>(random.Below(rank)),
                 huge = static_cast<size_t>(random.Below(rank));
    const bool safe = (*reduced)[huge] || !(*reduced)[empty];  // otherwise there are as many channels
    a.dims[empty] = 0;
    if (huge != empty && safe) a.dims[huge] = int64_t{1} << (20 + random.Below(19));
  }
  for (int64_t d = 0; d < rank; ++d) {
    if ((*reduced)[static_cast<size_t>(d)]) a.axes.push_back(random.OneIn(3) ? d - rank : d);
  }
  for (size_t i = a.axes.size(); i-- > 1;) {
    std::swap(a.axes[i], a.axes[static_cast<size_t>(random.Below(static_cast<int64_t>(i) + 1))]);
  }
  a.layout.rank = static_cast<int32_t>(rank);
  a.layout.axes_count = static_cast<int32_t>(a.axes.size());
  a.axes_are_null = a.axes.empty() && random.OneIn(2);

  constexpr int32_t kTypes[] = {BNGRAD_FLOAT, BNGRAD_FLOAT16, BNGRAD_DOUBLE, BNGRAD_BFLOAT16};
  const int32_t type = a.layout.type = random.Of(kTypes);
  a.layout.scale_type = random.OneIn(2) ? type : static_cast<int32_t>(BNGRAD_FLOAT);
  a.layout.stat_type = random.OneIn(2) ? type : static_cast<int32_t>(BNGRAD_FLOAT);
  if (a.function == Function::kStatistics) {
    a.layout.stat_type = type == BNGRAD_DOUBLE ? BNGRAD_DOUBLE : BNGRAD_FLOAT;
  }
  a.flag = static_cast<int32_t>(random.Below(2));
  constexpr double kEpsilons[] = {1e-5, 1e-3, 0.1, 1};
  a.epsilon = random.Of(kEpsilons);
  constexpr double kMomenta[] = {0, 0.1, 0.9, 0.99, 1, -0.5, 2};
  a.momentum = random.Of(kMomenta);
  a.num_threads = static_cast<int32_t>(random.Below(10)) - 1;
  return a;
}

// Adds a fault to a valid call. Returns a part of the expected message.
inline std::string DrawFault(Random& random, Arguments& a, std::vector<void*>& p,
                             const std::vector<Buffer>& buffers) {
  const std::vector<Array>& arrays = ArraysOf(a.function);
  const size_t rank = a.dims.size();
  const auto any_array = [&] {
    return static_cast<size_t>(random.Below(static_cast<int64_t>(arrays.size())));
  };
  for (;;) {
    switch (random.Below(14)) {
      case 0:
        a.layout_is_null = true;
        return "layout is null";
      case 1:
        a.dims_are_null = true;
        return "dims is null; expected an array of " + std::to_string(rank) + " values";
      case 2: {
        constexpr int32_t kRanks[] = {0, 9, 10, 1000, INT_MAX, -1, INT_MIN};
        a.layout.rank = random.Of(kRanks);
        return "rank is " + std::to_string(a.layout.rank) + "; expected 1 to 8";
      }
      case 3: {
        constexpr int32_t kCounts[] = {-1, INT_MIN};
        a.layout.axes_count = random.Of(kCounts);
        return "axes_count is " + std::to_string(a.layout.axes_count) + "; expected 0 to " +
               std::to_string(rank);
      }
      case 4:
        a.dims[static_cast<size_t>(random.Below(static_cast<int64_t>(rank)))] =
            random.OneIn(2) ? -1 : INT64_MIN;
        return "; expected dimensions of 0 or more";
      case 5: {
        // Detected even if the product wraps to a small number or another dimension is 0.
        if (rank < 2) break;
        constexpr int64_t kSizes[] = {int64_t{1} << 32, int64_t{1} << 62, INT64_MAX, (int64_t{1} << 61) + 1};
        const size_t first = static_cast<size_t>(random.Below(static_cast<int64_t>(rank)));
        a.dims[first] = random.Of(kSizes);
        a.dims[(first + 1) % rank] = random.Of(kSizes);
        return "is too large to address";
      }
      case 6: {
        if (a.axes.empty()) break;
        const int64_t r = static_cast<int64_t>(rank);
        const int64_t wrong[] = {r, -r - 1, INT64_MAX, INT64_MIN, r + random.Below(100)};
        a.axes[0] = random.Of(wrong);
        return "is out of range for X of shape";
      }
      case 7:
        if (a.axes.size() < 2) break;
        a.axes[0] = a.axes[1] < 0 ? a.axes[1] + static_cast<int64_t>(rank)
                                  : a.axes[1] - (random.OneIn(2) ? static_cast<int64_t>(rank) : 0);
        return "twice; expected each axis once";
      case 8: {
        const int32_t counts[] = {static_cast<int32_t>(rank) + 1, 1000, INT_MAX};
        a.layout.axes_count = random.Of(counts);
        return "axes_count is " + std::to_string(a.layout.axes_count) + "; expected 0 to " +
               std::to_string(rank);
      }
      case 9: {
        constexpr int32_t kWrong[] = {0, 2, 3, 7, 9, 12, 15, 17, -1, INT_MIN, INT_MAX};
        constexpr int32_t kOther[] = {BNGRAD_FLOAT16, BNGRAD_DOUBLE, BNGRAD_BFLOAT16};
        int32_t* const types[] = {&a.layout.type, &a.layout.scale_type, &a.layout.stat_type};
        int32_t& type = *random.Of(types);
        const int32_t wrong = random.OneIn(2) ? random.Of(kWrong) : random.Of(kOther);
        if (wrong == type || (&type != types[0] && wrong == *types[0])) break;
        if (&type == types[0] && a.layout.scale_type == BNGRAD_FLOAT && a.layout.stat_type == BNGRAD_FLOAT &&
            wrong >= 10 && wrong != 12 && wrong <= 16 && wrong != 15) {
          break;  // a valid combination
        }
        type = wrong;
        return "types ";
      }
      case 10:
        if (a.function == Function::kStatistics) break;
        a.flag = random.OneIn(2) ? 2 : -1;
        return "; expected 0 or 1";
      case 11: {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
        constexpr double kEpsilons[] = {-1, -1e-300, -kInfinity, kInfinity, kNan};
        constexpr double kMomenta[] = {-kInfinity, kInfinity, kNan};
        if (a.function != Function::kTraining && a.function != Function::kStatistics) break;
        if (a.function == Function::kStatistics || random.OneIn(2)) {
          a.epsilon = random.Of(kEpsilons);
          return "epsilon is ";
        }
        a.momentum = random.Of(kMomenta);
        return "momentum is ";
      }
      case 12: {
        const size_t i = any_array();
        if (buffers[i].size() == 0) break;
        const std::string name = arrays[i].name;
        if (!arrays[i].output && random.OneIn(2)) {
          p[i] = nullptr;
          return name + " is null";
        }
        const size_t element = SizeOf(TypeOf(a.layout, arrays[i].kind));
        p[i] = buffers[i].data() + 1 + random.Below(static_cast<int64_t>(element) - 1);
        return name + " is not aligned";
      }
      default: {
        // An output that overlaps another array by one element up to all of both.
        const size_t i = any_array(), k = any_array();
        if (i == k || !arrays[i].output || buffers[i].size() == 0 || buffers[k].size() == 0) break;
        const size_t element = SizeOf(TypeOf(a.layout, arrays[i].kind));
        const size_t elements = (buffers[k].size() + element - 1) / element;
        p[i] =
            buffers[k].data() + element * static_cast<size_t>(random.Below(static_cast<int64_t>(elements)));
        if (reinterpret_cast<uintptr_t>(p[i]) % element != 0) break;
        return " overlaps ";
      }
    }
    for (size_t i = 0; i < arrays.size(); ++i)
      p[i] = buffers[i].data();  // undo a fault that is not applicable
  }
}
