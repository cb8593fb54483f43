// How the threads of a grid divide X. The host computes the numbers (cuda/plan.cc).
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
  int64_t size[kMaxViewDims], stride[kMaxViewDims];  // the innermost one last
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

// Not inlined: rare, and 64-bit divisions are long.
BNGRAD_DEVICE_CALL int64_t OffsetInDims(const ViewDims& dims, int64_t index) {
  int64_t offset = 0;
  for (int i = dims.count - 1; i >= 0; --i) {
    offset += index % dims.size[i] * dims.stride[i];
    index /= dims.size[i];
  }
  return offset;
}

BNGRAD_DEVICE int64_t Offset(const ViewDims& dims, int64_t index) {
  return dims.count == 1 ? index * dims.stride[0] : OffsetInDims(dims, index);
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

// Positions that a thread visits, as offsets from its base.
struct Cursor {
  int64_t outer, inner;

  BNGRAD_DEVICE_MEMBER Cursor(const View& view, int64_t position)
      : outer(position / view.plane), inner(position - position / view.plane * view.plane) {}

  template <int V>
  BNGRAD_DEVICE_MEMBER int64_t offset(const View& view) const {
    return Offset(view.outer, outer) + inner * V;
  }

  BNGRAD_DEVICE_MEMBER void Advance(const View& view) {
    outer += view.step_outer;
    inner += view.step_inner;
    if (inner >= view.plane) {
      inner -= view.plane;
      ++outer;
    }
  }
};

}  // namespace bngrad::cuda
