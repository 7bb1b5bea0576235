#include "hotswap/kernelize/contracts.h"

#include "hotswap/kernelize/bind/bind.h"

namespace hotswap {
namespace {

const std::vector<Contract>& table() {
  static const std::string norm = "(Tensor x, Tensor weight, float eps, float offset, str casting)",
                           add_norm =
                               "(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str casting)",
                           layer_norm = "(Tensor x, Tensor weight, Tensor? bias, float eps)",
                           unary = "(Tensor x) -> Tensor", unary_backward = "(Tensor dy, Tensor x) -> Tensor",
                           gated = "(Tensor gate, Tensor up) -> Tensor",
                           rotary = "Tensor cos, Tensor sin, int rotary_dim, bool interleaved)",
                           options =
                               "int ignore_index, float label_smoothing, float softcap, float z_loss, str reduction",
                           loss = options + ")", chunked_loss = options + ", int chunk_bytes=0)",
                           wide_loss = options + ", bool float32_dweight=False, int chunk_bytes=0)",
                           linear = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
                           linear_loss = "(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, ";
  static const std::vector<Contract> rows = {
      {"rms_norm/1",
       {{"forward", norm + " -> Tensor"},
        {"forward_train", norm + " -> (Tensor y, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float offset, str casting) -> (Tensor dx, Tensor "
         "dweight)"}},
       bind_rms_norm},
      {"add_rms_norm/1",
       {{"forward", add_norm + " -> (Tensor y, Tensor h)"},
        {"forward_train", add_norm + " -> (Tensor y, Tensor h, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor dh, Tensor h, Tensor weight, Tensor rstd, float offset, str casting) -> "
         "(Tensor dx, Tensor dweight)"}},
       bind_add_rms_norm},
      {"layer_norm/1",
       {{"forward", layer_norm + " -> Tensor"},
        {"forward_train", layer_norm + " -> (Tensor y, Tensor mean, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> (Tensor dx, Tensor dweight, Tensor "
         "dbias)"}},
       bind_layer_norm},
      {"activation/1", {{"forward", unary}, {"forward_train", unary}, {"backward", unary_backward}}, bind_activation},
      {"act_and_mul/1", {{"forward", unary}, {"forward_train", unary}, {"backward", unary_backward}}, bind_activation},
      {"gated_mlp/1",
       {{"forward", gated},
        {"forward_train", gated},
        {"backward", "(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)"},
        {"backward_inplace", "(Tensor dy, Tensor(a!) gate, Tensor(b!) up) -> ()"}},
       bind_gated},
      {"rotary/1",
       {{"forward", "(Tensor q, Tensor k, " + rotary + " -> (Tensor, Tensor)"},
        {"forward_train", "(Tensor q, Tensor k, " + rotary + " -> (Tensor, Tensor)"},
        {"backward", "(Tensor dq, Tensor dk, " + rotary + " -> (Tensor, Tensor)"},
        {"forward_inplace", "(Tensor(a!) q, Tensor(b!) k, " + rotary + " -> ()"}},
       bind_rotary},
      {"linear/1",
       {{"forward", linear},
        {"forward_train", linear},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"}},
       bind_linear},
      {"cross_entropy/1",
       {{"forward", "(Tensor logits, Tensor target, " + loss + " -> Tensor"},
        {"forward_train", "(Tensor logits, Tensor target, " + loss + " -> (Tensor loss, Tensor lse)"},
        {"forward_train_inplace", "(Tensor(a!) logits, Tensor target, " + loss + " -> (Tensor loss, Tensor lse)"},
        {"backward", "(Tensor dloss, Tensor logits, Tensor target, Tensor lse, " + loss + " -> Tensor"}},
       bind_cross_entropy},
      {"linear_cross_entropy/1",
       {{"forward", linear_loss + chunked_loss + " -> Tensor"},
        {"forward_train",
         linear_loss + wide_loss + " -> (Tensor loss, Tensor lse, Tensor dhidden, Tensor dweight, Tensor dbias)"},
        {"backward", "(Tensor dloss, Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor lse, " +
                         wide_loss + " -> (Tensor dhidden, Tensor dweight, Tensor dbias)"}},
       bind_linear_cross_entropy},
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
