// A decoder layer's step against float64 ATen: what comes out, what goes into the caches, and what may not be read.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/packed_weight.h"
#include "kernels/decode/cuda/products.h"
#include "kernels/decode/tests/layer_case.h"

namespace kernels::testing {
namespace {

// What a GPU takes, odd sizes of it among them, and what only a CPU does.
std::vector<Shape> shapes() {
  std::vector<Shape> all = {
      {.rows = 1,
       .hidden = 1024,
       .heads = 16,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 3072,
       .position = 70,
       .head_norms = true},
      {.rows = 1, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 72, .position = 0},
      {.rows = 3, .hidden = 72, .heads = 3, .kv_heads = 1, .head_dim = 64, .ffn = 40, .position = 5, .bias = true},
      {.rows = 2, .hidden = 576, .heads = 9, .kv_heads = 3, .head_dim = 64, .ffn = 1536, .position = 33},
      {.rows = 8,
       .hidden = 128,
       .heads = 8,
       .kv_heads = 1,
       .head_dim = 128,
       .ffn = 200,
       .position = 600,
       .act = "gelu_tanh"},
      {.rows = 9,
       .hidden = 136,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 128,
       .ffn = 208,
       .position = 33,
       .window = 7,
       .bias = true,
       .head_norms = true},
      // On a GPU: x in registers, of more than one unit of columns; more weights than shared memory has; and wide.
      {.rows = 16,
       .hidden = 1024,
       .heads = 16,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 3072,
       .position = 300,
       .head_norms = true},
      {.rows = 5, .hidden = 2048, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 2056, .position = 20},
      {.rows = 2, .hidden = 512, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 8000, .position = 9},
      {.rows = 12, .hidden = 1024, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 5000, .position = 9},
      {.rows = 2, .hidden = 4104, .heads = 4, .kv_heads = 2, .head_dim = 128, .ffn = 96, .position = 400},
      {.rows = 10, .hidden = 4104, .heads = 4, .kv_heads = 2, .head_dim = 128, .ffn = 96, .position = 200},
      {.rows = 1, .hidden = 4096, .heads = 4, .kv_heads = 2, .head_dim = 128, .ffn = 1032, .position = 300},
      {.rows = 8, .hidden = 4096, .heads = 2, .kv_heads = 1, .head_dim = 128, .ffn = 200, .position = 20, .bias = true},
      {.rows = 5, .hidden = 136, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 14336, .position = 9},
      {.rows = 8, .hidden = 136, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 14336, .position = 9},
      {.rows = 16,
       .hidden = 256,
       .heads = 8,
       .kv_heads = 8,
       .head_dim = 64,
       .ffn = 264,
       .position = 130,
       .window = 500},
      {.rows = 16,
       .hidden = 2048,
       .heads = 14,
       .kv_heads = 2,
       .head_dim = 64,
       .ffn = 1032,
       .position = 9,
       .bias = true},
  };
  if (!on_cuda()) {
    all.push_back({.rows = 2, .hidden = 7, .heads = 3, .kv_heads = 3, .head_dim = 6, .ffn = 5, .position = 4});
    all.push_back(
        {.rows = 5, .hidden = 33, .heads = 6, .kv_heads = 2, .head_dim = 10, .ffn = 1, .position = 1, .window = 0});
  }
  return all;
}

// Between x and out some twelve results are rounded, each an error of at most one unit and independent of the others; a
// key's norm and rotation round three times.
TEST(DecoderLayer, MatchesFloat64AndFillsTheCaches) {
  for (const auto dtype : dtypes()) {
    for (const Shape& shape : shapes()) {
      const std::string what = shape.str() + " " + c10::toString(dtype);
      const Layer layer(shape, dtype);
      const Reference want = reference(layer);
      const Tensor k_before = layer.k_cache.clone(), v_before = layer.v_cache.clone();
      const int64_t calls = package().call_count("decoder_layer");
      const Tensor out = layer.run();
      EXPECT_EQ(package().call_count("decoder_layer"), calls + 1);
      EXPECT_EQ(out.scalar_type(), dtype);
      const double limit = dtype == at::kFloat ? 1e-5 : 3 * tolerance(dtype);
      expect_close(out, want.out, limit, what);
      expect_close(layer.k_cache.select(1, shape.position), want.k, limit, what + ", key");
      expect_close(layer.v_cache.select(1, shape.position), want.v, limit, what + ", value");
      for (const auto& [cache, before] : {std::pair(layer.k_cache, k_before), {layer.v_cache, v_before}}) {
        expect_equal(cache.narrow(1, 0, shape.position), before.narrow(1, 0, shape.position), what + ": older tokens");
        EXPECT_TRUE(cache.narrow(1, shape.position + 1, 4).isnan().all().item<bool>()) << what << ": later ones";
      }
    }
  }
}

// On the CPU the same bits: sums are over a row's own elements. A GPU has more blocks a row where rows are fewer.
void expect_as_single(const Tensor& got, const Tensor& single, const std::string& what) {
  if (!on_cuda()) return expect_equal(got, single, what);
  expect_close(got, single.to(at::kDouble), 3 * tolerance(got.scalar_type()), what);
}

TEST(DecoderLayer, RowsOfDifferentLengthsHaveTheResultsOfABatchOfOne) {
  for (const auto dtype : dtypes()) {
    for (const auto& [rows, window] : {std::pair<int64_t, int64_t>(4, -1), {4, 4}, {12, -1}, {16, 9}}) {
      Shape shape{.rows = rows, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 72, .position = 300};
      shape.window = window;
      Layer all(shape, dtype);
      std::vector<int64_t> positions;
      for (int64_t row = 0; row < rows; ++row) positions.push_back((300 * row * row / (rows * rows) + 7 * row) % 301);
      all.position = at::tensor(positions, at::kLong).to(all.position.device());
      const Tensor half = random_tensor({rows, 1, shape.head_dim / 2}, at::kFloat), angle = at::cat({half, half}, -1);
      all.cos = angle.cos().to(dtype), all.sin = angle.sin().to(dtype);
      all.k_cache.nan_to_num_(0.5), all.v_cache.nan_to_num_(0.25);  // after a row's end is what it may not read
      std::vector<Layer> single(rows, all);
      for (int64_t row = 0; row < rows; ++row) {
        Layer& one = single[row];
        for (Tensor* t : {&one.x, &one.cos, &one.sin, &one.k_cache, &one.v_cache, &one.position})
          *t = t->narrow(0, row, 1).clone();
      }
      const Tensor out = all.run();
      for (int64_t row = 0; row < shape.rows; ++row) {
        const std::string what = std::string(c10::toString(dtype)) + ", row " + std::to_string(row) + shape.str();
        expect_as_single(out.narrow(0, row, 1), single[row].run(), what);
        const auto kept = [&](const Tensor& cache, int64_t r) { return cache[r].narrow(0, 0, positions[row] + 1); };
        expect_as_single(kept(all.k_cache, row), kept(single[row].k_cache, 0), what + ", keys");
        expect_as_single(kept(all.v_cache, row), kept(single[row].v_cache, 0), what + ", values");
      }
    }
  }
}

Layer wide(int64_t rows, int64_t hidden, at::ScalarType dtype = at::kBFloat16) {
  return {{.rows = rows, .hidden = hidden, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 64, .position = 2}, dtype};
}

TEST(DecoderLayerRows, OnACpuPlainBfloat16TakesFewerWhereProductsOfItAreFast) {
  if (on_cuda()) GTEST_SKIP() << "a GPU has another rule, below";
  const int64_t plain_bfloat16 = __builtin_cpu_supports("avx512bf16") ? 4 : 16;
  for (const auto dtype : dtypes()) {
    for (const int64_t hidden : {64, 100, 5120}) {
      EXPECT_EQ(rows_for(wide(1, hidden, dtype)), dtype == at::kBFloat16 ? plain_bfloat16 : 16) << hidden << dtype;
    }
  }
  Layer layer = wide(1, 64);
  for (Tensor Layer::*weight : {&Layer::q, &Layer::k, &Layer::v, &Layer::o, &Layer::gate, &Layer::up, &Layer::down}) {
    EXPECT_EQ(rows_for(layer), plain_bfloat16) << "as long as one is plain";
    const Tensor& like = layer.*weight;
    layer.*weight = random_weight("Q8_0", like.size(0), like.size(1)).bytes;
  }
  EXPECT_EQ(rows_for(layer), 16);
}

TEST(DecoderLayerRows, NoneOfWhatTheOpRefuses) {
  Layer layer = wide(1, 64);
  layer.post_norm = layer.post_norm.to(at::kFloat);
  EXPECT_EQ(rows_for(layer), 0);
  layer = wide(1, 64);
  layer.up = layer.up.to(at::kHalf);
  EXPECT_EQ(rows_for(layer), 0);
  layer.up = at::zeros({64, 35}, layer.q.options().dtype(at::kByte));
  EXPECT_EQ(rows_for(layer), 0);
  layer = wide(1, 64);
  layer.o = layer.o.t().contiguous().t();
  EXPECT_EQ(rows_for(layer), 0) << "columns side by side";
}

constexpr std::pair<int64_t, int> kOnAGpu[] =  // hidden size, rows
    {{4096, 16}, {4304, 16}, {4312, 15}, {5120, 13}, {6144, 10}, {8192, 7}};

// The rule by itself, wherever it is compiled.
TEST(DecoderLayerRows, OnAGpuNormsWantSharedMemory) {
  alignas(16) static constexpr char kNorm[16] = {};
  const auto rows = [](int64_t hidden, int64_t ffn, const void* weight = nullptr) {
    decode::Layer a{};
    a.dtype = DType::kBFloat16, a.hidden = hidden, a.input_norm = a.post_norm = kNorm;
    const auto w = [&](int64_t out, int64_t in) { return decode::Weight{nullptr, nullptr, out, in}; };
    a.q = w(128, hidden), a.k = a.v = w(64, hidden), a.o = w(hidden, 128);
    a.gate = a.up = w(ffn, hidden), a.down = w(hidden, ffn);
    a.up.data = weight;
    return std::pair(decode::cuda::supported_rows(a), decode::cuda::paying_rows(a));
  };
  for (const auto& [hidden, most] : kOnAGpu) EXPECT_EQ(rows(hidden, 64), std::pair(most, std::min(most, 8))) << hidden;
  EXPECT_EQ(rows(4096, 100000).first, 16) << "what is not normed needs no shared memory";
  EXPECT_EQ(rows(1024, 3072), std::pair(16, 16)) << "x stays in registers: Qwen3-0.6B";
  EXPECT_EQ(rows(1024, 3080), std::pair(16, 8)) << "one column more than the registers of down have";
  EXPECT_EQ(rows(2048, 2048), std::pair(16, 8)) << "of a normed x of two units 8 rows stay";
  for (const auto& none : {rows(4100, 64), rows(64, 100), rows(64, 64, kNorm + 2)}) EXPECT_EQ(none, std::pair(0, 0));
}

// And the op on one.
TEST(DecoderLayerRows, TheOpServesSoManyAndNoMore) {
  if (!on_cuda()) GTEST_SKIP() << "no GPU here: a CPU serves 16 of any width";
  for (const auto& [hidden, most] : kOnAGpu) {
    const Layer layer = wide(most, hidden);
    EXPECT_EQ(rows_for(layer), std::min(most, 8)) << hidden;
    const Reference want = reference(layer);
    expect_close(layer.run(), want.out, 3 * tolerance(at::kBFloat16), layer.shape.str());
    if (most < 16)
      expect_refusal([&, h = hidden, m = most] { wide(m + 1, h).run(); }, {"144 KB", "run the stock layer"});
  }
  EXPECT_EQ(rows_for(wide(1, 100)), 0);
}

// A row's numbers do not depend on the rows beside it.
TEST(DecoderLayer, RowsAreIndependent) {
  Layer all({.rows = 7, .hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 96, .position = 21},
            at::kBFloat16);
  Layer one = all;
  one.shape.rows = 1;
  one.x = all.x.narrow(0, 4, 1), one.k_cache = all.k_cache.narrow(0, 4, 1).clone();
  one.v_cache = all.v_cache.narrow(0, 4, 1).clone();
  // As many heads to a block or not: sums of attention may be split elsewhere.
  expect_close(one.run(), all.run().narrow(0, 4, 1).to(at::kDouble), 2 * tolerance(at::kBFloat16), "row 4");
}

TEST(DecoderLayer, TablesOfEachRowAndStridedWeights) {
  Layer layer({.rows = 3, .hidden = 64, .heads = 2, .kv_heads = 2, .head_dim = 64, .ffn = 48, .position = 3},
              at::kBFloat16);
  const Tensor want = layer.run();
  layer.cos = layer.cos.expand({3, 1, 64}).contiguous(), layer.sin = layer.sin.expand({3, 1, 64}).contiguous();
  const Tensor both = at::cat({layer.gate, layer.up}, 1);  // [ffn, 2 hidden]
  layer.gate = both.narrow(1, 0, 64), layer.up = both.narrow(1, 64, 64);
  expect_equal(layer.run(), want, "the same numbers in other memory");
}

TEST(DecoderLayer, TheSameBitsEachTime) {
  for (const Shape& shape : shapes()) {
    Layer layer(shape, at::kBFloat16);
    const Tensor want = layer.run();
    for (int i = 0; i < 3; ++i) {
      layer.weights_are_old = i > 0;
      expect_equal(layer.run(), want, shape.str());
    }
  }
}

// As many ids as the op takes rows, and rows of whole vectors and not.
TEST(DecoderInputs, AreLookedUpAndTheLengthIsRaised) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {0, 1, 16}) {
      for (const int64_t width : {2, 9, 64, 1024, 5000}) {
        const std::string what = std::to_string(rows) + " of " + std::to_string(width);
        const Tensor embedding = random_tensor({37, width}, dtype), rope = random_tensor({70, 2 * width}, dtype);
        const Tensor ids = at::randint(0, 37, {rows, 1}, at::TensorOptions(at::kLong)).to(device());
        const Tensor length = at::full({1}, 68, at::kLong).to(device());
        for (const int64_t at : {68, 69}) {
          const Tensors made = package().call("decoder_inputs", ids, embedding, rope, length);
          expect_equal(made[0], embedding.index_select(0, ids.view({-1})).unsqueeze(1), what);
          expect_equal(made[1], rope.narrow(0, at, 1).unsqueeze(0), what + ", cos and sin");
          EXPECT_EQ(made[2].item<int64_t>(), at) << what;
          EXPECT_EQ(length.item<int64_t>(), at + 1) << what;
        }
      }
    }
  }
}

