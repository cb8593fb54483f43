#include "core/sweep.hpp"

#include <algorithm>
#include <type_traits>

#include "core/blocks.hpp"
#include "core/pairwise.hpp"
#include "core/partition.hpp"
#include "core/scratch.hpp"
#include "kernels/tuning.h"

namespace bngrad {
namespace {

// Pointers to the first element of a block in each array. Null stays null.
template <class Pointer, size_t kCount>
struct Advanced {
  Advanced(const Pointer (&arrays)[kCount], int64_t bytes) {
    using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, char*, const char*>;
    for (size_t i = 0; i < kCount; ++i) {
      pointers[i] = arrays[i] == nullptr ? nullptr : static_cast<Byte>(arrays[i]) + bytes;
    }
  }
  Pointer pointers[kCount];
};

// An active tile and its scratch slot; slot -1: no tile.
struct Tile {
  int64_t index, slot;
};

template <class Arithmetic>
class Sweeper {
 public:
  Sweeper(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program)
      : layout_(layout),
        element_size_(static_cast<int64_t>(SizeOf(operands.type))),
        partition_(MakePartition(layout, element_size_, program.fuses_map())),
        kernels_(KernelsFor(table, operands.type)),
        operands_(operands),
        program_(program),
        blocks_(layout, partition_),
        // The reduction over segments needs memory for one even if X has no elements.
        scratch_(std::max<int64_t>(partition_.segments, 1) * MostSums(program) * partition_.width,
                 partition_.width, kFactorCounts[program.map()] * partition_.width) {
    const bool has_outputs = std::any_of(std::begin(operands.outputs), std::end(operands.outputs),
                                         [](const void* output) { return output != nullptr; });
    sum_and_map_ = has_outputs ? SumAndMapKernel() : nullptr;
    separate_map_ = has_outputs && sum_and_map_ == nullptr;
  }

  void Run(Parallel& parallel) {
    if (partition_.tiles == 0) return;
    if (partition_.tile_at_a_time) {
      RunTileAtATime(parallel);
    } else {
      RunPhases(parallel);
    }
  }

 private:
  // The kernel that sums and maps a block in one loop; null if the map needs the sums.
  SumAndMapFunction SumAndMapKernel() const {
    if (program_.steps() == 0 || !program_.fuses_map()) return nullptr;
    const bool rows = layout_.family == Family::kRows;
    return (rows ? kernels_.sum_and_map_rows : kernels_.sum_and_map_columns)[program_.map()];
  }

  static int64_t MostSums(const Program& program) {
    int most = 1;
    for (int step = 0; step < program.steps(); ++step) most = std::max(most, kSumCounts[program.sum(step)]);
    return most;
  }

  void RunTileAtATime(Parallel& parallel) {
    const int64_t tasks = std::min(partition_.tiles, kMaxTasks);
    // Before any task runs: tasks must not throw.
    scratch_.Allocate(partition_.single_thread ? 1 : tasks);
    ForEach(parallel, partition_.single_thread, tasks, [&](int64_t task) {
      const int64_t end = (task + 1) * partition_.tiles / tasks;
      for (int64_t tile = task * partition_.tiles / tasks; tile < end; ++tile) {
        SumAndMapTile({tile, partition_.single_thread ? 0 : task});
      }
    });
  }

  void SumAndMapTile(Tile tile) {
    Begin(tile);
    for (int step = 0; step < program_.steps(); ++step) {
      for (int64_t segment = 0; segment < partition_.segments; ++segment) Sum(step, tile, segment);
      Finish(step, tile);
    }
    if (!separate_map_) return;
    // Backward: the elements summed last are still in the cache.
    for (int64_t segment = partition_.segments - 1; segment >= 0; --segment) Map(tile, segment);
  }

  void RunPhases(Parallel& parallel) {
    const int64_t tiles = partition_.tiles, segments = partition_.segments;
    scratch_.Allocate(tiles);
    // Each phase starts where the previous one ended, in the cache. In the columns family a segment of all
    // tiles comes before the next segment, which is the order of memory.
    const auto for_each_segment = [&](int phase, const auto& task) {
      const int64_t items = tiles * segments, tasks = std::min(items, kMaxTasks);
      const int64_t adjacent = layout_.family == Family::kColumns ? partition_.tiles_per_outer : 1;
      const auto run_items = [&](int64_t i) {
        const int64_t end = (i + 1) * items / tasks;
        for (int64_t item = i * items / tasks; item < end; ++item) {
          const int64_t outer = item / (segments * adjacent);
          task(outer * adjacent + item % adjacent, item / adjacent % segments);
        }
      };
      phase % 2 == 0 ? ForEach(parallel, false, tasks, run_items)
                     : ForEachBackward(parallel, tasks, run_items);
    };
    for (int64_t tile = 0; tile < tiles; ++tile) Begin({tile, tile});
    for (int step = 0; step < program_.steps(); ++step) {
      for_each_segment(step, [&](int64_t tile, int64_t segment) { Sum(step, {tile, tile}, segment); });
      ForEach(parallel, false, tiles, [&](int64_t tile) { Finish(step, {tile, tile}); });
    }
    if (separate_map_) {
      for_each_segment(program_.steps(), [&](int64_t tile, int64_t segment) { Map({tile, tile}, segment); });
    }
  }

