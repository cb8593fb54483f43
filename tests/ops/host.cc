// Uses the library through ONNX Runtime's C API, as a program without Python does:
//   host libonnxruntime.so libbngrad.so model.onnx threads [in NAME FILE DIM,...]... [out NAME FILE]...
// Inputs are files of raw floats, or of raw int64 when NAME is "axes"; outputs are written as raw floats.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "ort/abi.hpp"

struct OrtEnv;
struct OrtMemoryInfo;
struct OrtRunOptions;
struct OrtSession;

namespace ort {

constexpr Function<3, OrtStatus*(int level, const char* id, OrtEnv**)> CreateEnv;
constexpr Function<92, void(OrtEnv*)> ReleaseEnv;
constexpr Function<7, OrtStatus*(const OrtEnv*, const char* path, const OrtSessionOptions*, OrtSession**)>
    CreateSession;
constexpr Function<9, OrtStatus*(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                                 const OrtValue* const* inputs, size_t, const char* const* output_names,
                                 size_t, OrtValue** outputs)>
    Run;
constexpr Function<95, void(OrtSession*)> ReleaseSession;
constexpr Function<10, OrtStatus*(OrtSessionOptions**)> CreateSessionOptions;
constexpr Function<24, OrtStatus*(OrtSessionOptions*, int)> SetIntraOpNumThreads;
constexpr Function<29, OrtStatus*(OrtSessionOptions*, const char* path, void** handle)>
    RegisterCustomOpsLibrary;
constexpr Function<100, void(OrtSessionOptions*)> ReleaseSessionOptions;
constexpr Function<64, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*)> GetTensorShapeElementCount;

}  // namespace ort

namespace {

const OrtApi* api = nullptr;

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", ort::GetErrorMessage(api, status));
  ort::ReleaseStatus(api, status);
  std::exit(1);
}

std::vector<char> ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  void* const library = argc > 4 ? dlopen(argv[1], RTLD_NOW) : nullptr;
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", argc > 4 ? dlerror() : "too few arguments");
    return 2;
  }
  const auto get_base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  api = get_base()->GetApi(ort::kApiVersion);

  OrtEnv* env = nullptr;
  constexpr int kError = 3;
  Check(ort::CreateEnv(api, kError, "host", &env));
  OrtSessionOptions* options = nullptr;
  Check(ort::CreateSessionOptions(api, &options));
  Check(ort::SetIntraOpNumThreads(api, options, std::atoi(argv[4])));
  void* handle = nullptr;
  Check(ort::RegisterCustomOpsLibrary(api, options, argv[2], &handle));
  OrtSession* session = nullptr;
  Check(ort::CreateSession(api, env, argv[3], options, &session));

  OrtMemoryInfo* memory = nullptr;
  constexpr int kArenaAllocator = 1, kDefaultMemory = 0;
  Check(ort::CreateCpuMemoryInfo(api, kArenaAllocator, kDefaultMemory, &memory));
  std::vector<const char*> input_names, output_names, output_files;
  std::vector<std::vector<char>> buffers;
  std::vector<OrtValue*> inputs;
  buffers.reserve(static_cast<size_t>(argc));  // tensors point into them
  for (int i = 5; i < argc;) {
    if (std::strcmp(argv[i], "in") == 0) {
      std::vector<int64_t> shape;
      std::stringstream dims(argv[i + 3]);
      for (std::string dim; std::getline(dims, dim, ',');) shape.push_back(std::stoll(dim));
      buffers.push_back(ReadFile(argv[i + 2]));
      const int type = std::strcmp(argv[i + 1], "axes") == 0 ? ort::kTensorInt64 : ort::kTensorFloat;
      OrtValue* value = nullptr;
      Check(ort::CreateTensorWithDataAsOrtValue(api, memory, buffers.back().data(), buffers.back().size(),
                                                shape.data(), shape.size(), type, &value));
      input_names.push_back(argv[i + 1]);
      inputs.push_back(value);
      i += 4;
    } else {
      output_names.push_back(argv[i + 1]);
      output_files.push_back(argv[i + 2]);
      i += 3;
    }
  }

  std::vector<OrtValue*> outputs(output_names.size(), nullptr);
  Check(ort::Run(api, session, nullptr, input_names.data(), inputs.data(), inputs.size(), output_names.data(),
                 outputs.size(), outputs.data()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    size_t count = 0;
    void* data = nullptr;
    Check(ort::GetTensorTypeAndShape(api, outputs[i], &info));
    Check(ort::GetTensorShapeElementCount(api, info, &count));
    ort::ReleaseTensorTypeAndShapeInfo(api, info);
    Check(ort::GetTensorMutableData(api, outputs[i], &data));
    std::ofstream(output_files[i], std::ios::binary)
        .write(static_cast<const char*>(data), static_cast<std::streamsize>(count * sizeof(float)));
    ort::ReleaseValue(api, outputs[i]);
  }

  for (OrtValue* input : inputs) ort::ReleaseValue(api, input);
  ort::ReleaseMemoryInfo(api, memory);
  ort::ReleaseSession(api, session);
  ort::ReleaseSessionOptions(api, options);
  ort::ReleaseEnv(api, env);
  dlclose(library);
  return 0;
}
