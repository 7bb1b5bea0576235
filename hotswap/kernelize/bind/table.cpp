// The rows: name, schemas, binding, example and what `hotswap bench` measures. The functions of a family are declared
// here: they need no header of their own.
#include "hotswap/kernelize/bind/contract.h"
#include "hotswap/kernelize/bind/example.h"

namespace hotswap {
namespace binding {

Result<Example> rms_norm_example(const std::string& layer, const ExampleSize& size);
Result<Example> add_rms_norm_example(const std::string& layer, const ExampleSize& size);
Result<Example> layer_norm_example(const std::string& layer, const ExampleSize& size);
Result<Example> activation_example(const std::string& layer, const ExampleSize& size);
Result<Example> act_and_mul_example(const std::string& layer, const ExampleSize& size);
Result<Example> gated_example(const std::string& layer, const ExampleSize& size);
Result<Example> rotary_example(const std::string& layer, const ExampleSize& size);
Result<Example> linear_example(const std::string& layer, const ExampleSize& size);
Result<Example> cross_entropy_example(const std::string& layer, const ExampleSize& size);
Result<Example> linear_cross_entropy_example(const std::string& layer, const ExampleSize& size);
Result<Example> attention_example(const std::string& layer, const ExampleSize& size);
void bind_attention(SlotBase& slot, const LayerOps& layer);
void bind_cross_entropy(SlotBase& slot, const LayerOps& layer);
void bind_linear_cross_entropy(SlotBase& slot, const LayerOps& layer);

}  // namespace binding
namespace {

using namespace binding;  // NOLINT(google-build-using-namespace)

constexpr ExampleSize kSmallVocabulary = {.rows = 128, .dim = 576, .out = 2048},
                      kLargeVocabulary = {.rows = 512, .dim = 576, .out = 49152};

const std::vector<Contract>& table() {
  static const std::string norm = "(Tensor x, Tensor weight, float eps, float offset, str casting)",
                           add_norm =
                               "(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str casting)",
                           layer_norm = "(Tensor x, Tensor weight, Tensor? bias, float eps)",
                           unary = "(Tensor x) -> Tensor y", unary_backward = "(Tensor dy, Tensor x) -> Tensor dx",
                           gated = "(Tensor gate, Tensor up) -> Tensor y",
                           rotary = "Tensor cos, Tensor sin, int rotary_dim, bool interleaved)",
                           options =
                               "int ignore_index, float label_smoothing, float softcap, float z_loss, str reduction",
                           weights = ", Tensor? class_weight=None, bool token_scaling=False",
                           loss = options + weights + ")",
                           chunked_loss = options + ", int chunk_bytes=0" + weights + ")",
                           wide_loss = options + ", bool float32_dweight=False, int chunk_bytes=0" + weights,
                           linear = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y",
                           linear_loss = "(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, ",
                           qkv = "Tensor q, Tensor k, Tensor v, ",
                           varlen =
                               "Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_k, int max_seqlen_q, "
                               "int max_seqlen_k, ",
                           masked =
                               "Tensor? sinks, Tensor? alibi_slopes, float scale, bool causal, int window_left, "
                               "int window_right, int chunk, float softcap",
                           out_lse = ") -> (Tensor out, Tensor lse)",
                           dout = "(Tensor dout, " + qkv + "Tensor out, Tensor lse, Tensor? dlse, ",
                           dqkv = ", bool deterministic) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)";
  static const std::vector<Contract> rows = {
      {"rms_norm/1",
       {{"forward", norm + " -> Tensor"},
        {"forward_train", norm + " -> (Tensor y, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float offset, str casting) -> (Tensor dx, Tensor "
         "dweight)"}},
       bind_regular<RmsNormForward>,
       rms_norm_example},
      {"add_rms_norm/1",
       {{"forward", add_norm + " -> (Tensor y, Tensor h)"},
        {"forward_train", add_norm + " -> (Tensor y, Tensor h, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor dh, Tensor h, Tensor weight, Tensor rstd, float offset, str casting) -> "
         "(Tensor dx_and_residual, Tensor dweight)"}},
       bind_regular<AddRmsNormForward>,
       add_rms_norm_example},
      {"layer_norm/1",
       {{"forward", layer_norm + " -> Tensor"},
        {"forward_train", layer_norm + " -> (Tensor y, Tensor mean, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> (Tensor dx, Tensor dweight, Tensor "
         "dbias)"}},
       bind_regular<LayerNormForward>,
       layer_norm_example},
      {"activation/1",
       {{"forward", unary}, {"forward_train", unary}, {"backward", unary_backward}},
       bind_regular<ActivationForward>,
       activation_example},
      {"act_and_mul/1",
       {{"forward", unary}, {"forward_train", unary}, {"backward", unary_backward}},
       bind_regular<ActivationForward>,
       act_and_mul_example},
      {"gated_mlp/1",
       {{"forward", gated},
        {"forward_train", gated},
        {"backward", "(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)"},
        {"backward_inplace", "(Tensor dy, Tensor(a!) gate, Tensor(b!) up) -> ()"}},
       bind_regular<GatedForward>,
       gated_example},
      {"rotary/1",
       {{"forward", "(Tensor q, Tensor k, " + rotary + " -> (Tensor q, Tensor k)"},
        {"forward_train", "(Tensor q, Tensor k, " + rotary + " -> (Tensor q, Tensor k)"},
        {"backward", "(Tensor dq, Tensor dk, " + rotary + " -> (Tensor dq, Tensor dk)"},
        {"forward_inplace", "(Tensor(a!) q, Tensor(b!) k, " + rotary + " -> ()"}},
       bind_regular<RotaryForward, Gradients::kRows>,
       rotary_example},
      {"linear/1",
       {{"forward", linear},
        {"forward_train", linear},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"}},
       bind_regular<LinearForward>,
       linear_example,
       {.rows = 1, .dim = 576},
       {.rows = 1, .dim = 8192}},
      {"cross_entropy/1",
       {{"forward", "(Tensor logits, Tensor target, " + loss + " -> Tensor"},
        {"forward_train", "(Tensor logits, Tensor target, " + loss + " -> (Tensor loss, Tensor lse)"},
        {"forward_train_inplace", "(Tensor(a!) logits, Tensor target, " + loss + " -> (Tensor loss, Tensor lse)"},
        {"backward", "(Tensor dloss, Tensor logits, Tensor target, Tensor lse, " + loss + " -> Tensor dlogits"}},
       bind_cross_entropy,
       cross_entropy_example,
       kSmallVocabulary,
       kLargeVocabulary},
      {"linear_cross_entropy/1",
       {{"forward", linear_loss + chunked_loss + " -> Tensor"},
        {"forward_train",
         linear_loss + wide_loss +
             ", bool predict=False) -> (Tensor loss, Tensor lse, Tensor dhidden, Tensor dweight, Tensor dbias, "
             "Tensor predicted)"},
        {"backward", "(Tensor dloss, Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor lse, " +
                         wide_loss + ") -> (Tensor dhidden, Tensor dweight, Tensor dbias)"}},
       bind_linear_cross_entropy,
       linear_cross_entropy_example,
       kSmallVocabulary,
       kLargeVocabulary},
      {"attention/1",
       {{"forward", "(" + qkv + masked + ") -> Tensor"},
        {"forward_train", "(" + qkv + masked + out_lse},
        {"backward", dout + masked + dqkv},
        {"varlen_forward", "(" + qkv + varlen + masked + ") -> Tensor"},
        {"varlen_forward_train", "(" + qkv + varlen + masked + out_lse},
        {"varlen_backward", dout + varlen + masked + dqkv},
        {"decode",
         "(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k_new, Tensor? v_new, Tensor cache_seqlens, "
         "Tensor? block_table, Tensor? cache_batch_idx, " +
             masked + ", int num_splits" + out_lse}},
       bind_attention,
       attention_example,
       {.rows = 128, .dim = 256},
       {.rows = 2048, .dim = 1024},
       {"causal", "gqa", "window", "chunk", "softcap", "sinks", "alibi"},
       {"head_dims"}},
  };
  return rows;
}

}  // namespace

const Contract* find_contract(const std::string& name) {
  for (const Contract& row : table()) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::vector<std::string> contract_names() {
  std::vector<std::string> names;
  for (const Contract& row : table()) names.push_back(row.name);
  return names;
}

}  // namespace hotswap
