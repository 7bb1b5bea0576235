// Runs a step of sequences through a model. Rows that differ in form go through the model one after another: those with
// one new token in one forward, and those with equally many new tokens at the same beginning; a chunk of a prompt is a
// forward of its own. Weights are then read again, and each form keeps the kernels and the bits of a batch of its own.
// So do rows without an adapter beside rows with one, which kernels of whole layers do not take.
//
// On a GPU, where a sequence's memory is one page, steps of one new token a row are captured in CUDA graphs, one for
// each of few shapes (static_step.h): sequences join and leave without a new one. So are prompts and chunks of them
// where kernels take several of any lengths as one row of tokens (ragged_step.h). The model's layers, weights and
// kernels must not be exchanged while a runner lives.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "hotswap/engine/cuda_graph.h"
#include "hotswap/engine/ragged_step.h"
#include "hotswap/engine/static_step.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

// By default rows of equal form share a forward, however many they are. A library's product of several rows may add up
// in another order than one of one row: a row's bits then depend on its company.
struct ForwardGroups {
  int64_t decode_rows = 0;      // at most, of one new token each, neighbours in the pool, with StepBatch::exact_rows;
                                // 0: all
  bool single_prompts = false;  // a forward of its own for each prompt
  // Every step of one new token a row has one shape, that of all rows and keys for which the pool has room: the same
  // kernels with the same sums, whatever runs. Error where such a step cannot be captured.
  bool whole_steps = false;
};

class StepRunner {
 public:
  StepRunner(CausalLM& model, KvPool& pool, ForwardGroups groups = {}, bool capture = true);
  // The tokens of all rows are in the pool afterwards. drawn: as KvStep's. -> logits after each row's last token,
  // [rows, vocab]; the next call may write over them. Waits for the device only where a model's layer does.
  Tensor run(std::vector<StepRow> rows, const Tensor& drawn = {});

  // Which rows share a forward, of the pool's acquire(): on a CPU those of all adapters, on a GPU, where it may be
  // captured, those of one.
  int64_t company_of(int64_t adapter) const;

  int64_t captured_shapes() const;
  int64_t ragged_steps() const { return ragged_steps_; }  // runs of prompts as one row of tokens
  int64_t replays() const { return replays_; }
  const std::string& why_not_captured() const { return why_not_; }  // "": steps that can be are

 private:
  using Shape = std::variant<StaticStep::Shape, RaggedStep::Shape>;
  struct Captured {
    std::unique_ptr<ReplayedStep> step;
    std::unique_ptr<CudaGraph> graph;
    Tensor logits;  // of the last run, [shape's rows, vocab]
    bool recorded = false;
  };
  struct Forward {
    std::vector<int64_t> members;  // indices of rows
    bool is_ragged = false;        // of a RaggedStep, else rows of one form
  };
  std::vector<Forward> forwards_of(const std::vector<StepRow>& rows) const;
  Tensor run_forward(std::vector<StepRow> rows, bool is_ragged, const Tensor& drawn);
  bool takes_ragged(const StepRow& row) const;
  Tensor run_captured(const std::vector<StepRow>& rows, const std::optional<Shape>& shape, const Tensor& drawn);
  void require_whole(const std::vector<StepRow>& rows, const Tensor& logits) const;
  void run_as_captured(Captured& captured);
  std::string record(Captured& captured);

  CausalLM& model_;
  KvPool& pool_;
  ForwardGroups groups_;
  std::string why_not_;
  bool takes_ragged_ = false;
  std::string why_not_ragged_;  // "": such steps can be captured, or none was tried
  std::map<Shape, Captured> captured_;
  int64_t room_ = 0;  // tokens of a page when they were captured: more room is other memory
  int64_t replays_ = 0, ragged_steps_ = 0;
};

}  // namespace hotswap
