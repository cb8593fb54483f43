// Checks the arrays of a call of the C ABI: required arrays are not null, all are aligned to their elements,
// and no output overlaps another array.
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

  // Each returns its argument or throws InvalidArgument. Data: like X. Scale and Stat: one value per channel.
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
    CheckNotNull(name, data, count);
    Add(name, data, count, SizeOf(type), false);
    return data;
  }
  void* Output(const char* name, void* data, int64_t count, ElementType type) {
    Add(name, data, count, SizeOf(type), true);
    return data;
  }
  void* RequiredOutput(const char* name, void* data, int64_t count, ElementType type) {
    CheckNotNull(name, data, count);
    return Output(name, data, count, type);
  }
  // Arrays of bytes.
  const void* ByteInput(const char* name, const void* data, int64_t count) {
    CheckNotNull(name, data, count);
    Add(name, data, count, 1, false);
    return data;
  }
  void* RequiredByteOutput(const char* name, void* data, int64_t count) {
    CheckNotNull(name, data, count);
    Add(name, data, count, 1, true);
    return data;
  }

 private:
  static void CheckNotNull(const char* name, const void* data, int64_t count) {
    if (data != nullptr || count == 0) return;
    throw InvalidArgument(std::string(name) + " is null; expected an array of " + std::to_string(count) +
                          " elements");
  }

  struct Range {
    const char* name;
    uintptr_t begin, end;
    bool output;
  };

  void Add(const char* name, const void* data, int64_t count, size_t size, bool output) {
    if (data == nullptr || count == 0) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
    if (begin % size != 0) {
      throw InvalidArgument(std::string(name) +
                            " is not aligned; expected an address that is a multiple of " +
                            std::to_string(size) + ", the size of an element");
    }
    const Range added = {name, begin, begin + static_cast<uintptr_t>(count) * size, output};
    for (size_t i = 0; i < count_; ++i) {
      const Range& other = ranges_[i];
      if ((!output && !other.output) || added.end <= other.begin || other.end <= added.begin) continue;
      throw InvalidArgument(std::string(output ? name : other.name) + " overlaps " +
                            (output ? other.name : name) + "; expected outputs that overlap no other array");
    }
    ranges_[count_++] = added;
  }

  // The maximum number of arrays of a function.
  static constexpr size_t kMax = 11;

  const int64_t elements_, channels_;
  const Types types_;
  Range ranges_[kMax];
  size_t count_ = 0;
};

}  // namespace bngrad
