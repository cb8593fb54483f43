// The processor time that Linux lets a container have, which limits no thread but all of them together.
#pragma once
#include <cstddef>
#include <string>

namespace bngrad {

// As many CPUs as this process's control groups let it use, rounded up: the least quota of its group and
// those above it, of version 1 (cpu.cfs_quota_us) and of version 2 (cpu.max). Zero: no limit, or nothing to
// be read. `root` comes before the paths of all files: empty but in tests. Throws std::bad_alloc.
size_t CpuQuota(const std::string& root);

}  // namespace bngrad
