// The contract between the driver (sweep.cc) and the kernels: plain numbers, plain pointers, one table of
// functions per instruction set. Kernel files are islands, so nothing in here may become code: no inline
// function, no template, no header but these two.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bngrad {

// Every instruction set works on 16 virtual lanes, as two, four or sixteen machine registers. Element i of a
// row belongs to lane i % 16 everywhere, and no kernel contracts a product and a sum into one rounding, so
// all of them return the same bits.
constexpr int64_t kLanes = 16;

// A rows kernel is given at most this many channels, whose lanes the caller keeps on its stack.
constexpr int64_t kMaxTileChannels = 64;

// What a sweep over the inputs sums for each channel. The sums are made in double whatever the element type:
// the element is widened first, so subtracting the center and multiplying round to 53 bits.
enum SumKind {
  kSumX,        // sum X
  kSumSquares,  // sum D, sum D*D        D = X - center
  kSumGrad,     // sum dY, sum dY*D      D = X - center
  kSumKinds
};
constexpr int kSumCounts[kSumKinds] = {1, 2, 2};
constexpr int kMaxSums = 2;

// What a sweep computes for each element, in the arithmetic type (float for float, double for double), from
// the factors of its channel, listed in the order in which the kernels read them. A quantity that may be much
// larger than the result comes in two parts, high + low, the low part being what rounding took from the high.
enum MapKind {
  kMapForward,       // Y = ((X - mean) - mean_low) * gain + bias        mean, mean_low, gain, bias
  kMapGradTraining,  // dX = gain * ((dY - k1) - ((X - mean)*k2 + k1_low))   mean, gain, k1, k1_low, k2
  kMapGradFrozen,    // dX = gain * dY                                   gain
  kMapKinds
};
constexpr int kFactorCounts[kMapKinds] = {4, 5, 1};
constexpr int kMaxFactors = 5;

// A piece of X (and of dY and dX alike) as one kernel call sees it; lengths and strides in elements.
//   rows kernels:    element (row, channel, i) is at row*row_stride + channel*channel_stride + i, i < length:
//                    the innermost dimension is reduced
//   columns kernels: element (row, i) is at row*row_stride + i, and i is the channel: the innermost is kept
struct Block {
  int64_t rows, row_stride;
  int64_t channels, channel_stride;  // rows kernels only
  int64_t length;
  bool stream;    // maps: the output is too large to be found in cache later
  int64_t width;  // from one quantity (a sum of columns, a factor) to the next, in elements
};

// inputs[0] is X, inputs[1] is dY, each at the block's first element; one that the kind does not use may be
// null. `center` has one value a channel. A kernel adds to its sums:
//   rows kernels:    sums[(channel*count + k)*kLanes + lane], to be added up by the caller
//   columns kernels: sums[k*width + channel]
using SumFunction = void (*)(const Block&, const void* const* inputs, const double* center, double* sums);

// factors[k*width + channel], in the arithmetic type.
using MapFunction = void (*)(const Block&, const void* const* inputs, const void* factors, void* output);

struct TypeKernels {
  SumFunction sum_rows[kSumKinds];
  SumFunction sum_columns[kSumKinds];
  MapFunction map_rows[kMapKinds];
  MapFunction map_columns[kMapKinds];
};

struct KernelTable {
  TypeKernels float32;
  TypeKernels float64;
};

}  // namespace bngrad
