// The protocol of kernel_serve.py, for workers in C++.
#pragma once
#include <chrono>
#include <iostream>
#include <sstream>
#include <string>

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
