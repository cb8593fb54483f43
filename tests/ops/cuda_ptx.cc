// cuda_ptx FOLDER: writes the PTX of each type to a file, named by the number of the type; prints what is
// missing. cuda_ptx FILE SIZE: decompresses a file to stdout.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "cuda/lzma.hpp"
#include "cuda/ptx.hpp"

int main(int argc, char** argv) {
  using namespace bngrad;
  try {
    if (argc == 2) {
      if (!cuda::HasKernels()) std::printf("built without kernels\n");
      for (const ElementType type : kElementTypes) {
        if (!cuda::HasKernels()) break;
        std::ofstream(argv[1] + ("/" + std::to_string(static_cast<int>(type)) + ".ptx"))
            << cuda::ModuleText(type);
      }
    } else if (argc == 3) {
      std::ifstream file(argv[1], std::ios::binary);
      const std::string stream((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      const size_t size = static_cast<size_t>(std::atoll(argv[2]));
      const std::string text =
          cuda::DecompressLzma(reinterpret_cast<const uint8_t*>(stream.data()), stream.size(), size);
      std::fwrite(text.data(), 1, text.size(), stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