TEST(DecoderInputs, RefusesWhatDoesNotFit) {
  const auto call = [](const std::function<void(Tensors&)>& change, const std::vector<std::string>& words) {
    Tensors t = {at::zeros({2}, at::kLong), at::ones({5, 8}), at::ones({3, 4}), at::zeros({1}, at::kLong)};
    change(t);
    for (Tensor& one : t) one = one.to(device());
    expect_refusal([&] { package().call("decoder_inputs", t[0], t[1], t[2], t[3]); }, words);
  };
  call([](Tensors& t) { t[0] = t[0].to(at::kInt); }, {"decoder_inputs: expected ids in int64; got int32"});
  call([](Tensors& t) { t[3] = at::zeros({2}, at::kLong); }, {"one length", "[2] and [2]"});
  call([](Tensors& t) { t[1] = t[1].narrow(0, 0, 0); }, {"embedding [ids, hidden]", "[0, 8]"});
  call([](Tensors& t) { t[2] = t[2].to(at::kHalf); }, {"expected rope in embedding's dtype, float32; got float16"});
  if (on_cuda()) return;  // there a wrong number ends the run
  call([](Tensors& t) { t[0][1] = 5; }, {"ids from 0 to 4; got 5"});
  call([](Tensors& t) { t[3].fill_(3); }, {"a length from 0 to 2; got 3"});
}

