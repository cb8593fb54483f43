// The protocol of kernel_serve.py, for workers in C++.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

// Room for an array, at a cache line: where the heap has it, or, if BNGRAD_LATER is set, each of a case's
// arrays so many bytes, a multiple of 64, later in its page than the one before.
class Room {
 public:
  void Allocate(int64_t size, int64_t number) {
    constexpr int64_t kLine = 64, kPage = 4096;
    const char* const later = std::getenv("BNGRAD_LATER");
    const int64_t offset = later == nullptr ? 0 : number * std::atoll(later);
    const int64_t alignment = later == nullptr ? kLine : kPage;
    const int64_t bytes = (size + offset + alignment - 1) / alignment * alignment;
    memory_.reset(static_cast<char*>(std::aligned_alloc(alignment, bytes)));
    data_ = memory_.get() + offset;
  }
  char* data() const { return data_; }

 private:
  std::unique_ptr<char, void (*)(void*)> memory_{nullptr, std::free};
  char* data_ = nullptr;
};

// A turn: 50 ms of calls that are not timed, then `calls` that are. Seconds of a call.
template <class Worker>
double Turn(Worker& worker, const std::string& way, int calls) {
  const auto warm = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  do worker.Run(way);
  while (std::chrono::steady_clock::now() < warm);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) worker.Run(way);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
}

// `worker.Prepare(words)` answers a case with its ways, or a refusal; `worker.Run(way)` is a call.
template <class Worker>
void Serve(Worker& worker) {
  std::cout.precision(17);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, way;
    int calls = 0;
    words >> command;
    if (command == "case") {
      std::cout << worker.Prepare(words) << std::endl;
    } else {
      words >> way >> calls;
      std::cout << Turn(worker, way, calls) << std::endl;
    }
  }
}
