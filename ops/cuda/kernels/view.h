// The division of X among the threads of a grid. The host computes the numbers (cuda/plan.cc).
//   rows      the innermost dimension is reduced: a block has one channel, its threads adjacent vectors
//   columns   the innermost dimension is kept: a block has `lanes` adjacent vectors of channels, and a thread
//   one
// The grid is (groups of channels) x (splits of the elements of a channel).
#pragma once
#include "cuda/kernels/device.h"

namespace bngrad::cuda {

constexpr int kMaxViewDims = 4;  // dimensions of X alternate between kept and reduced

struct ViewDims {
  int32_t count;
  int64_t size[kMaxViewDims], stride[kMaxViewDims];  // the innermost first; 1 and 0 after `count`
};

struct View {
  int64_t channels;    // all
  int64_t width;       // elements of a vector
  int64_t reduced;     // elements of a channel
  int64_t positions;   // vectors of a channel (rows), or elements (columns)
  int64_t plane;       // adjacent positions: position p is p % plane in index p / plane of `outer`
  int64_t step_outer;  // a thread's next position is `step_outer` planes and `step_inner` positions on
  int64_t step_inner;
  ViewDims outer;  // reduced
  ViewDims kept;   // rows: index of a channel; columns: of its outer part
  int64_t inner;   // columns: adjacent channels
  int64_t tiles;   // columns: blocks for `inner`
  int32_t lanes;   // columns: threads for adjacent vectors, a power of 2
  int32_t splits;
};

// Not inlined: rare, and 64-bit divisions are long. Numbers, not ViewDims: of a kernel's argument whose
// address is taken, every thread makes a copy in local memory.
BNGRAD_DEVICE_CALL int64_t OffsetOf(int64_t index, int64_t size0, int64_t size1, int64_t size2,
                                    int64_t stride0, int64_t stride1, int64_t stride2, int64_t stride3) {
  const int64_t index1 = index / size0, index2 = index1 / size1, index3 = index2 / size2;
  return (index - index1 * size0) * stride0 + (index1 - index2 * size1) * stride1 +
         (index2 - index3 * size2) * stride2 + index3 * stride3;
}

// The offsets of several indices, with one branch for all.
template <int kCount>
BNGRAD_DEVICE void Offsets(const ViewDims& dims, const int64_t* indices, int64_t* offsets) {
  if (dims.count == 1) {
    BNGRAD_UNROLL for (int i = 0; i < kCount; ++i) offsets[i] = indices[i] * dims.stride[0];
    return;
  }
  BNGRAD_UNROLL for (int i = 0; i < kCount; ++i) {
    offsets[i] = OffsetOf(indices[i], dims.size[0], dims.size[1], dims.size[2], dims.stride[0],
                          dims.stride[1], dims.stride[2], dims.stride[3]);
  }
}

BNGRAD_DEVICE int64_t Offset(const ViewDims& dims, int64_t index) {
  int64_t offset;
  Offsets<1>(dims, &index, &offset);
  return offset;
}

// The part of X that a thread has.
template <int V, bool kColumns>
struct Part {
  int64_t channel;  // of the first element of a vector
  int64_t base;     // the offset of the first element
  int64_t first, last;
  bool active;  // columns: there are channels for the thread

  BNGRAD_DEVICE_MEMBER explicit Part(const View& view) {
    const uint32_t thread = ThreadIndex();
    const int64_t group = BlockIndexX(), split = BlockIndexY();
    uint32_t row = thread;
    if (kColumns) {
      const uint32_t lanes = static_cast<uint32_t>(view.lanes);
      const int64_t outer = group / view.tiles, tile = group - outer * view.tiles;
      const int64_t column = (tile * lanes + (thread & (lanes - 1))) * V;
      row = thread / lanes;
      active = column < view.inner;
      channel = outer * view.inner + column;
      base = Offset(view.kept, outer) + column;
    } else {
      active = true;
      channel = group;
      base = Offset(view.kept, group);
    }
    // Not positions * split / splits, which may overflow.
    const int64_t each = view.positions / view.splits, rest = view.positions % view.splits;
    const int64_t begin = each * split + (split < rest ? split : rest);
    last = begin + each + (split < rest ? 1 : 0);
    first = begin + row;
  }
};

// Positions that a thread visits.
class Cursor {
 public:
  BNGRAD_DEVICE_MEMBER Cursor(const View& view, int64_t position)
      : outer_(position / view.plane), inner_(position - position / view.plane * view.plane) {}

  // The offsets of the next positions from `base`: all before the first load, so that loads do not wait for
  // branches.
  template <int V, int kCount>
  BNGRAD_DEVICE_MEMBER void Next(const View& view, int64_t base, int64_t* offsets) {
    int64_t outer[kCount], inner[kCount];
    BNGRAD_UNROLL for (int i = 0; i < kCount; ++i) {
      outer[i] = outer_;
      inner[i] = inner_;
      Advance(view);
    }
    Offsets<kCount>(view.outer, outer, offsets);
    BNGRAD_UNROLL for (int i = 0; i < kCount; ++i) offsets[i] += base + inner[i] * V;
  }

 private:
  BNGRAD_DEVICE_MEMBER void Advance(const View& view) {
    outer_ += view.step_outer;
    inner_ += view.step_inner;
    if (inner_ >= view.plane) {
      inner_ -= view.plane;
      ++outer_;
    }
  }

  int64_t outer_, inner_;
};

}  // namespace bngrad::cuda
