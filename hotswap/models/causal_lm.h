// A causal language model of any family: tokens in, logits or a loss out.
//
//   auto out = (*model)({.input_ids = ids, .labels = ids});   out.loss.backward();
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "hotswap/base/json.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/loss.h"
#include "hotswap/models/decoder.h"
#include "hotswap/models/generation_config.h"

namespace hotswap {

struct ForwardArguments {
  Tensor input_ids;                                // [batch, time] int64
  Tensor attention_mask = {};                      // [batch, cached + time], 0 where a token is padding
  Tensor position_ids = {};                        // [1 or batch, time]
  Tensor labels = {};                              // [batch, time], -100 where a token does not count; shifted inside
  KvCache* cache = nullptr;                        // inference only
  std::optional<bool> need_logits = std::nullopt;  // unset: not when training with labels, so that the loss may fuse
  int64_t logits_to_keep = 0;                      // of the last so many positions only; 0: all
  std::optional<double> num_items_in_batch = std::nullopt;  // divides the loss instead of this batch's label count
};

struct CausalLMOutput {
  Tensor loss;    // scalar float32; undefined without labels
  Tensor logits;  // [batch, time or logits_to_keep, vocab]; undefined where the loss was made without
};

class CausalLM : public Module {
 public:
  CausalLMOutput forward(const ForwardArguments& arguments);
  CausalLMOutput operator()(const ForwardArguments& arguments) { return forward(arguments); }

  // Defined in generation/generate.cpp, where the loop is: [batch, time] -> [batch, time + new]
  Tensor generate(const Tensor& input_ids, const GenerationConfig& config = {}, const Tensor& attention_mask = {});

  // Which forward runs in each layer. Without a mode: the one of train() or eval(), which also bind anew from then on.
  const KernelReport& kernelize(Mode mode) { return kernels_.kernelize(*this, mode); }
  const KernelReport& kernelize(Mode mode, KernelOptions options) {
    return kernels_.kernelize(*this, mode, std::move(options));
  }
  const KernelReport& kernelize() { return kernelize(Mode::of_training(training())); }
  void unkernelize() { kernels_.unkernelize(*this); }
  const KernelReport& kernel_report() const { return kernels_.report(); }  // empty unless kernelized

  const DecoderConfig& config() const { return config_; }
  const Json& config_json() const { return config_json_; }
  const GenerationConfig& generation_config() const { return generation_config_; }
  void set_generation_config(GenerationConfig config) { generation_config_ = std::move(config); }

  at::Device device() { return embedding().device(); }
  at::ScalarType dtype() { return embedding().scalar_type(); }
  virtual void set_attn_implementation(const std::string& name) = 0;
  virtual std::string attn_implementation() const = 0;

  // Fresh weights as transformers draws them: normal(0, initializer_range), ones in norms, zeros in biases.
  void init_weights(uint64_t seed, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  // A folder that transformers and from_pretrained load: config.json, weights, generation_config.json and, where the
  // model came from a folder with them, the tokenizer's files.
  void save_pretrained(const std::filesystem::path& folder);
  void set_source(std::filesystem::path folder) { source_ = std::move(folder); }
  const std::filesystem::path& source() const { return source_; }

 protected:
  CausalLM(DecoderConfig config, Json json) : config_(std::move(config)), config_json_(std::move(json)) {}
  virtual Tensor hidden_states(const DecoderInput& in) = 0;  // -> [batch, time, dim]
  virtual Tensor& embedding() = 0;                           // [vocab, dim]
  void add_head();                                           // by the family, after it owns the embedding
  void on_mode_change() override { kernels_.on_mode_change(*this); }

 private:
  DecoderConfig config_;
  Json config_json_;
  GenerationConfig generation_config_;
  std::filesystem::path source_;
  std::unique_ptr<Linear> lm_head_;
  CausalLMLoss loss_;
  Kernelizer kernels_;
};

}  // namespace hotswap
