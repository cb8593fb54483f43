// Collective operations between the ranks of a distributed run: AllGather and AllReduce. The program that
// uses the library moves the bytes (bngrad_collective in bngrad.h); without one there is a single rank.
//
// Each operation first gathers a header of every rank, a line of text with its name, key, contents and the
// version of the library. Headers that differ are an error on every rank, before any data are exchanged.
// Sums over ranks are made here, in double and by a fixed tree: they depend on the values and the number of
// ranks only.
#pragma once
#include <cstdint>
#include <string>

#include "bngrad.h"
#include "core/element_type.hpp"

namespace bngrad {

struct Collective {
  bngrad_collective function;  // null: one rank alone
  void* context;
  int32_t rank, ranks;
  const Collective* previous;  // keeps earlier ones reachable
};

// The collective of the process. The reference stays valid forever.
const Collective& CurrentCollective();

// function null: back to one rank alone. Throws InvalidArgument unless 0 <= rank < ranks.
void SetCollective(bngrad_collective function, void* context, int32_t rank, int32_t ranks);

// Throws InvalidArgument if a key is null or empty.
void CheckKey(const char* key);

// Throws InvalidArgument, with the name of the argument, unless `count` elements of each rank can be
// addressed.
void CheckPerRank(const char* name, int64_t count, int64_t element_size, int32_t ranks);

// Copies `size` bytes of each rank to gathered, in the order of the ranks. `contents` describes the value in
// the header. Throws Failure if the ranks do not match, one failed, or the function failed.
void AllGather(const Collective& collective, const std::string& key, const std::string& contents,
               int64_t size, const void* value, void* gathered);

// The sum over the ranks of `count` elements of type float or double, rounded once. Throws as AllGather.
void AllReduce(const Collective& collective, const std::string& key, const std::string& contents,
               int64_t count, ElementType type, const void* value, void* total);

// Makes the next operation of every other rank fail with this message. Does nothing if the last operation
// failed: then the other ranks fail by themselves. Throws Failure if the function failed.
void FailCollective(const std::string& message);

}  // namespace bngrad
