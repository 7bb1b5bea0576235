// For how many rows a decoder layer's kernel is bound: as the package's own op says of the layer's weights.
#include "hotswap/layers/decoder_layer.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "hotswap/kernelize/testing.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::PackageCopy;

// Two heads of 64, one of them keys', and ffn 96.
struct Decoder : Module {
  explicit Decoder(at::ScalarType type = at::kFloat, at::ScalarType norm_type = at::kFloat)
      : slot(this, "DecoderLayer", "decoder_layer/1", stock::decoder_layer,
             {.features = {"silu"},
              .numbers = {{"head_dims", {64}}, {"group_sizes", {2}}},
              .weights = {"plain", "q8_0"}}) {
    slot.set_weights([this] { return weights_by_name(parts); });
    const auto weight = [&](int64_t out, int64_t in) { return at::randn({out, in}, type); };
    parts.input_norm = parts.post_norm = at::ones({64}, norm_type);
    parts.q = weight(128, 64), parts.k = parts.v = weight(64, 64), parts.o = weight(64, 128);
    parts.gate = parts.up = weight(96, 64), parts.down = weight(64, 96);
    own("norm", parts.input_norm, {64});
    parts.input_norm = parts.post_norm;
  }
  void pack() {  // Q8_0: 34 bytes for 32 elements
    for (Tensor* w : {&parts.q, &parts.k, &parts.v, &parts.o, &parts.gate, &parts.up, &parts.down}) {
      *w = at::zeros({w->size(0), w->size(1) / 32 * 34}, at::kByte);
    }
  }
  DecoderLayerParts parts;
  DecoderLayerSlot slot;
};

KernelRow decoder_row(Decoder& model, const KernelOptions& options = {}) {
  const KernelReport report = kernelize(model, Mode::INFERENCE, options);
  EXPECT_EQ(report.rows.size(), 1U);
  EXPECT_EQ(model.slot.bound(), report.rows[0].package.has_value());
  return report.rows[0];
}

TEST(DecoderLayer, TakesAsManyRowsAsThePackageSaysAndTheReportSaysSo) {
  Decoder model(at::kBFloat16, at::kBFloat16);
  EXPECT_FALSE(takes_rows(model.slot, 1)) << "nothing is bound";
  const int64_t most = __builtin_cpu_supports("avx512bf16") ? 4 : 16;  // kernels/decode/CARD.md
  EXPECT_EQ(decoder_row(model).reason, cat("up to ", most, " rows, more by its parts"));
  EXPECT_TRUE(takes_rows(model.slot, most));
  EXPECT_FALSE(takes_rows(model.slot, most + 1));
  model.pack();
  EXPECT_EQ(decoder_row(model).reason, "up to 16 rows, more by its parts");
  EXPECT_TRUE(takes_rows(model.slot, 16));
  EXPECT_FALSE(takes_rows(model.slot, 17));
  unkernelize(model);
  EXPECT_FALSE(takes_rows(model.slot, 1));
}

TEST(DecoderLayer, StaysStockWhereThePackageSaysNone) {
  Decoder model(at::kFloat, at::kHalf);
  const KernelRow row = decoder_row(model);
  expect_has(row.reason, {"decode:DecoderLayer serves no batch", "widths and dtypes"});
  EXPECT_TRUE(row.by_choice) << "strict asks for the parts";
  EXPECT_FALSE(takes_rows(model.slot, 1));
}

TEST(DecoderLayer, APackageThatSaysNothingIsGivenWhatTheContractAllows) {
  PackageCopy copy("decode");
  copy.edit_layers([](nlohmann::ordered_json& json) { json["layers"]["DecoderLayer"]["ops"].erase("rows"); });
  Decoder model(at::kBFloat16, at::kBFloat16);
  const KernelConfig config{.kernel_mapping = {{"DecoderLayer", KernelChoice(copy.root().string() + ":DecoderLayer")}},
                            .use_local_kernel = true};
  EXPECT_EQ(decoder_row(model, {.config = config}).reason, "up to 16 rows, more by its parts");
  EXPECT_TRUE(takes_rows(model.slot, kMaxDecoderRows));
}

}  // namespace
}  // namespace hotswap
