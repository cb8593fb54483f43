#include "core/sweep.hpp"

#include <algorithm>
#include <type_traits>

#include "core/blocks.hpp"
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
    sum_and_map_ = SumAndMapKernel();
    fused_map_ = has_outputs && program.fuses_map() && sum_and_map_ != nullptr;
    separate_map_ = has_outputs && !fused_map_;
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
  // The kernel that sums a block and maps, in the same loop, the same block or long rows of the previous
  // tile.
  SumAndMapFunction SumAndMapKernel() const {
    if (program_.steps() == 0) return nullptr;
    const auto& kernels =
        layout_.family == Family::kRows ? kernels_.sum_and_map_rows : kernels_.sum_and_map_columns;
    const bool long_rows = layout_.family == Family::kRows && layout_.inner >= kLongRow;
    return program_.fuses_map() || (partition_.non_temporal && long_rows) ? kernels[program_.map()] : nullptr;
  }

  static int64_t MostSums(const Program& program) {
    int most = 1;
    for (int step = 0; step < program.steps(); ++step) most = std::max(most, kSumCounts[program.sum(step)]);
    return most;
  }

  void RunTileAtATime(Parallel& parallel) {
    // One slot for the tile that is summed, and one for a tile that is mapped in the same loop.
    const int64_t slots = separate_map_ && sum_and_map_ != nullptr ? 2 : 1;
    const int64_t threads = static_cast<int64_t>(parallel.threads());
    const int64_t most = slots == 1 ? kMaxTasks : std::min(kMaxTasks, kTasksPerThread * threads);
    const int64_t tasks = std::min(partition_.tiles, most);
    // Before any task runs: tasks must not throw.
    scratch_.Allocate(partition_.single_thread ? slots : tasks * slots);
    ForEach(parallel, partition_.single_thread, tasks, [&](int64_t task) {
      const int64_t first_slot = partition_.single_thread ? 0 : task * slots;
      const int64_t end = (task + 1) * partition_.tiles / tasks;
      Tile summed = {-1, -1};
      for (int64_t tile = task * partition_.tiles / tasks; tile < end; ++tile) {
        const Tile next = {tile, first_slot + tile % slots};
        SumTile(next, summed);
        if (separate_map_) summed = next;
      }
      if (summed.slot >= 0) MapTile(summed);
    });
  }

  // Sums a tile, and maps the tile that was summed before: in the same loop if both have the same shape.
  void SumTile(Tile tile, Tile summed) {
    const bool fused = summed.slot >= 0 && sum_and_map_ != nullptr &&
                       blocks_.ChannelCount(tile.index) == blocks_.ChannelCount(summed.index);
    if (summed.slot >= 0 && !fused) MapTile(summed);
    Begin(tile);
    for (int step = 0; step < program_.steps(); ++step) {
      const Tile* const mapped = fused && step == 0 ? &summed : nullptr;
      for (int64_t segment = 0; segment < partition_.segments; ++segment) Sum(step, tile, segment, mapped);
      Finish(step, tile);
    }
  }

  void MapTile(Tile tile) {
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
      for_each_segment(step,
                       [&](int64_t tile, int64_t segment) { Sum(step, {tile, tile}, segment, nullptr); });
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
    // Adds the segments pairwise, in an order that depends on the partition only.
    for (int64_t stride = 1; stride < partition_.segments; stride *= 2) {
      for (int64_t segment = 0; segment + stride < partition_.segments; segment += 2 * stride) {
        double* const to = totals + segment * size;
        const double* const from = totals + (segment + stride) * size;
        for (int64_t i = 0; i < size; ++i) to[i] += from[i];
      }
    }
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

  // Also maps the same segment: of the tile `mapped` if it is not null, or of this tile if the map is fused.
  void Sum(int step, Tile tile, int64_t segment, const Tile* mapped) {
    const SumKind kind = program_.sum(step);
    const int count = kSumCounts[kind];
    double* const sums = scratch_.Sums(tile.slot) + segment * count * partition_.width;
    if (fused_map_) mapped = &tile;
    std::fill_n(sums, count * partition_.width, 0.0);
    const bool rows = layout_.family == Family::kRows;
    SumBlocks(tile, segment, (rows ? kernels_.sum_rows : kernels_.sum_columns)[kind], sums, mapped);
  }

  void SumBlocks(Tile tile, int64_t segment, SumFunction sum, double* sums, const Tile* mapped) {
    if (mapped != nullptr) return SumAndMapBlocks(tile, segment, sums, *mapped);
    blocks_.ForEach(tile.index, segment, [&](const Block& block, int64_t offset) {
      sum(block, InputsAt(offset).pointers, scratch_.Center(tile.slot), sums);
    });
  }

  void SumAndMapBlocks(Tile tile, int64_t segment, double* sums, Tile mapped) {
    const int64_t shift = blocks_.Start(mapped.index) - blocks_.Start(tile.index);
    blocks_.ForEach(tile.index, segment, [&](const Block& block, int64_t offset) {
      sum_and_map_(block, InputsAt(offset).pointers, scratch_.Center(tile.slot), sums,
                   InputsAt(offset + shift).pointers, scratch_.Factors(mapped.slot),
                   OutputsAt(offset + shift).pointers);
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
  bool fused_map_, separate_map_;  // at most one is true
  SumAndMapFunction sum_and_map_;  // null: sums and maps are separate loops
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
