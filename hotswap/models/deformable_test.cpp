// The deformable attention of a Deformable DETR decoder layer against transformers' (deformable_oracle.py), stock and
// with the bundled kernel.
#include "hotswap/layers/deformable.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/base/error.h"
#include "hotswap/base/test_data.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/formats/safetensors.h"

namespace hotswap {
namespace {

using test_support::TempFolder;

constexpr DeformableAttentionOptions kOptions{.dim = 24, .heads = 4, .levels = 3, .points = 2};
constexpr double kLimit = 1e-5;  // float32 on both sides, sums of at most 100 terms

double l2_error(const Tensor& got, const Tensor& want) {
  return ((got - want).norm() / want.norm().clamp_min(1e-30)).item<double>();
}

class DetrOracle {
 public:
  DetrOracle() {
    const std::string command =
        cat("env -u LD_PRELOAD timeout 280 ", test_support::test_python(), " ", test_support::source_folder().string(),
            "/hotswap/models/deformable_oracle.py ", folder_.path().string(), " ", test_support::test_seed(), " 2>&1");
    FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) output_.append(buffer.data(), n);
    status_ = ::pclose(pipe);
  }
  SafetensorsFile read(int64_t numbers) const {
    EXPECT_EQ(status_, 0) << output_;
    return SafetensorsFile(folder_ / cat(numbers, ".safetensors"));
  }

 private:
  TempFolder folder_;
  std::string output_;
  int status_ = 0;
};

void expect_same(DeformableAttention& attention, const SafetensorsFile& file) {
  attention.each_tensor([&](const std::string& name, Tensor& tensor) {
    tensor = file.tensor("param." + name).clone().set_requires_grad(true);
  });
  std::map<std::string, Tensor> leaves;
  for (const char* name : {"hidden_states", "encoder_hidden_states", "position_embeddings", "reference_points"}) {
    leaves[name] = file.tensor(name).clone().set_requires_grad(true);
  }
  const Tensor out = attention.forward({.hidden = leaves["hidden_states"],
                                        .encoder_hidden = leaves["encoder_hidden_states"],
                                        .attention_mask = file.tensor("attention_mask"),
                                        .position = leaves["position_embeddings"],
                                        .reference_points = leaves["reference_points"],
                                        .spatial_shapes = file.tensor("spatial_shapes"),
                                        .level_start_index = file.tensor("level_start_index")});
  EXPECT_LE(l2_error(out.detach(), file.tensor("out")), kLimit);
  torch::autograd::backward({out}, {file.tensor("dout")});
  attention.each_tensor([&](const std::string& name, Tensor& tensor) { leaves[name] = tensor; });
  for (const auto& [name, leaf] : leaves) {
    ASSERT_TRUE(leaf.grad().defined()) << name;
    EXPECT_LE(l2_error(leaf.grad(), file.tensor("grad." + name)), kLimit) << name;
  }
}

TEST(Deformable, OptionsThatFitNothing) {
  EXPECT_THROW(DeformableAttention({.dim = 24, .heads = 5, .levels = 1, .points = 1}), Error);
  EXPECT_THROW(DeformableAttention({.dim = 24, .heads = 4, .levels = 0, .points = 1}), Error);
}

TEST(Deformable, DecoderAttentionAsTransformers) {
  if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
  const DetrOracle oracle;
  for (const int64_t numbers : {2, 4}) {
    SCOPED_TRACE(cat("reference points of ", numbers, " numbers"));
    const SafetensorsFile file = oracle.read(numbers);
    DeformableAttention attention(kOptions);
    expect_same(attention, file);

    attention.each_tensor([&](const std::string& name, Tensor& tensor) { tensor = file.tensor("param." + name); });
    const int64_t before = op_calls("deformable", "deformable_attention");
    const int64_t backward = op_calls("deformable", "deformable_attention_bwd");
    const KernelReport report = kernelize(attention, Mode::TRAINING, {});
    EXPECT_GE(report.bound(), 1) << report;
    expect_same(attention, file);
    EXPECT_EQ(op_calls("deformable", "deformable_attention"), before + 1);
    EXPECT_EQ(op_calls("deformable", "deformable_attention_bwd"), backward + 1);

    unkernelize(attention);
    expect_same(attention, file);
    EXPECT_EQ(op_calls("deformable", "deformable_attention"), before + 1) << "stock again";
  }
}

}  // namespace
}  // namespace hotswap
