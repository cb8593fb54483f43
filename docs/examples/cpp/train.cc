// Trains the digits network: train FOLDER [STEPS [RATE [LIBRARY]]]
//
// FOLDER has the files of `prepare.py --layout named`; the trained state goes to its trained.safetensors.
// LIBRARY is the file that `bngrad library-path` prints: with it batch norms run in its kernels, without it
// in standard ops.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "safetensors.hpp"

namespace {

constexpr const char* kKey = "bngrad.step";

const std::map<std::string, ONNXTensorElementDataType> kTypes = {
    {"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {"F64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
    {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64}};

// A value on the memory of a tensor, which has to outlive it.
Ort::Value ValueOn(Tensor& tensor) {
  static const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor(memory, tensor.bytes.data(), tensor.bytes.size(), tensor.shape.data(),
                                  tensor.shape.size(), kTypes.at(tensor.dtype));
}

// The rows of a tensor with these indices.
Tensor Pick(const Tensor& tensor, const int32_t* indices, int64_t count) {
  const auto row = static_cast<int64_t>(tensor.bytes.size()) / tensor.shape[0];
  Tensor picked = {tensor.dtype, tensor.shape, std::vector<char>(static_cast<size_t>(count * row))};
  picked.shape[0] = count;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(picked.bytes.data() + i * row, tensor.bytes.data() + indices[i] * row,
                static_cast<size_t>(row));
  }
  return picked;
}

std::vector<const char*> Pointers(const std::vector<std::string>& names) {
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());
  return pointers;
}

nlohmann::json StepInfo(const Ort::Session& session) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto text = session.GetModelMetadata().LookupCustomMetadataMapAllocated(kKey, allocator);
  if (text == nullptr)
    throw std::runtime_error("step.onnx is no training step: its metadata have no bngrad.step");
  nlohmann::json info = nlohmann::json::parse(text.get());
  if (info.at("version") != 1) throw std::runtime_error("step.onnx has another format; expected 1");
  if (info.at("layout") != "named") throw std::runtime_error("step.onnx has another layout; expected named");
  return info;
}

// The share of images whose largest logit is that of their label.
double Accuracy(Ort::Session& session, Tensors& digits, Tensors& state) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> names;
  std::vector<Ort::Value> inputs;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
    const bool data = digits.count("test/" + names.back()) != 0;
    inputs.push_back(ValueOn(data ? Find(digits, "test/" + names.back()) : Find(state, names.back())));
  }
  const char* const output = "logits";
  const auto results =
      session.Run(Ort::RunOptions{nullptr}, Pointers(names).data(), inputs.data(), inputs.size(), &output, 1);
  const float* logits = results[0].GetTensorData<float>();
  const Tensor& labels = Find(digits, "test/labels");
  constexpr int64_t kClasses = 10;
  int64_t right = 0;
  for (int64_t i = 0; i < labels.shape[0]; ++i, logits += kClasses) {
    right += std::max_element(logits, logits + kClasses) - logits == labels.data<int64_t>()[i];
  }
  return static_cast<double>(right) / static_cast<double>(labels.shape[0]);
}

void Train(const std::string& folder, int64_t steps, float rate, const char* library) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "train");
  Ort::SessionOptions options;
  if (library != nullptr) options.RegisterCustomOpsLibrary(library);
  Ort::Session session(env, (folder + "/step.onnx").c_str(), options);
  const nlohmann::json info = StepInfo(session);
  Tensors digits = ReadSafetensors(folder + "/digits.safetensors");
  Tensors state = ReadSafetensors(folder + "/step.safetensors");

  // Inputs: the data, the learning rate, the state. Outputs: the loss, the new state in the same order.
  Tensor learning_rate = {"F32", {}, std::vector<char>(sizeof rate)};
  std::memcpy(learning_rate.bytes.data(), &rate, sizeof rate);
  std::vector<std::string> inputs = {"images", "labels", info.at("learning_rate")},
                           outputs = {info.at("loss")};
  std::vector<Ort::Value> values;
  values.emplace_back(nullptr);  // the images and labels of each step
  values.emplace_back(nullptr);
  values.push_back(ValueOn(learning_rate));
  for (const auto& [name, entry] : info.at("state").items()) {
    inputs.push_back(name);
    outputs.push_back(entry.at("new"));
    values.push_back(ValueOn(Find(state, name)));
  }
  const auto input_names = Pointers(inputs), output_names = Pointers(outputs);

  const Tensor& batches = Find(digits, "batches");
  steps = std::min(steps, batches.shape[0]);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    const int32_t* const rows = batches.data<int32_t>() + step * batches.shape[1];
    Tensor images = Pick(Find(digits, "training/images"), rows, batches.shape[1]);
    Tensor labels = Pick(Find(digits, "training/labels"), rows, batches.shape[1]);
    values[0] = ValueOn(images);
    values[1] = ValueOn(labels);
    auto results = session.Run(Ort::RunOptions{nullptr}, input_names.data(), values.data(), values.size(),
                               output_names.data(), output_names.size());
    // Run has allocated the new state. Never let it write into the tensors that it reads.
    std::move(results.begin() + 1, results.end(), values.begin() + 3);
    std::cout << "step " << step + 1 << "  loss " << *results[0].GetTensorData<float>() << "\n";
  }
  const std::chrono::duration<double, std::milli> duration = std::chrono::steady_clock::now() - start;

  for (size_t i = 3; i < values.size(); ++i) {
    std::vector<char>& bytes = Find(state, inputs[i]).bytes;
    std::memcpy(bytes.data(), values[i].GetTensorRawData(), bytes.size());
  }
  Ort::Session evaluation(env, (folder + "/step.eval.onnx").c_str(), options);
  std::cout << duration.count() / static_cast<double>(steps) << " ms a step\n";
  std::cout << "accuracy " << Accuracy(evaluation, digits, state) << "\n";
  nlohmann::json metadata = {{"model", info.at("model")}};
  for (const auto& [name, entry] : info.at("state").items()) metadata["roles"][name] = entry.at("role");
  WriteSafetensors(folder + "/trained.safetensors", state, {{kKey, metadata.dump()}});
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 330;
  const float rate = argc > 3 ? std::strtof(argv[3], nullptr) : 0.05F;
  if (argc < 2 || argc > 5 || steps < 1 || !(rate > 0)) {
    std::cerr << "usage: train FOLDER [STEPS [RATE [LIBRARY]]], with numbers above 0\n";
    return 2;
  }
  try {
    std::cout.precision(9);
    Train(argv[1], steps, rate, argc > 4 ? argv[4] : nullptr);
  } catch (const std::exception& error) {
    std::cerr << "train: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
