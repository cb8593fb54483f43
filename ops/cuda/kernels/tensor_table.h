// The arrays of many tensors as the argument of one kernel, whose blocks each have a part of one tensor.
#pragma once
#include "cuda/kernels/device.h"

namespace bngrad::cuda {

template <int kInputs, int kOutputs>
struct TensorArrays {
  int64_t count;                // of elements, of each array
  const void* inputs[kInputs];  // null: there is none
  void* outputs[kOutputs];      // null: not wanted
};

template <int kInputs>
struct TensorArrays<kInputs, 0> {
  int64_t count;
  const void* inputs[kInputs];
};

template <int kInputs, int kOutputs>
struct TensorTable {
  using Arrays = TensorArrays<kInputs, kOutputs>;

  // The arguments of a kernel have 4096 bytes at most, of which 56 are for the rest.
  static constexpr uint32_t kCapacity = (4096 - 56) / (sizeof(Arrays) + sizeof(uint32_t));
  // Elements of a block.
  static constexpr int64_t kChunk = 16 * kThreads;

  uint32_t count;
  uint32_t first_blocks[kCapacity];  // of each tensor, in increasing order
  Arrays tensors[kCapacity];
};

// The elements of a block.
struct Chunk {
  uint32_t tensor;
  int64_t first, end;
};

template <class Table>
BNGRAD_DEVICE Chunk ChunkOfBlock(const Table& table) {
  uint32_t tensor = 0;
  for (uint32_t end = table.count; end - tensor > 1;) {
    const uint32_t middle = (tensor + end) / 2;
    (table.first_blocks[middle] <= BlockIndexX() ? tensor : end) = middle;
  }
  const int64_t first = (BlockIndexX() - table.first_blocks[tensor]) * Table::kChunk;
  const int64_t count = table.tensors[tensor].count;
  return {tensor, first, count - first < Table::kChunk ? count : first + Table::kChunk};
}

}  // namespace bngrad::cuda
