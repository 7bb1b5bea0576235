// Which packages have an adapter (foreign.h). Read from their sources in huggingface/kernels-community.
#include "hotswap/kernelize/foreign/foreign.h"

#include <algorithm>
#include <filesystem>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/foreign/foreign_impl.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

const std::set<std::string> kFloats = {"float32", "bfloat16", "float16"};

ForeignPackage activation() {
  ForeignPackage package{.name = "activation", .layers = {}, .ops = {}, .missing = ""};
  // Their ops write into a given tensor; none has a backward.
  const auto add = [&](const char* op, const char* contract, const std::vector<const char*>& layers) {
    package.ops.push_back({op, {"(Tensor(a!) out, Tensor input) -> ()"}});
    for (const char* layer : layers) {
      package.layers[layer] = {
          .contract = contract, .ops = {{"forward", op}}, .capabilities = {.deterministic = true, .dtypes = kFloats}};
    }
  };
  add("silu", "activation/1", {"SiLU", "Silu"});
  add("gelu", "activation/1", {"GeLU", "Gelu"});
  add("gelu_tanh", "activation/1", {"GeluTanh"});
  add("gelu_new", "activation/1", {"NewGELU"});
  add("gelu_fast", "activation/1", {"FastGELU"});
  add("gelu_quick", "activation/1", {"QuickGELU"});
  add("silu_and_mul", "act_and_mul/1", {"SiluAndMul"});
  add("gelu_and_mul", "act_and_mul/1", {"GeluAndMul"});
  add("gelu_tanh_and_mul", "act_and_mul/1", {"GeluTanhAndMul"});
  return package;
}

ForeignPackage rotary_package() {
  // Turns halves in place; the other way round (conj) is its gradient.
  const LayerEntry entry{.contract = "rotary/1",
                         .ops = {{"forward", "rotary"}, {"forward_train", "rotary"}, {"backward", "rotary_bwd"}},
                         .capabilities = {.backward = true, .deterministic = true, .dtypes = kFloats}};
  return {
      .name = "rotary",
      .layers = {{"rotary_pos_emb", entry}, {"apply_rotary_transformers", entry}},
      .ops = {{"apply_rotary",
               {"(Tensor x1, Tensor x2, Tensor cos, Tensor sin, Tensor(a!) out1, Tensor(b!) out2, bool conj) -> ()"}}},
      .missing = ""};
}

ForeignPackage rmsnorm() {
  // float32 alone, where all casting contracts are one: what it rounds in other types is not ours to promise. Its
  // backward wants the output, which our contract does not keep.
  return {.name = "rmsnorm",
          .layers = {{"RMSNorm",
                      {.contract = "rms_norm/1",
                       .ops = {{"forward", "rms_norm"}},
                       .capabilities = {.deterministic = true, .dtypes = {"float32"}}}}},
          .ops = {{"apply_rms_norm",
                   {"(Tensor hidden_states, Tensor weight, float variance_epsilon) -> Tensor[]",
                    "(Tensor hidden_states, Tensor weight, float variance_epsilon) -> Tensor"}}},
          .missing = ""};
}

ForeignPackage deformable_detr() {
  // Its additions to value's gradient have no fixed order. In 16 bits it computes places in 16 bits, too, which are off
  // by half a pixel; the adapter gives it float32 alone.
  return {.name = "deformable-detr",
          .layers = {{"MultiScaleDeformableAttention",
                      {.contract = "deformable_attention/1",
                       .ops = {{"forward", "deformable_attention"},
                               {"forward_train", "deformable_attention"},
                               {"backward", "deformable_attention_bwd"}},
                       .capabilities = {.backward = true, .dtypes = kFloats}}}},
          .ops = {{"ms_deform_attn_forward",
                   {"(Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_loc, Tensor "
                    "attn_weight, int im2col_step) -> Tensor"}},
                  {"ms_deform_attn_backward",
                   {"(Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_loc, Tensor "
                    "attn_weight, Tensor grad_output, int im2col_step) -> Tensor[]"}}},
          .missing = ""};
}

ForeignPackage none(const char* name, const char* why) {
  return {.name = name, .layers = {}, .ops = {}, .missing = why};
}

std::string names_with_layers() {
  std::vector<std::string> names;
  for (const ForeignPackage& package : foreign_packages()) {
    if (!package.layers.empty()) names.emplace_back(package.name);
  }
  return join(names);
}

[[noreturn]] void refuse_package(const Manifest& m, const std::vector<Manifest>& bundled, const std::string& got) {
  const std::string instead = stand_ins(m.name, bundled);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("layers.json in ", m.folder.string(), ", or a package with an adapter (",
                             names_with_layers(), ")"),
               .got = got,
               .next = instead.empty() ? "use a package that declares which layers its ops serve"
                                       : "use the bundled package that stands in for it: " + instead});
}

}  // namespace

std::string stand_ins(const std::string& name, const std::vector<Manifest>& bundled_packages) {
  const auto plain = [](std::string text) {
    std::replace(text.begin(), text.end(), '_', '-');
    return text;
  };
  std::vector<std::string> found;
  for (const Manifest& bundled : bundled_packages) {
    std::vector<std::string> layers;
    for (const StandIn& entry : bundled.stands_in_for) {
      if (plain(entry.repo.substr(entry.repo.find('/') + 1)) != plain(name)) continue;
      if (std::find(layers.begin(), layers.end(), entry.their_layer) != layers.end()) continue;
      layers.push_back(entry.their_layer);
    }
    if (!layers.empty()) found.push_back(cat("hotswap/", bundled.name, " (", join(layers), ")"));
  }
  return join(found);
}

std::span<const ForeignPackage> foreign_packages() {
  static const std::vector<ForeignPackage> all = [] {
    std::vector<ForeignPackage> rows = {
        activation(),
        rotary_package(),
        rmsnorm(),
        deformable_detr(),
        none("layer-norm", "its op fuses dropout and a residual, which no contract has"),
    };
    for (const auto& more : {attention_packages(), mamba_packages()}) rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  }();
  return all;
}

Manifest read_package(const fs::path& variant_folder, const std::vector<Manifest>& bundled, bool checked) {
  std::error_code code;
  if (fs::exists(variant_folder / "layers.json", code)) return read_manifest(variant_folder, checked);
  Manifest m = read_metadata(variant_folder, checked);
  if (!fs::is_regular_file(m.library(), code)) {
    refuse_package(m, bundled, cat("a package without ", m.library().filename().string(), ": one for Python only"));
  }
  for (const ForeignPackage& package : foreign_packages()) {
    if (m.name != package.name) continue;
    if (package.layers.empty()) refuse_package(m, bundled, cat(m.name, " of the Hub: ", package.missing));
    need_library_digest(m);
    m.layers = package.layers;
    m.adapter = "hotswap" + m.id;
    m.register_adapter = register_adapter;
    return m;
  }
  refuse_package(m, bundled, cat("the compiled package '", m.name, "', whose ops are not known here"));
}

}  // namespace hotswap