TEST(DecoderLayer, SameBitsWithAnyNumberOfThreads) {
  const Layer layer({.rows = 2, .hidden = 300, .heads = 5, .kv_heads = 5, .head_dim = 64, .ffn = 704, .position = 90},
                    at::kBFloat16);
  if (on_cuda()) GTEST_SKIP() << "a GPU has no threads to choose";
  expect_same_with_any_threads([&] { return Tensors{layer.run()}; }, "decoder_layer");
}

TEST(DecoderLayer, NoRows) {
  const Layer layer({.rows = 0, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 8, .position = 2},
                    at::kBFloat16);
  EXPECT_EQ(layer.run().sizes(), at::IntArrayRef({0, 1, 64}));
}

TEST(DecoderLayer, RefusesWhatDoesNotFit) {
  const Shape shape{.rows = 2, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 8, .position = 2};
  const auto refused = [&](const std::function<void(Layer&)>& change, const std::vector<std::string>& words) {
    Layer layer(shape, at::kBFloat16);
    change(layer);
    expect_refusal([&] { layer.run(); }, words);
  };
  refused([](Layer& l) { l.shape.act = "relu"; }, {"silu or gelu_tanh", "relu"});
  refused([](Layer& l) { l.k = at::zeros({63, 64}, l.k.options()); }, {"expected k [64, 64]", "[63, 64]"});
  refused([](Layer& l) { l.v_cache = l.v_cache.narrow(0, 0, 1); }, {"v_cache [2, capacity, 1, 64]"});
  refused([](Layer& l) { l.down = l.down.to(at::kFloat); }, {"down in x's dtype"});
  if (!on_cuda()) {
    refused([](Layer& l) { l.up = at::zeros({8, 35}, at::kByte); }, {"up packed as [8, bytes of 64", "[8, 35]"});
    refused([](Layer& l) { l.o = at::zeros({63, 40}, at::kByte); }, {"packed as [64, bytes of 128", "[63, 40]"});
  }
  refused([](Layer& l) { l.cos = l.cos.narrow(-1, 0, 32).contiguous(); }, {"cos and sin"});
  refused([](Layer& l) { l.cos = l.sin = at::ones({}, l.cos.options()); }, {"cos and sin", "got []"});
  refused([](Layer& l) { l.sin = l.sin.view({1, 32, 2}); }, {"cos and sin", "[1, 32, 2]"});
  refused([](Layer& l) { l.x = l.x[0][0]; }, {"x [..., hidden]", "got [64]", "unsqueeze"});
  refused([](Layer& l) { l.v_cache = l.v_cache.narrow(1, 0, 6); }, {"one capacity; got 7 and 6", "the same lengths"});
  refused(
      [](Layer& l) {
        l.q = at::zeros({0, 64}, l.q.options());
      },
      {"at least one and a multiple of its 1", "[0, 64]"});
  refused([](Layer& l) { l.position = at::zeros({3}, l.position.options()); },
          {"one int64", "got [3]", "cast or repeat"});
  if (!on_cuda()) refused([](Layer& l) { l.position.fill_(7); }, {"a position from 0 to 6", "7"});
  Layer many({.rows = 17, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .ffn = 8, .position = 2},
             at::kBFloat16);
  expect_refusal([&] { many.run(); }, {"at most 16 rows", "17"});
  if (on_cuda()) {
    const Layer wide({.rows = 1, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 96, .ffn = 8, .position = 2},
                     at::kBFloat16);
    expect_refusal([&] { wide.run(); }, {"a head_dim of 64 or 128"});
  }
}

TEST(DecoderLayer, RunsTheAskedIsa) { expect_asked_isa(); }
TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
}  // namespace kernels::testing
