// Files of torch.save: read by a closed list of operations, and written so that torch.load(weights_only=True) takes
// them. For sources of this room.
//
//   const TorchFile file("optimizer.pt");
//   file.root().at("param_groups", "optimizer.pt");
//
//   TorchFileWriter out;
//   out.pickle().tensor(weights);
//   out.save("weights.pt");
#pragma once

#include <filesystem>

#include "hotswap/training/checkpoint/pickle.h"

namespace hotswap {

// Tensors are the file's memory, on the CPU, which stays mapped while one of them lives: they are not to be written to.
// Error where the file is cut off, holds what is not read here, or has a tensor beyond
// its data.
class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& file);
  const PickleValue& root() const { return document_.root(); }

 private:
  PickleDocument document_;
};

class TorchFileWriter {
 public:
  PickleWriter& pickle() { return pickle_; }
  void save(const std::filesystem::path& file);  // whole or not there

 private:
  PickleWriter pickle_;
};

}  // namespace hotswap
