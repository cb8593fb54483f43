// The .safetensors format: the length of a JSON header as uint64, the header, and the tensors' bytes,
// little-endian.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

struct Tensor {
  std::string dtype;  // the format's: F32, I64, ...
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  template <class T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
};

using Tensors = std::map<std::string, Tensor>;

inline Tensor& Find(Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw std::runtime_error("there is no tensor " + name);
  return found->second;
}

inline int64_t WidthOf(const std::string& dtype) {
  static const std::map<std::string, int64_t> widths = {{"F32", 4}, {"F64", 8}, {"I32", 4}, {"I64", 8}};
  const auto found = widths.find(dtype);
  if (found == widths.end()) throw std::runtime_error("tensors of type " + dtype + " are not supported");
  return found->second;
}

inline Tensors ReadSafetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  const std::vector<char> all{std::istreambuf_iterator<char>(file), {}};
  uint64_t length = 0;
  if (all.size() >= 8) std::copy_n(all.data(), 8, reinterpret_cast<char*>(&length));
  if (all.size() < 8 || length > all.size() - 8) throw std::runtime_error(path + ": is no .safetensors file");
  const auto start = all.begin() + 8 + static_cast<int64_t>(length);
  const nlohmann::json header = nlohmann::json::parse(all.begin() + 8, start);
  Tensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto [begin, end] = entry.at("data_offsets").get<std::pair<int64_t, int64_t>>();
    if (begin > end || end > all.end() - start)
      throw std::runtime_error(path + ": is truncated, tensor " + name);
    Tensor tensor = {entry.at("dtype"), entry.at("shape"), {start + begin, start + end}};
    int64_t size = WidthOf(tensor.dtype);
    for (const int64_t dim : tensor.shape) size *= dim;
    if (size != end - begin) throw std::runtime_error(path + ": wrong number of bytes, tensor " + name);
    tensors[name] = std::move(tensor);
  }
  return tensors;
}

// Writes to a temporary file and renames it.
inline void WriteSafetensors(const std::string& path, const Tensors& tensors,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = {{"__metadata__", metadata}};
  size_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = end;
    end += tensor.bytes.size();
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  const std::string temporary = path + ".part";
  std::ofstream file(temporary, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    file.write(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0)
    throw std::runtime_error(path + ": cannot be written");
}