  Channels ChannelsOf(Tile tile) {
    return {blocks_.FirstChannel(tile.index), blocks_.ChannelCount(tile.index), partition_.width,
            scratch_.Sums(tile.slot),         scratch_.Center(tile.slot),       scratch_.Factors(tile.slot)};
  }

  // Copies the center and factors of each channel of a folded tile to its other places.
  void ReplicateFolded(const Channels& channels) {
    if (partition_.fold == 1) return;
    const int64_t count = channels.count, width = channels.width;
    const auto repeat = [&](auto* values) {
      for (int64_t i = count; i < width; ++i) values[i] = values[i - count];
    };
    repeat(channels.center);
    Arithmetic* const factors = static_cast<Arithmetic*>(channels.factors);
    for (int k = 0; k < kFactorCounts[program_.map()]; ++k) repeat(factors + k * width);
  }

  void Begin(Tile tile) {
    const Channels channels = ChannelsOf(tile);
    program_.Begin(channels);
    ReplicateFolded(channels);
  }

  // Turns sums of t*X into sums of t*(X - center); each is stored after the sum of t.
  static void MoveToCenter(int count, const Channels& channels, double* sums) {
    for (int k = 1; k < count; k += 2) {
      const double* const sum = sums + (k - 1) * channels.width;
      double* const with_x = sums + k * channels.width;
      for (int64_t c = 0; c < channels.count; ++c) with_x[c] -= channels.center[c] * sum[c];
    }
  }

  void Finish(int step, Tile tile) {
    const SumKind kind = program_.sum(step);
    const int count = kSumCounts[kind];
    const int64_t width = partition_.width, size = count * width;
    double* const totals = scratch_.Sums(tile.slot);
    AddPairwise(partition_.segments, size, totals);
    const Channels channels = ChannelsOf(tile);
    if (partition_.segments == 0) std::fill_n(totals, size, 0.0);
    if (partition_.fold > 1) {
      for (int k = 0; k < count; ++k) {
        double* const sums = totals + k * width;
        for (int64_t i = channels.count; i < width; i += channels.count) {
          for (int64_t c = 0; c < channels.count; ++c) sums[c] += sums[i + c];
        }
      }
    }
    if (kernels_.uncentered[kind]) MoveToCenter(count, channels, totals);
    program_.Finish(step, channels);
    ReplicateFolded(channels);
  }

  // Also maps the segment if one kernel does both.
  void Sum(int step, Tile tile, int64_t segment) {
    const SumKind kind = program_.sum(step);
    const int count = kSumCounts[kind];
    double* const sums = scratch_.Sums(tile.slot) + segment * count * partition_.width;
    std::fill_n(sums, count * partition_.width, 0.0);
    const bool rows = layout_.family == Family::kRows;
    const SumFunction sum = (rows ? kernels_.sum_rows : kernels_.sum_columns)[kind];
    blocks_.ForEach(tile.index, segment, [&](const Block& block, int64_t offset) {
      const auto inputs = InputsAt(offset);
      const double* const center = scratch_.Center(tile.slot);
      if (sum_and_map_ == nullptr) return sum(block, inputs.pointers, center, sums);
      sum_and_map_(block, inputs.pointers, center, sums, scratch_.Factors(tile.slot),
                   OutputsAt(offset).pointers);
    });
  }

  void Map(Tile tile, int64_t segment) {
    const MapKind kind = program_.map();
    const MapFunction map =
        layout_.family == Family::kRows ? kernels_.map_rows[kind] : kernels_.map_columns[kind];
    blocks_.ForEach(tile.index, segment, [&](const Block& block, int64_t offset) {
      map(block, InputsAt(offset).pointers, scratch_.Factors(tile.slot), OutputsAt(offset).pointers);
    });
  }

  auto InputsAt(int64_t offset) const { return Advanced(operands_.inputs, offset * element_size_); }
  auto OutputsAt(int64_t offset) const { return Advanced(operands_.outputs, offset * element_size_); }

  const Layout& layout_;
  const int64_t element_size_;
  const Partition partition_;
  const TypeKernels& kernels_;
  const Operands& operands_;
  const Program& program_;
  const Blocks blocks_;
  Scratch<Arithmetic> scratch_;
  SumAndMapFunction sum_and_map_;  // null: there is no map, or it is a loop of its own
  bool separate_map_;
};

}  // namespace

void Sweep(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program,
           Parallel& parallel) {
  if (operands.type == ElementType::kDouble) {
    Sweeper<double>(layout, table, operands, program).Run(parallel);
  } else {
    Sweeper<float>(layout, table, operands, program).Run(parallel);
  }
}

}  // namespace bngrad
