// Calls the functions of bngrad.h with random arguments, valid or not, on every instruction set, which must
// all give the same bits:
//   kernel_fuzz SEED COUNT [FIRST]
// A case is a function of seed and index: `kernel_fuzz 1 1 4711` repeats a reported case.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "fuzzer.hpp"

namespace {

// Shared memory with the process of an instruction set.
struct Report {
  Counts counts;
  uint64_t at;          // the current case, or the one that crashed
  uint64_t digests[1];  // one per case
};

void Show(const char* isa, const Counts& c) {
  std::printf("%s: %" PRId64 " kernel calls, %" PRId64 " computed (%" PRId64 " of nothing, %" PRId64
              " shared among threads, %" PRId64 " compared with the reference), %" PRId64 " refused, %" PRId64
              " others, %" PRId64 " failures\n",
              isa, c.calls, c.computed, c.empty, c.threaded, c.compared, c.refused, c.others, c.failures);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "kernel_fuzz SEED COUNT [FIRST]\n");
    return 2;
  }
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10), count = std::strtoull(argv[2], nullptr, 10);
  const uint64_t first = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
  int failed = 0, ran = 0;
  Report* reference = nullptr;
  for (int32_t i = bngrad_isa_count(); i-- > 0;) {  // scalar first
    const char* const isa = bngrad_isa_name(i);
    if (bngrad_isa_supported(i) == 0) {
      std::printf("%s: skipped, this machine has none\n", isa);
      continue;
    }
    const size_t size = sizeof(Report) + count * sizeof(uint64_t);
    void* const shared = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    Report* const report = static_cast<Report*>(shared);
    std::fflush(stdout);
    const pid_t child = fork();  // the instruction set is selected once per process
    if (child == 0) {
      setenv("BNGRAD_ISA", isa, 1);
      for (uint64_t k = 0; k < count; ++k) {
        report->at = first + k;
        report->digests[k] = Fuzzer(isa, seed, first + k, report->counts).Run();
      }
      std::exit(report->counts.failures > 0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child) return 2;
    if (status != 0) {
      std::printf("%s: failed with status %d, at the latest in case %" PRIu64 " of seed %" PRIu64 "\n", isa,
                  status, report->at, seed);
      ++failed;
    }
    ++ran;
    if (reference == nullptr) reference = report;
    for (uint64_t k = 0; k < count; ++k) {
      if (report->digests[k] == reference->digests[k]) continue;
      std::printf("%s: other bits than scalar, case %" PRIu64 " of seed %" PRIu64 "\n", isa, first + k, seed);
      if (++failed > 20) break;
    }
    Show(isa, report->counts);
  }
  return failed == 0 && ran > 0 ? 0 : 1;
}
