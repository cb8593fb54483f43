// cudnn_test LIBRARY: loads a library as cuDNN. Prints the error, if there is one.
#include "cuda/cudnn.hpp"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const bngrad::cuda::Cudnn cudnn(argv[1], bngrad::cuda::kOtherCudnn);
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  return 0;
}
