// Maps X to channels. Dimensions of size 1 are dropped, and adjacent dimensions that are both kept or both
// reduced are merged, so that kept (K) and reduced (R) dimensions alternate: NCHW with axes 0,2,3 is R K R,
// NHWC and per-activation are R K. The innermost one selects the family of kernels:
//   rows      reduced: a channel consists of contiguous rows
//   columns   kept: contiguous elements belong to adjacent channels
#pragma once
#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "core/fixed_vector.hpp"

namespace bngrad {

constexpr int kMaxRank = 8;

// Dimensions, or axes.
using Shape = FixedVector<int64_t, kMaxRank>;

// The shape of a vector.
inline Shape Vector(int64_t size) {
  Shape shape;
  shape.push_back(size);
  return shape;
}

// The number of elements.
inline int64_t CountOf(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// "[2,3,4]"
std::string ToString(const Shape& shape);

// Throws InvalidArgument, with the name of the array, if count > kMaxRank.
Shape MakeShape(const char* name, const int64_t* values, int64_t count);

struct Dim {
  int64_t size, stride;
};
using Dims = FixedVector<Dim, kMaxRank>;

enum class Family { kRows, kColumns };

struct Layout {
  Family family;
  Shape kept_shape;  // of scale, mean, ...: the shape of X without the axes
  int64_t channels;  // the number of channels: the product of kept_shape
  int64_t reduced;   // M, the number of elements per channel

  int64_t inner;  // size of the innermost merged dimension; its stride is 1
  Dim row;        // the innermost reduced dimension other than `inner`; {1, 0} if there is none
  Dim channel;    // rows: the innermost kept dimension; {1, 0} if there is none

  // The other merged dimensions, outermost first. The index of a channel runs over outer_kept, then over
  // `channel` (rows) or `inner` (columns).
  Dims outer_kept;
  Dims outer_reduced;
};

// Throws InvalidArgument unless `shape` has 1 to kMaxRank dimensions and `axes` contains each at most once.
Layout MakeLayout(const Shape& shape, const Shape& axes);

// The product of the sizes.
int64_t Count(const Dims& dims);

// The offset of the index-th element in row-major order.
int64_t OffsetOf(const Dims& dims, int64_t index);

}  // namespace bngrad
