// The partition of many shapes: every element is in one block, in its channel, and the elements of a channel
// are in memory order. Every violated invariant is detected. Compiled with assertions in every build type.
#include "core/partition.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/blocks.hpp"
#include "core/layout.hpp"

#if defined(NDEBUG)
#error the assertions are what is tested
#endif

namespace {

using bngrad::Block;
using bngrad::Blocks;
using bngrad::BrokenInvariant;
using bngrad::Family;
using bngrad::Layout;
using bngrad::Partition;
using bngrad::Shape;

using List = std::vector<int64_t>;

struct Case {
  List shape, axes;
};

// Both families, folded or not, rows in pieces, a last tile with fewer channels, several outer dimensions, a
// single thread, non-temporal stores, and shapes without elements.
const Case kCases[] = {
    {{2, 3, 4}, {0, 2}},
    {{1}, {}},
    {{7}, {0}},
    {{7}, {}},
    {{5, 1, 3}, {1}},
    {{8, 64, 7, 7}, {0, 2, 3}},
    {{2, 300, 49}, {0, 2}},
    {{3, 65, 600}, {0, 2}},
    {{2, 3, 40000}, {0, 2}},
    {{3, 16385}, {1}},
    {{1, 2, 16384 * 2}, {0, 2}},
    {{2, 130, 512}, {0, 2}},
    {{40, 1000}, {0}},
    {{40, 1025}, {0}},
    {{3, 5000}, {0}},
    {{3000, 3}, {0}},
    {{3001, 3}, {0}},
    {{1, 3}, {0}},
    {{700, 64}, {0}},
    {{5000, 100}, {0}},
    {{9, 1100, 2}, {1}},
    {{2, 5, 3, 7, 2, 4}, {1, 3, 5}},
    {{2, 5, 3, 7, 2, 4}, {0, 2, 4}},
    {{4, 3, 5, 33}, {0, 2}},
    {{6, 5, 4, 3}, {0, 1}},
    {{1 << 21, 2}, {0}},
    {{2, 1 << 21}, {1}},
    {{64, 1 << 16}, {0}},
    {{1 << 12, 1 << 10}, {0}},
    {{128, 520, 64}, {0, 2}},
    {{0, 3}, {0}},
    {{3, 0}, {0}},
    {{3, 0}, {1}},
    {{0, 3}, {1}},
    {{2, 0, 3}, {0, 2}},
    {{2, 3, 0}, {0, 2}},
};

std::string Name(const Case& c) {
  std::string name = "shape";
  for (const int64_t dim : c.shape) name += ' ' + std::to_string(dim);
  name += ", axes";
  for (const int64_t axis : c.axes) name += ' ' + std::to_string(axis);
  return name;
}

Layout LayoutOf(const Case& c) {
  const auto list = [](const char* name, const List& values) {
    return bngrad::MakeShape(name, values.data(), static_cast<int64_t>(values.size()));
  };
  return bngrad::MakeLayout(list("shape", c.shape), list("axes", c.axes));
}

void Fail(const Case& c, const std::string& what) {
  std::printf("failed: %s: %s\n", Name(c).c_str(), what.c_str());
  std::exit(1);
}

// The channel of each element, from the definition.
std::vector<int64_t> ChannelsOf(const Case& c) {
  std::vector<bool> reduced(c.shape.size(), false);
  for (const int64_t axis : c.axes) reduced[static_cast<size_t>(axis)] = true;
  int64_t elements = 1;
  for (const int64_t dim : c.shape) elements *= dim;
  std::vector<int64_t> channels(static_cast<size_t>(elements), 0);
  for (int64_t offset = 0; offset < elements; ++offset) {
    int64_t rest = offset, stride = 1;
    for (size_t i = c.shape.size(); i-- > 0;) {
      const int64_t index = rest % c.shape[i];
      rest /= c.shape[i];
      if (reduced[i]) continue;
      channels[static_cast<size_t>(offset)] += index * stride;
      stride *= c.shape[i];
    }
  }
  return channels;
}

// Counts the cases of each kind of partition.
struct Kinds {
  int folded, in_pieces, non_temporal, in_phases, single_thread, uneven;
};

void CheckCovered(const Case& c, const std::vector<int64_t>& channels, int64_t element_size, bool read_once,
                  Kinds& kinds) {
  const Layout layout = LayoutOf(c);
  const Partition partition = bngrad::MakePartition(layout, element_size, read_once);
  if (const char* const broken = BrokenInvariant(layout, partition)) Fail(c, broken);
  const Blocks blocks(layout, partition);
  std::vector<bool> seen(channels.size(), false);
  std::vector<int64_t> last(static_cast<size_t>(layout.channels), -1);
  size_t count = 0;
  const auto element = [&](int64_t channel, int64_t offset) {
    const size_t at = static_cast<size_t>(offset);
    if (at >= channels.size() || seen[at]) Fail(c, "an element is in two blocks or out of bounds");
    if (channels[at] != channel) Fail(c, "an element is in the wrong channel");
    if (last[static_cast<size_t>(channel)] >= offset)
      Fail(c, "the elements of a channel are not in memory order");
    seen[at] = true;
    last[static_cast<size_t>(channel)] = offset;
    ++count;
  };
  for (int64_t tile = 0; tile < partition.tiles; ++tile) {
    const int64_t first = blocks.FirstChannel(tile), channel_count = blocks.ChannelCount(tile);
    for (int64_t segment = 0; segment < partition.segments; ++segment) {
      blocks.ForEach(tile, segment, [&](const Block& block, int64_t offset) {
        const bool rows = layout.family == Family::kRows;
        for (int64_t row = 0; row < block.rows; ++row) {
          const int64_t begin = offset + row * block.row_stride;
          const int64_t run = rows ? block.channels * block.length : block.length;
          for (int64_t i = 0; i < run; ++i)
            element(first + (rows ? i / block.length : i % channel_count), begin + i);
        }
      });
    }
  }
  if (count != channels.size()) Fail(c, "an element is in no block");
  kinds.folded += partition.fold > 1;
  kinds.in_pieces += partition.pieces > 1;
  kinds.non_temporal += partition.non_temporal;
  kinds.in_phases += !partition.tile_at_a_time;
  kinds.single_thread += partition.single_thread;
  kinds.uneven += partition.tiles * partition.tile_channels > layout.channels;
}

struct Break {
  Case of;
  std::function<void(Partition&)> change;
  const char* broken;
};

const Case kRows = {{4, 70, 100}, {0, 2}}, kLongRows = {{2, 3, 40000}, {0, 2}}, kColumns = {{40, 3000}, {0}},
           kNarrow = {{3001, 3}, {0}}, kSmall = {{2, 3, 4}, {0, 2}};

const Break kBreaks[] = {
    {kRows, [](Partition& p) { ++p.tiles; }, "each channel belongs to one tile"},
    {kRows, [](Partition& p) { --p.tiles_per_outer, --p.tiles; }, "each channel belongs to one tile"},
    {kColumns, [](Partition& p) { p.tile_channels -= 16; }, "each channel belongs to one tile"},
    {kColumns, [](Partition& p) { p.tile_channels = 3000; }, "each channel belongs to one tile"},
    {kRows, [](Partition& p) { --p.width; }, "width is tile_channels * fold"},
    {kNarrow, [](Partition& p) { --p.fold; }, "width is tile_channels * fold"},
    {kColumns, [](Partition& p) { --p.rows; }, "rows is the number of rows of the layout"},
    {kRows, [](Partition& p) { p.segment_rows = 0; }, "each element of a row belongs to one piece"},
    {kLongRows, [](Partition& p) { --p.pieces; }, "each element of a row belongs to one piece"},
    {kLongRows, [](Partition& p) { p.piece = 1 << 12; }, "each element of a row belongs to one piece"},
    {kColumns, [](Partition& p) { p.pieces = 2; }, "each element of a row belongs to one piece"},
    {kRows, [](Partition& p) { ++p.segments; }, "each row belongs to one segment"},
    {kColumns, [](Partition& p) { p.segment_rows = 1; }, "each row belongs to one segment"},
    {kSmall, [](Partition& p) { p.tile_at_a_time = false; }, "single_thread requires tile_at_a_time"},
    {kRows, [](Partition& p) { p.tile_channels = p.width = 70, p.tiles_per_outer = p.tiles = 1; },
     "a tile has at most kMaxTileChannels channels"},
    {kLongRows, [](Partition& p) { p.tile_channels = p.width = 3, p.tiles_per_outer = p.tiles = 1; },
     "rows in pieces belong to one channel"},
    {kLongRows,
     [](Partition& p) {
       p.piece = 13334;  // a third of the row
       p.pieces = 3;
       p.segments = p.rows * 3;
     },
     "pieces start at a multiple of kLanes"},
    {kRows, [](Partition& p) { p.fold = 2, p.width *= 2; }, "rows are not folded"},
    {kColumns,
     [](Partition& p) {
       p.tile_channels = p.width = 750;
       p.tiles_per_outer = p.tiles = 4;
     },
     "tiles of columns start at a multiple of kLanes"},
    {kColumns, [](Partition& p) { p.fold = 2, p.width *= 2; }, "folded rows are not divided into tiles"},
    {kNarrow,
     [](Partition& p) {
       ++p.segment_rows;
       p.segments = (p.rows + p.segment_rows - 1) / p.segment_rows;
     },
     "segments start at a folded row"},
};

// Layouts whose strides do not match the partition; MakeLayout does not return such layouts.
void CheckBrokenLayouts() {
  Layout rows = LayoutOf(kRows), narrow = LayoutOf(kNarrow);
  const Partition of_rows = bngrad::MakePartition(rows, 4, false),
                  of_narrow = bngrad::MakePartition(narrow, 4, false);
  rows.channel.stride = narrow.row.stride = 200;
  const char* const apart = BrokenInvariant(rows, of_rows);
  if (apart == nullptr || std::strcmp(apart, "the channels of a tile are contiguous") != 0)
    Fail(kRows, "channels apart");
  const char* const gaps = BrokenInvariant(narrow, of_narrow);
  if (gaps == nullptr || std::strcmp(gaps, "folded rows are contiguous") != 0) Fail(kNarrow, "rows apart");
}

struct BlockBreak {
  std::function<void(Block&, int64_t& offset)> change;
  const char* broken;
};

const BlockBreak kBlockBreaks[] = {
    {[](Block& b, int64_t&) { b.rows = 0; }, "a block is not empty"},
    {[](Block& b, int64_t&) { b.channels = 0; }, "a block is not empty"},
    {[](Block& b, int64_t&) { b.length = 0; }, "a block is not empty"},
    {[](Block& b, int64_t&) { b.width = b.channels - 1; }, "width is at least the number of channels"},
    {[](Block& b, int64_t&) { b.channels = b.width = 65; }, "a block has at most kMaxTileChannels channels"},
    {[](Block& b, int64_t&) { b.row_stride = 1; }, "rows do not overlap"},
    {[](Block&, int64_t& offset) { offset = -1; }, "a block lies within the array"},
    {[](Block&, int64_t& offset) { offset = 70 * 100; }, "a block lies within the array"},
    {[](Block& b, int64_t&) { ++b.rows; }, "a block lies within the array"},
};

void CheckBrokenBlocks() {
  const Layout layout = LayoutOf(kRows);
  const Block valid = {4, 7000, 2, 100, false, 2};
  if (BrokenInvariant(layout, valid, 0) != nullptr) Fail(kRows, "a valid block is rejected");
  for (const BlockBreak& b : kBlockBreaks) {
    Block block = valid;
    int64_t offset = 0;
    b.change(block, offset);
    const char* const broken = BrokenInvariant(layout, block, offset);
    if (broken == nullptr || std::strcmp(broken, b.broken) != 0)
      Fail(kRows, std::string("not detected: ") + b.broken);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "broken") == 0) {
    const Layout layout = LayoutOf(kRows);
    Partition partition = bngrad::MakePartition(layout, 4, false);
    ++partition.segments;
    const Blocks blocks(layout, partition);
    std::printf("not detected\n");
    return 0;
  }
  size_t checked = 0;
  Kinds kinds = {};
  for (const Case& c : kCases) {
    const std::vector<int64_t> channels = ChannelsOf(c);
    for (const int64_t element_size : {2, 4, 8}) {
      for (const bool read_once : {false, true})
        CheckCovered(c, channels, element_size, read_once, kinds), ++checked;
    }
  }
  for (const int kind : {kinds.folded, kinds.in_pieces, kinds.non_temporal, kinds.in_phases,
                         kinds.single_thread, kinds.uneven}) {
    if (kind == 0) Fail({}, "a kind of partition has no case");
  }
  size_t breaks = 0;
  for (const Break& b : kBreaks) {
    const Layout layout = LayoutOf(b.of);
    Partition partition = bngrad::MakePartition(layout, 4, false);
    b.change(partition);
    const char* const broken = BrokenInvariant(layout, partition);
    if (broken == nullptr || std::strcmp(broken, b.broken) != 0) {
      Fail(b.of, std::string("not detected: ") + b.broken + ", got: " + (broken == nullptr ? "" : broken));
    }
    ++breaks;
  }
  CheckBrokenLayouts();
  CheckBrokenBlocks();
  std::printf("%zu partitions, %zu broken ones\n", checked, breaks);
}
