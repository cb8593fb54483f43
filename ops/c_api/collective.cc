// The collective operations of bngrad.h.
#include "core/collective.hpp"

#include <string>

#include "bngrad.h"
#include "c_api/arrays.hpp"
#include "c_api/guard.hpp"

using namespace bngrad;

int32_t bngrad_set_collective(bngrad_collective function, void* context, int32_t rank, int32_t ranks,
                              char* error, size_t error_size) {
  return Guard({error, error_size}, [&] { SetCollective(function, context, rank, ranks); });
}

int32_t bngrad_collective_ranks() { return CurrentCollective().ranks; }

int32_t bngrad_all_gather(const char* key, int64_t size, const void* value, void* gathered, char* error,
                          size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Collective& collective = CurrentCollective();
    CheckKey(key);
    CheckPerRank("size", size, 1, collective.ranks);
    Arrays arrays({}, {});
    arrays.ByteInput("value", value, size);
    arrays.RequiredByteOutput("gathered", gathered, size * collective.ranks);
    AllGather(collective, key, std::to_string(size) + " bytes", size, value, gathered);
  });
}

int32_t bngrad_all_reduce(const char* key, int64_t count, int32_t type, const void* value, void* total,
                          char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    const Collective& collective = CurrentCollective();
    CheckKey(key);
    const ElementType element = ToFloatOrDouble(type);
    CheckPerRank("count", count, static_cast<int64_t>(SizeOf(element)), collective.ranks);
    Arrays arrays({}, {});
    arrays.Input("value", value, count, element);
    arrays.RequiredOutput("total", total, count, element);
    const std::string name = element == ElementType::kDouble ? "double[" : "float[";
    AllReduce(collective, key, name + std::to_string(count) + "]", count, element, value, total);
  });
}

int32_t bngrad_fail_collective(const char* message, char* error, size_t error_size) {
  return Guard({error, error_size}, [&] {
    if (message == nullptr) throw InvalidArgument("message is null; expected a string");
    FailCollective(message);
  });
}
