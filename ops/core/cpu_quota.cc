#include "core/cpu_quota.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace bngrad {
namespace {

using Fields = std::vector<std::string>;

// The contents of a file; empty if it cannot be read.
std::string Text(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  std::string text;
  char part[4096];
  if (file == nullptr) return text;
  while (const size_t size = std::fread(part, 1, sizeof part, file.get())) text.append(part, size);
  return text;
}

// At most `most` fields; the last one holds the rest of the text.
Fields Split(const std::string& text, char separator, size_t most = SIZE_MAX) {
  Fields fields;
  size_t begin = 0;
  while (fields.size() + 1 < most) {
    const size_t end = text.find(separator, begin);
    if (end == std::string::npos) break;
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  fields.push_back(text.substr(begin));
  return fields;
}

bool Has(const std::string& list, const std::string& name) {
  for (const std::string& item : Split(list, ',')) {
    if (item == name) return true;
  }
  return false;
}

// Decodes the octal escapes of mountinfo, such as "\040" for a space.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && text.find_first_not_of("01234567", i + 1) >= i + 4 && i + 4 <= text.size()) {
      plain += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// A mounted hierarchy of control groups: the group at its root, and the mount point.
struct Mount {
  bool version_2;
  std::string group, folder;
};

// The mounts whose groups can have a CPU quota.
std::vector<Mount> Mounts(const std::string& mountinfo) {
  // A line is "36 35 0:31 /group /folder rw,noatime shared:1 - cgroup cgroup rw,cpu,cpuacct"; the number of
  // fields before the dash varies.
  constexpr size_t kGroup = 3, kFolder = 4, kType = 1, kOptions = 3;
  std::vector<Mount> mounts;
  for (const std::string& line : Split(mountinfo, '\n')) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const Fields fields = Split(line.substr(0, dash), ' '), of_type = Split(line.substr(dash + 1), ' ');
    if (fields.size() <= kFolder || of_type.size() <= kOptions) continue;
    const bool version_2 = of_type[kType] == "cgroup2";
    if (!version_2 && (of_type[kType] != "cgroup" || !Has(of_type[kOptions], "cpu"))) continue;
    mounts.push_back({version_2, Unescaped(fields[kGroup]), Unescaped(fields[kFolder])});
  }
  return mounts;
}

// The group of this process: "4:cpu,cpuacct:/path" in version 1, "0::/path" in version 2. Empty if absent.
std::string Group(const std::string& cgroup, bool version_2) {
  for (const std::string& line : Split(cgroup, '\n')) {
    const Fields fields = Split(line, ':', 3);
    if (fields.size() < 3) continue;
    if (version_2 ? fields[0] == "0" && fields[1].empty() : Has(fields[1], "cpu")) return fields[2];
  }
  return "";
}

// The group's path relative to its mount point; empty for the mount point itself, also if the path is not
// below the mounted group, as in containers that share the host's cgroup namespace.
std::string Below(const std::string& group, const std::string& mounted) {
  const std::string above = mounted == "/" ? "" : mounted;
  const bool inside = group.size() > above.size() && group.compare(0, above.size(), above) == 0;
  const std::string below = inside ? group.substr(above.size()) : "";
  const bool sound = below.size() > 1 && below[0] == '/' && below.find("/..") == std::string::npos;
  return sound ? below : "";
}

// The quota, in microseconds of CPU time per period, as a number of CPUs. "max" and -1 mean no limit.
size_t Limit(const std::string& quota, const std::string& period) {
  const int64_t time = std::strtoll(quota.c_str(), nullptr, 10),
                each = std::strtoll(period.c_str(), nullptr, 10);
  if (time <= 0 || each <= 0) return 0;
  return static_cast<size_t>(time / each + (time % each > 0));
}

size_t LimitOf(const std::string& folder, bool version_2) {
  if (!version_2) return Limit(Text(folder + "/cpu.cfs_quota_us"), Text(folder + "/cpu.cfs_period_us"));
  const Fields fields = Split(Text(folder + "/cpu.max"), ' ');
  return fields.size() == 2 ? Limit(fields[0], fields[1]) : 0;
}

}  // namespace

size_t CpuQuota(const std::string& root) {
  const std::string cgroup = Text(root + "/proc/self/cgroup");
  size_t least = 0;
  for (const Mount& mount : Mounts(Text(root + "/proc/self/mountinfo"))) {
    std::string below = Below(Group(cgroup, mount.version_2), mount.group);
    for (;;) {
      const size_t limit = LimitOf(root + mount.folder + below, mount.version_2);
      if (limit > 0 && (least == 0 || limit < least)) least = limit;
      if (below.empty()) break;
      below.erase(below.rfind('/'));
    }
  }
  return least;
}

}  // namespace bngrad
