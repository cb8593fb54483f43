// The CPU quota of a Linux control group (container).
#pragma once
#include <cstddef>
#include <string>

namespace bngrad {

// The quota in CPUs, rounded up: the minimum over this process's control group and its ancestors, for cgroup
// v1 (cpu.cfs_quota_us) and v2 (cpu.max). Returns 0 if there is no limit or none can be read. `root` is
// prepended to every path; it is empty except in tests. Throws std::bad_alloc.
size_t CpuQuota(const std::string& root);

}  // namespace bngrad
