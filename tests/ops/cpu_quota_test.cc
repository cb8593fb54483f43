// Prints the CPU quota given by the files under a directory.
#include "core/cpu_quota.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  std::printf("%zu\n", bngrad::CpuQuota(argv[1]));
}
