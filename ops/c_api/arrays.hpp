// The arrays of a call of the C ABI, checked as they are named: none is null but what may be, each begins
// where its elements may lie, and no output has memory of another array.
#pragma once
#include <cstdint>
#include <string>

#include "core/element_type.hpp"
#include "core/error.hpp"
#include "core/layout.hpp"

namespace bngrad {

class Arrays {
 public:
  Arrays(const Layout& layout, const Types& types)
      : elements_(layout.channels * layout.reduced), channels_(layout.channels), types_(types) {}

  // Each hands back what it is given, or throws InvalidArgument. X's shape and type; one value a channel.
  const void* DataInput(const char* name, const void* data) {
    return Input(name, data, elements_, types_.data);
  }
  const void* ScaleInput(const char* name, const void* data) {
    return Input(name, data, channels_, types_.scale);
  }
  const void* StatInput(const char* name, const void* data) {
    return Input(name, data, channels_, types_.stat);
  }
  void* DataOutput(const char* name, void* data) { return Output(name, data, elements_, types_.data); }
  void* ScaleOutput(const char* name, void* data) { return Output(name, data, channels_, types_.scale); }
  void* StatOutput(const char* name, void* data) { return Output(name, data, channels_, types_.stat); }

  const void* Input(const char* name, const void* data, int64_t count, ElementType type) {
    if (data == nullptr && count > 0) throw InvalidArgument(std::string(name) + " is null");
    Add(name, data, count, type, false);
    return data;
  }
  void* Output(const char* name, void* data, int64_t count, ElementType type) {
    Add(name, data, count, type, true);
    return data;
  }

 private:
  struct Range {
    const char* name;
    uintptr_t begin, end;
    bool output;
  };

  void Add(const char* name, const void* data, int64_t count, ElementType type, bool output) {
    if (data == nullptr || count == 0) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data), size = SizeOf(type);
    if (begin % size != 0) {
      throw InvalidArgument(std::string(name) +
                            " is not aligned: expected an address that is a multiple of " +
                            std::to_string(size) + ", the size of its elements");
    }
    const Range added = {name, begin, begin + static_cast<uintptr_t>(count) * size, output};
    for (size_t i = 0; i < count_; ++i) {
      const Range& other = ranges_[i];
      if ((!output && !other.output) || added.end <= other.begin || other.end <= added.begin) continue;
      throw InvalidArgument(std::string(output ? name : other.name) + " overlaps " +
                            (output ? other.name : name) + ": expected memory of its own for each output");
    }
    ranges_[count_++] = added;
  }

  // Those of the function that has most.
  static constexpr size_t kMax = 11;

  const int64_t elements_, channels_;
  const Types types_;
  Range ranges_[kMax];
  size_t count_ = 0;
};

}  // namespace bngrad
