// A training step with layout named, and its state, in ONNX Runtime.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "safetensors.hpp"

inline constexpr const char* kStepKey = "bngrad.step";

// A value on the memory of a tensor, which has to outlive it.
inline Ort::Value ValueOn(Tensor& tensor) {
  static const std::map<std::string, ONNXTensorElementDataType> types = {
      {"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
      {"F64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
      {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64}};
  static const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor(memory, tensor.bytes.data(), tensor.bytes.size(), tensor.shape.data(),
                                  tensor.shape.size(), types.at(tensor.dtype));
}

// The rows of a tensor with these indices.
inline Tensor Pick(const Tensor& tensor, const int32_t* indices, int64_t count) {
  const auto row = static_cast<int64_t>(tensor.bytes.size()) / tensor.shape[0];
  Tensor picked = {tensor.dtype, tensor.shape, std::vector<char>(static_cast<size_t>(count * row))};
  picked.shape[0] = count;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(picked.bytes.data() + i * row, tensor.bytes.data() + indices[i] * row,
                static_cast<size_t>(row));
  }
  return picked;
}

inline std::vector<const char*> Pointers(const std::vector<std::string>& names) {
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());
  return pointers;
}

// What the metadata of a step say about it.
inline nlohmann::json StepInfo(const Ort::Session& session) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto text = session.GetModelMetadata().LookupCustomMetadataMapAllocated(kStepKey, allocator);
  if (text == nullptr)
    throw std::runtime_error("step.onnx is no training step: its metadata have no bngrad.step");
  nlohmann::json info = nlohmann::json::parse(text.get());
  if (info.at("version") != 1) throw std::runtime_error("step.onnx has another format; expected 1");
  if (info.at("layout") != "named") throw std::runtime_error("step.onnx has another layout; expected named");
  return info;
}

// Inputs: the data, the learning rate, the state. Outputs: the loss, the new state in the same order.
struct TrainingStep {
  TrainingStep(Ort::Session& made, const nlohmann::json& with, Tensors initial, float rate)
      : session(made), info(with), state(std::move(initial)), learning_rate({"F32", {}, {}}) {
    learning_rate.bytes.resize(sizeof rate);
    std::memcpy(learning_rate.bytes.data(), &rate, sizeof rate);
    inputs = {"images", "labels", info.at("learning_rate")};
    outputs = {info.at("loss")};
    values.emplace_back(nullptr);  // the images and labels of each step
    values.emplace_back(nullptr);
    values.push_back(ValueOn(learning_rate));
    for (const auto& [name, entry] : info.at("state").items()) {
      inputs.push_back(name);
      outputs.push_back(entry.at("new"));
      values.push_back(ValueOn(Find(state, name)));
    }
  }
  TrainingStep(const TrainingStep&) = delete;  // values point to tensors of this object

  // One step; returns the loss before the update.
  float Run(Tensor& images, Tensor& labels) {
    const auto input_names = Pointers(inputs), output_names = Pointers(outputs);
    values[0] = ValueOn(images);
    values[1] = ValueOn(labels);
    auto results = session.Run(Ort::RunOptions{nullptr}, input_names.data(), values.data(), values.size(),
                               output_names.data(), output_names.size());
    // Run has allocated the new state. Never let it write into the tensors that it reads.
    std::move(results.begin() + 1, results.end(), values.begin() + 3);
    return *results[0].GetTensorData<float>();
  }

  // Writes the present state, and returns it.
  Tensors& Write(const std::string& path) {
    for (size_t i = 3; i < values.size(); ++i) {
      std::vector<char>& bytes = Find(state, inputs[i]).bytes;
      std::memcpy(bytes.data(), values[i].GetTensorRawData(), bytes.size());
    }
    nlohmann::json metadata = {{"model", info.at("model")}};
    for (const auto& [name, entry] : info.at("state").items()) metadata["roles"][name] = entry.at("role");
    WriteSafetensors(path, state, {{kStepKey, metadata.dump()}});
    return state;
  }

  Ort::Session& session;
  const nlohmann::json info;
  Tensors state;
  Tensor learning_rate;
  std::vector<std::string> inputs, outputs;
  std::vector<Ort::Value> values;
};
