// cuda_driver_test LIBRARY: loads a driver, and starts two kernels of one module, one of them twice. Prints
// the error, if there is one.
#include <cstdio>
#include <exception>

#include "cuda/driver.hpp"

int main(int argc, char** argv) {
  using bngrad::ElementType;
  if (argc != 2) return 2;
  try {
    bngrad::cuda::Driver driver(
        argv[1], [](ElementType type) { return std::string(type == ElementType::kFloat ? "float32" : "?"); });
    std::printf("%d multiprocessors\n", driver.Processors());
    const int argument = 7;
    void* const stream = reinterpret_cast<void*>(0x10);
    for (const char* const kernel : {"sum_grad_rows", "map_grad_rows", "sum_grad_rows"}) {
      driver.Launch(ElementType::kFloat, kernel, 64, 3, stream, &argument);
    }
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  return 0;
}
