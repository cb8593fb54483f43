#include "core/sweep.hpp"

#include <algorithm>
#include <type_traits>

#include "core/blocks.hpp"
#include "core/partition.hpp"
#include "core/scratch.hpp"

namespace bngrad {
namespace {

// Enough to share evenly among many threads, few enough to keep scratch small.
constexpr int64_t kMaxTasks = 256;

// Of neighbouring tiles: a task's last one is mapped with nothing beside it, so they are few where a thread
// has many. A thread that comes late should find some left to others.
constexpr int64_t kTasksOfThread = 4;

// The arrays of a kernel call, each from the block's first element on. Null stays null.
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

// One that is worked on, and its place in the scratch; -1: none.
struct Tile {
  int64_t index, slot;
};

template <class Arithmetic>
class Sweeper {
 public:
  Sweeper(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program)
      : layout_(layout),
        element_size_(static_cast<int64_t>(SizeOf(operands.type))),
        partition_(MakePartition(layout, element_size_, program.maps_at_once())),
        kernels_(KernelsFor(table, operands.type)),
        operands_(operands),
        program_(program),
        blocks_(layout, partition_),
        // The tree needs one slot even where there is nothing to sum.
        scratch_(std::max<int64_t>(partition_.segments, 1) * MostSums(program) * partition_.width,
                 partition_.width, kFactorCounts[program.map()] * partition_.width) {
    const bool wanted = std::any_of(std::begin(operands.outputs), std::end(operands.outputs),
                                    [](const void* output) { return output != nullptr; });
    both_ = Both();
    maps_at_once_ = wanted && program.maps_at_once() && both_ != nullptr;
    maps_later_ = wanted && !maps_at_once_;
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
  // What sums and maps in one loop: what has just been summed, or long rows of the tile before.
  SumAndMapFunction Both() const {
    if (program_.steps() == 0) return nullptr;
    const auto& of_family =
        layout_.family == Family::kRows ? kernels_.sum_and_map_rows : kernels_.sum_and_map_columns;
    const bool long_rows = layout_.family == Family::kRows && layout_.inner >= kLongRow;
    return program_.maps_at_once() || (partition_.stream && long_rows) ? of_family[program_.map()] : nullptr;
  }

  static int64_t MostSums(const Program& program) {
    int most = 1;
    for (int step = 0; step < program.steps(); ++step) most = std::max(most, kSumCounts[program.sum(step)]);
    return most;
  }

  void RunTileAtATime(Parallel& parallel) {
    // Of a tile that is summed, and of one that is mapped in the same loop.
    const int64_t slots = maps_later_ && both_ != nullptr ? 2 : 1;
    const int64_t threads = static_cast<int64_t>(parallel.threads());
    const int64_t most = slots == 1 ? kMaxTasks : std::min(kMaxTasks, kTasksOfThread * threads);
    const int64_t tasks = std::min(partition_.tiles, most);
    // All of it before any task runs: tasks do not throw.
    scratch_.Allocate(partition_.one_thread ? slots : tasks * slots);
    ForEach(parallel, partition_.one_thread, tasks, [&](int64_t task) {
      const int64_t first_slot = partition_.one_thread ? 0 : task * slots;
      const int64_t end = (task + 1) * partition_.tiles / tasks;
      Tile summed = {-1, -1};
      for (int64_t tile = task * partition_.tiles / tasks; tile < end; ++tile) {
        const Tile next = {tile, first_slot + tile % slots};
        SumTile(next, summed);
        if (maps_later_) summed = next;
      }
      if (summed.slot >= 0) MapTile(summed);
    });
  }

  // Sums a tile, and maps the one that was summed before: in the same loop, if both have the same form.
  void SumTile(Tile tile, Tile summed) {
    const bool beside =
        summed.slot >= 0 && both_ != nullptr && blocks_.Extent(tile.index) == blocks_.Extent(summed.index);
    if (summed.slot >= 0 && !beside) MapTile(summed);
    Begin(tile);
    for (int step = 0; step < program_.steps(); ++step) {
      const Tile* const mapped = beside && step == 0 ? &summed : nullptr;
      for (int64_t segment = 0; segment < partition_.segments; ++segment) Sum(step, tile, segment, mapped);
      Finish(step, tile);
    }
  }

  void MapTile(Tile tile) {
    // Backwards, see maps_of_short_rows-inl.h.
    for (int64_t segment = partition_.segments - 1; segment >= 0; --segment) Map(tile, segment);
  }

  void RunPhases(Parallel& parallel) {
    const int64_t tiles = partition_.tiles, segments = partition_.segments;
    scratch_.Allocate(tiles);
    // Each phase begins where the one before has ended, and goes through columns in the order of memory: some
    // rows of all tiles side by side, and then the next (measured, beside one tile after the other: 392x2048
    // 1.2 to 1.3, 784x1536 1.25, 256x4096 1.14 times as fast; 98x2048 0.95).
    const auto for_each_segment = [&](int phase, const auto& task) {
      const int64_t items = tiles * segments, tasks = std::min(items, kMaxTasks);
      const int64_t beside = layout_.family == Family::kColumns ? partition_.tiles_per_outer : 1;
      const auto some = [&](int64_t i) {
        const int64_t end = (i + 1) * items / tasks;
        for (int64_t item = i * items / tasks; item < end; ++item) {
          const int64_t outer = item / (segments * beside);
          task(outer * beside + item % beside, item / beside % segments);
        }
      };
      phase % 2 == 0 ? ForEach(parallel, false, tasks, some) : ForEachBack(parallel, tasks, some);
    };
    for (int64_t tile = 0; tile < tiles; ++tile) Begin({tile, tile});
    for (int step = 0; step < program_.steps(); ++step) {
      for_each_segment(step,
                       [&](int64_t tile, int64_t segment) { Sum(step, {tile, tile}, segment, nullptr); });
      ForEach(parallel, false, tiles, [&](int64_t tile) { Finish(step, {tile, tile}); });
    }
    if (maps_later_) {
      for_each_segment(program_.steps(), [&](int64_t tile, int64_t segment) { Map({tile, tile}, segment); });
    }
  }

  Channels ChannelsOf(Tile tile) {
    return {blocks_.FirstChannel(tile.index), blocks_.Extent(tile.index), partition_.width,
            scratch_.Sums(tile.slot),         scratch_.Center(tile.slot), scratch_.Factors(tile.slot)};
  }

  // A folded tile has several places for each channel: they get the same center and factors.
  void Unfold(const Channels& channels) {
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
    Unfold(channels);
  }

  // Sums of products with X become those with X - center; each follows the sum of what X was multiplied by.
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
    // The tree over segments: neighbours first, always in the same places.
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
    if (kernels_.about_zero[kind]) MoveToCenter(count, channels, totals);
    program_.Finish(step, channels);
    Unfold(channels);
  }

  // Also maps the same segment of the tile `mapped`, if there is one, or of this tile, if that may be
  // already.
  void Sum(int step, Tile tile, int64_t segment, const Tile* mapped) {
    const SumKind kind = program_.sum(step);
    const int count = kSumCounts[kind];
    double* const sums = scratch_.Sums(tile.slot) + segment * count * partition_.width;
    if (maps_at_once_) mapped = &tile;
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
      both_(block, InputsAt(offset).pointers, scratch_.Center(tile.slot), sums,
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
  bool maps_at_once_, maps_later_;  // at most one of them
  SumAndMapFunction both_;          // null: each in a loop of its own
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
