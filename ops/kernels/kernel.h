// The contract between the driver (sweep.cc) and the kernels: plain numbers, plain pointers, one table of
// functions per instruction set. Kernel files are islands, so nothing in here may become code: no inline
// function, no template, no header but these two.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace bngrad {

// Every instruction set works on 16 virtual lanes, as two, four, eight or sixteen machine registers. Which
// element belongs to which lane follows from the block, and no kernel contracts a product and a sum into one
// rounding unless the product is exact, so all of them return the same bits.
constexpr int64_t kLanes = 16;

// In bytes.
constexpr size_t kCacheLine = 64;

// The element types that C++ has no name for: IEEE 754's binary16, and the upper half of a float.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// Arrays of the shape of X that a kernel reads and writes, at most.
constexpr int kMaxInputs = 3;
constexpr int kMaxOutputs = 2;

// The sums of a sweep over the inputs, for each channel; inputs are listed in the kernels' order. The sums
// are made in double whatever the element type, and so are their terms: the element is widened first. Only
// the gradient's terms of 16-bit elements are float, up to 32 of which are added up as such.
enum SumKind {   // D = X - center, or X: see uncentered
  kSumX,         // X            sum X
  kSumSquares,   // X            sum D, sum D*D
  kSumGrad,      // X, dY        sum dY, sum dY*D
  kSumReluGrad,  // X, dZ, Z     the same with dY = dZ where Z > 0, else 0
  kSumGradGrad,  // X, dY, ddX   sum dY, sum dY*D, sum ddX, sum ddX*D, sum ddX*dY
  kSumKinds
};
constexpr int kSumCounts[kSumKinds] = {1, 2, 2, 2, 5};

// The results of a sweep for each element, in the arithmetic type (double for double, else float), from the
// factors of its channel, listed in the order in which the kernels read them. A quantity that may be much
// larger than the result comes in two parts, high + low, the low part being what rounding took from the high.
enum MapKind {           // D = X - mean, inputs as above
  kMapForward,           // Y = (D - mean_low) * gain + bias                mean, mean_low, gain, bias
  kMapGradTraining,      // dX = gain * ((dY - k1) - (D*k2 + k1_low))       mean, gain, k1, k1_low, k2
  kMapGradFrozen,        // dX = gain * dY                                  gain
  kMapReluGradTraining,  // the same two with dY = dZ where Z > 0, else 0
  kMapReluGradFrozen,
  kMapGradGradTraining,  // d_dY = gain*(ddX - k1) + (D*slope + bias)       mean, gain, slope, bias, k1
                         // d_X = (slope*(dY - k2) - b*(ddX - k1)) - (D*c + d)   k2, b, c, d
  kMapGradGradFrozen,    // d_dY = gain*ddX + (D*slope + bias)              mean, gain, slope, bias
                         // d_X = slope*dY
  kMapKinds
};
constexpr int kFactorCounts[kMapKinds] = {4, 5, 1, 5, 1, 9, 4};
constexpr int kOutputCounts[kMapKinds] = {1, 1, 1, 1, 1, 2, 2};

// A piece of X (and of every array of its shape) as one kernel call sees it; lengths and strides in elements.
//   rows kernels:    element (row, channel, i) is at row*row_stride + channel*length + i, i < length:
//                    the innermost dimension is reduced
//   columns kernels: element (row, i) is at row*row_stride + i, and i is the channel: the innermost is kept
struct Block {
  int64_t rows, row_stride;
  int64_t channels;  // rows kernels only
  int64_t length;
  bool stream;    // maps: the output is too large to be found in cache later
  int64_t width;  // from one quantity (a sum of columns, a factor) to the next, in elements
};

// kMaxInputs pointers, each to the block's first element; one that the kind does not use may be null.
// `center` has one value a channel. A kernel adds to sums[k*width + channel].
using SumFunction = void (*)(const Block&, const void* const* inputs, const double* center, double* sums);

// factors[k*width + channel], in the arithmetic type. Of two outputs one may be null: it is not wanted.
using MapFunction = void (*)(const Block&, const void* const* inputs, const void* factors,
                             void* const* outputs);

// Both in one loop, for maps whose factors do not need the sums; null for the others.
using SumAndMapFunction = void (*)(const Block&, const void* const* inputs, const double* center,
                                   double* sums, const void* factors, void* const* outputs);

// AdamUpdate (core/adam.hpp) of `count` elements. inputs: weight, gradient, exp_avg, exp_avg_sq; outputs: the
// new weight, exp_avg and exp_avg_sq, null where one is not wanted. Coefficients in the arithmetic type.
constexpr int kAdamInputs = 4, kAdamOutputs = 3, kAdamCoefficients = 9;
using AdamFunction = void (*)(int64_t count, const void* const* inputs, const void* coefficients,
                              void* const* outputs);

// Depthwise convolutions (core/depthwise.hpp), a plane of one image and channel at a time. A step over rows
// or columns becomes contiguous by its phases: row y, column x of a plane, with y + row_begin = i*row_step +
// p and x + column_begin = j*column_step + q, is at
//   p*row_phase + i*row_stride + q*column_phase + j
// Phases from row_phases or column_phases on are left out. Lengths and strides in elements.
struct PhaseLayout {
  int64_t rows, columns;  // of the plane
  int64_t row_begin, column_begin;
  int64_t row_step, column_step;
  int64_t row_phases, column_phases;
  int64_t row_phase, column_phase;
  int64_t row_stride;
};

// From a plane to its phases, and back. After the phases, and after each of them, kLanes elements may be
// written or read.
using SplitFunction = void (*)(const PhaseLayout&, const void* plane, void* phases);
using MergeFunction = void (*)(const PhaseLayout&, const void* phases, void* plane);

// Element (row, i) of the data is at row*in_stride + i, and that of the result at row*out_stride + i. It
// meets the data at offsets[k] of that. Up to kLanes elements after the data that it meets may be read.
struct Correlation {
  int64_t rows, columns;  // of the result
  int64_t in_stride, out_stride;
  int64_t elements;  // of the kernel
  const int64_t* offsets;
  const void* weights;  // of each element
  const void* bias;     // or null
};

// result = bias + sum over k of weights[k]*data, in the order of k.
using CorrelateFunction = void (*)(const Correlation&, const void* data, void* result);
// Adds gradient*data, by 16 lanes, to those at lanes + k*kLanes.
using CorrelateWeightsFunction = void (*)(const Correlation&, const void* data, const void* gradient,
                                          double* lanes);

struct TypeKernels {
  // True if D is X: of each sum before one of products with D, the caller subtracts `center` times as much
  // from the latter.
  bool uncentered[kSumKinds];
  SumFunction sum_rows[kSumKinds];
  SumFunction sum_columns[kSumKinds];
  MapFunction map_rows[kMapKinds];
  MapFunction map_columns[kMapKinds];
  SumAndMapFunction sum_and_map_rows[kMapKinds];
  SumAndMapFunction sum_and_map_columns[kMapKinds];
  // Null for 16 bits:
  AdamFunction adam_update;
  SplitFunction split_phases;
  MergeFunction merge_phases;
  CorrelateFunction correlate;
  CorrelateWeightsFunction correlate_weights;
};

struct KernelTable {
  TypeKernels float32;
  TypeKernels float64;
  TypeKernels float16;
  TypeKernels bfloat16;
};

}  // namespace bngrad
