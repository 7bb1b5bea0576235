// hotswap: transformers in C++ whose layers can be swapped for optimized kernels, in training and in inference.
//
//   #include <hotswap/hotswap.h>
//   #include <iostream>
//   using namespace hotswap;
//
//   int main() {
//     auto model = AutoModelForCausalLM::from_pretrained("SmolLM2-135M-Instruct", {.use_kernels = true});
//     const auto tokenizer = Tokenizer::from_pretrained("SmolLM2-135M-Instruct");
//     const auto prompt = tokenizer.ids("Gravity is");
//
//     auto ids = model->generate(rows_of(prompt, 0, 1, int64_t(prompt.size())), {.max_new_tokens = 50});   // [1, time]
//     std::cout << tokenizer.decode({ids.const_data_ptr<int64_t>(), size_t(ids.numel())}) << "\n"
//               << model->kernel_report();
//
//     const std::string text(std::istreambuf_iterator<char>(std::cin), {});
//     const auto dataset = std::make_shared<PackedDataset>(tokenizer.ids(text), /*example_length=*/256);
//     Trainer trainer(model, {.max_steps = 100, .learning_rate = 1e-4}, dataset);
//     trainer.train();                                   // the same layers, bound for training
//     model->unkernelize();                              // exactly as before
//     model->save_pretrained("tuned");                   // a Hugging Face folder
//   }
//
// Everything is in namespace hotswap; tensors are libtorch's. Errors are hotswap::Error: wanted, got, next.
#pragma once

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/generation/generate.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/layers/activation.h"
#include "hotswap/layers/cpu_allocator.h"
#include "hotswap/layers/norm.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/liger.h"
#include "hotswap/tokenizers/stream_decoder.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/training/trainer.h"
