// Writes a quantised copy of a model, as a GGUF file for llama.cpp or as a folder for transformers, and reports what
// that did to each weight.
//
//   const QuantizeReport report = quantize("models/SmolLM2-135M", "smol.gguf", {.format = "q4_k_m"});
//   for (const QuantizedTensor& each : report.tensors) std::cout << each.name << " " << each.relative_rms() << "\n";
//
// The weights of projections are quantised; in a GGUF file the embedding and the head too. What was written is read
// again before it gets its name: the error is that of the file, and a config or tokenizer that the file cannot state
// whole is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace hotswap {

struct QuantizeFormat {
  const char* name;
  bool is_gguf;         // one file; else a folder
  const char* explain;  // for people
};
const std::vector<QuantizeFormat>& quantize_formats();

struct QuantizeOptions {
  std::string format;             // a name among quantize_formats()
  bool replace = false;           // what is there under the name of the result
  std::string revision = "main";  // of a model of the Hub
  // What is done, for a progress bar: each tensor is written, then read again.
  std::function<void(const std::string& tensor, int64_t done, int64_t of)> on_progress = nullptr;
};

struct QuantizedTensor {
  std::string name;  // the model's
  std::string type;  // "Q4_K", "e4m3", "int4"; of what stays as it is its dtype
  std::vector<int64_t> shape;
  bool quantized = false;
  double squared_error = 0, squared_norm = 0;  // sums over all elements
  double relative_rms() const;                 // of the error: 0 where nothing changed
};

struct QuantizeReport {
  std::filesystem::path folder;          // of the model that was read
  std::vector<QuantizedTensor> tensors;  // in the model's order
  uint64_t bytes = 0, bytes_before = 0;  // of all tensors: as written, as the model has them
  // Projections that stay as they are, because the format's readers need other sizes.
  std::vector<std::string> left_plain;
};

// `model`: a folder with plain weights, or org/name on the Hub. `out`: a name that ends in .gguf for a GGUF file, a
// folder's otherwise. Nothing remains under that name, or beside it, where an Error ends it.
QuantizeReport quantize(const std::filesystem::path& model, const std::filesystem::path& out,
                        const QuantizeOptions& options);

}  // namespace hotswap
