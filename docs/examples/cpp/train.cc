// Trains the digits network: train FOLDER [STEPS [RATE [LIBRARY]]]
//
// FOLDER has the files of `prepare.py --layout named`; the trained state goes to its trained.safetensors.
// LIBRARY is the file that `bngrad library-path` prints: with it batch norms run in its kernels, without it
// in standard ops.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "step.hpp"

namespace {

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
  Tensors digits = ReadSafetensors(folder + "/digits.safetensors");
  TrainingStep training(session, StepInfo(session), ReadSafetensors(folder + "/step.safetensors"), rate);

  const Tensor& batches = Find(digits, "batches");
  steps = std::min(steps, batches.shape[0]);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    const int32_t* const rows = batches.data<int32_t>() + step * batches.shape[1];
    Tensor images = Pick(Find(digits, "training/images"), rows, batches.shape[1]);
    Tensor labels = Pick(Find(digits, "training/labels"), rows, batches.shape[1]);
    std::cout << "step " << step + 1 << "  loss " << training.Run(images, labels) << "\n";
  }
  const std::chrono::duration<double, std::milli> duration = std::chrono::steady_clock::now() - start;

  Ort::Session evaluation(env, (folder + "/step.eval.onnx").c_str(), options);
  Tensors& state = training.Write(folder + "/trained.safetensors");
  std::cout << duration.count() / static_cast<double>(steps) << " ms a step\n";
  std::cout << "accuracy " << Accuracy(evaluation, digits, state) << "\n";
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
