// Folders and files that people give as a model by mistake.
#pragma once

#include <filesystem>

namespace hotswap {

// Error that names what the path is and what to pass instead, where that is known: an adapter, a kernel package, GGUF
// files, checkpoints of a training run, a pipeline of diffusers, a dataset, weights without a config, one file of a
// model's folder. Returns where it is a model's folder, or nothing known.
void refuse_no_model(const std::filesystem::path& path);

}  // namespace hotswap
