// Which elements of X make a channel. Dimensions of extent 1 vanish and neighbours that are both kept or both
// reduced merge, so that X becomes an alternating pattern of kept (K) and reduced (R) blocks: NCHW with axes
// 0,2,3 is R K R, NHWC and per-activation are R K. The innermost block decides between two families:
//   rows      it is reduced: a channel is made of contiguous rows
//   columns   it is kept: contiguous elements belong to neighbouring channels
#pragma once
#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "core/fixed_vector.hpp"

namespace bngrad {

constexpr int kMaxRank = 8;

// Extents, or axes: no tensor here has more.
using Shape = ShortList<int64_t, kMaxRank>;

// "[2,3,4]"
std::string ToString(const Shape& shape);

// A list of the caller's. Throws InvalidArgument if it has more values than a Shape holds.
Shape MakeShape(const char* name, const int64_t* values, int64_t count);

struct Dim {
  int64_t extent, stride;
};
using Dims = ShortList<Dim, kMaxRank>;

enum class Family { kRows, kColumns };

struct Layout {
  Family family;
  Shape kept_shape;  // of scale, mean ...: X's without the axes
  int64_t channels;  // its elements
  int64_t reduced;   // M, the elements of a channel

  int64_t inner;  // extent of the innermost block; its stride is 1
  Dim row;        // the innermost reduced block that is not `inner`; {1, 0} if there is none
  Dim channel;    // rows family: the innermost kept block; {1, 0} if there is none

  // What is left, outermost first. Channels count over outer_kept, then `channel` or `inner`.
  Dims outer_kept;
  Dims outer_reduced;
};

// Throws InvalidArgument unless `shape` has 1 to 8 dimensions and `axes` names some of them, each once.
Layout MakeLayout(const Shape& shape, const Shape& axes);

// The product of all extents.
int64_t Count(const Dims& dims);

// The offset of the index-th position, counting over all dims, the last one fastest.
int64_t OffsetOf(const Dims& dims, int64_t index);

}  // namespace bngrad
