// Mixture of experts, forward and backward, against float64 ATen.
#include <ATen/ops/arange.h>

#include "kernels/moe/tests/reference.h"

namespace {

using namespace moe::testing;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};
const std::vector<std::string> kActivations = {"swiglu",         "geglu", "geglu_tanh", "reglu", "swiglu_oai",
                                               "swiglu_clamped", "relu2", "silu",       "gelu",  "gelu_tanh"};
// The second: nothing is a multiple of anything. The third: a decode step, with a part of a stretch left over.
const std::vector<Sizes> kSizes = {{},
                                   {.tokens = 9, .top_k = 2, .experts = 3, .hidden = 37, .inner = 19},
                                   {.tokens = 5, .top_k = 4, .experts = 6, .hidden = 136, .inner = 40}};

std::string text(const Sizes& s, at::ScalarType dtype) {
  return std::to_string(s.tokens) + "x" + std::to_string(s.top_k) + " of " + std::to_string(s.experts) + ", " +
         std::to_string(s.hidden) + "x" + std::to_string(s.inner) + " " + c10::toString(dtype);
}

class Experts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Moe, Experts, ::testing::ValuesIn(kActivations));
// A test of its own each: racecheck of all in one takes minutes.
class EachType : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Moe, EachType, ::testing::ValuesIn(kDtypes));
class EachFormula : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {};
INSTANTIATE_TEST_SUITE_P(Moe, EachFormula,
                         ::testing::Combine(::testing::ValuesIn(kActivations), ::testing::ValuesIn(kDtypes)));

TEST_P(EachFormula, EveryLayoutMatchesFloat64) {
  const auto& [activation, dtype] = GetParam();
  for (const Sizes& s : kSizes) {
    for (const int layout : {0, 1, 2, 3, 4, 5, 6, 7}) {
      Options o{.activation = activation, .transposed = layout % 2 == 1, .bias = layout / 2 % 2 == 1};
      o.interleaved = o.gated() && layout / 4 == 1;
      o.scale_input = layout == 1 || layout == 2 || layout == 7;
      if (!o.gated() && layout >= 4 && !o.scale_input) continue;  // the same as one before
      expect_right(inputs(s, o, some_routing(s), dtype), o.text() + ", " + text(s, dtype));
    }
  }
}

TEST_P(EachType, EveryRouting) {
  const at::ScalarType dtype = GetParam();
  const auto all = [](const Sizes& s, int64_t expert) { return at::full({s.tokens, s.top_k}, expert, at::kLong); };
  for (const bool transposed : {false, true}) {
    const Options o{.transposed = transposed, .bias = !transposed};
    const auto check = [&](const Sizes& s, const Tensor& index, const char* what) {
      expect_right(inputs(s, o, index, dtype), std::string(what) + ", " + o.text() + ", " + text(s, dtype));
    };
    Sizes s{.tokens = 150, .top_k = 2, .experts = 5, .hidden = 96, .inner = 72};
    check(s, some_routing(s), "at random");
    check(s, at::arange(300).remainder(5).view({150, 2}), "balanced");
    check(s, all(s, 3), "all to one");
    s = {.tokens = 300, .top_k = 1, .experts = 2, .hidden = 320, .inner = 136};
    check(s, some_routing(s), "one a token, several tiles");
    s = {.tokens = 20, .top_k = 6, .experts = 6, .hidden = 40, .inner = 24};
    check(s, at::arange(6).expand({20, 6}), "every expert");
    s = {.tokens = 1, .top_k = 2, .experts = 9, .hidden = 64, .inner = 64};
    check(s, some_routing(s), "one token");
    s = {.tokens = 8, .top_k = 8, .experts = 11, .hidden = 344, .inner = 168};
    check(s, some_routing(s), "as many as a decode step has");
    check(s, all(s, 10), "all of them to one");
    s = {.tokens = 40, .top_k = 3, .experts = 70, .hidden = 33, .inner = 16};
    check(s, some_routing(s), "more experts than a warp");
    s = {.tokens = 4, .top_k = 2, .experts = 1, .hidden = 1, .inner = 1};
    check(s, all(s, 0), "one of everything");
  }
}

// As many tokens as a long prompt has, of little width: slots, sums over an expert's rows, and experts of many rows, of
// few and of none in one call.
TEST_P(EachType, ManyTokens) {
  const at::ScalarType dtype = GetParam();
  const Sizes s{.tokens = 32768, .top_k = 4, .experts = 96, .hidden = 8, .inner = 4};
  const Options o{.bias = true};
  Tensor index = at::randint(s.experts - 2, {s.tokens, s.top_k}, generator(), at::kLong);
  for (const int64_t t : {0, 1, 16000, 32767}) index[t][t % s.top_k] = s.experts - 2;  // four rows; none for the last
  expect_right(inputs(s, o, index, dtype), o.text() + ", at random, " + text(s, dtype));
}
TEST_P(EachType, ManyTokensToOne) {
  const Sizes s{.tokens = 32768, .top_k = 1, .experts = 3, .hidden = 8, .inner = 4};
  const Tensor index = at::ones({s.tokens, 1}, at::kLong);
  expect_right(inputs(s, {.bias = true}, index, GetParam()), "all to one, " + text(s, GetParam()));
}

// Decode steps: of rows as wide as a real model's, of more numbers inside than are read at once, of many experts, of
// experts with more rows than are multiplied at once, and of more assignments than one block sorts.
TEST_P(EachType, AFewTokens) {
  for (const Sizes& s : std::vector<Sizes>{{.tokens = 1, .top_k = 2, .experts = 3, .hidden = 2056, .inner = 776},
                                           {.tokens = 16, .top_k = 2, .experts = 3, .hidden = 1032, .inner = 1544},
                                           {.tokens = 8, .top_k = 3, .experts = 4, .hidden = 3000, .inner = 24},
                                           {.tokens = 9, .top_k = 4, .experts = 1000, .hidden = 16, .inner = 8},
                                           {.tokens = 64, .top_k = 2, .experts = 3, .hidden = 264, .inner = 72},
                                           {.tokens = 64, .top_k = 20, .experts = 40, .hidden = 64, .inner = 32}}) {
    const Options o{.interleaved = s.tokens % 2 == 1, .bias = s.tokens % 2 == 0};
    expect_right(inputs(s, o, some_routing(s), GetParam()), o.text() + ", " + text(s, GetParam()));
  }
}

// Experts of 17 to 128 rows, whose products have a way of their own on the CPU, and sums of several parts; one with a
// row more.
TEST(Moe, SomeRowsAnExpert) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t most : {17, 33, 64, 97, 256, 257}) {
      const Sizes s{.tokens = most + 20, .top_k = 1, .experts = 4, .hidden = most == 97 ? 1100 : 70, .inner = 530};
      const Tensor index = (at::arange(s.tokens) >= most).to(at::kLong).unsqueeze(1);
      expect_right(inputs(s, {.bias = most % 2 == 1}, index, dtype), std::to_string(most) + " rows, " + text(s, dtype));
    }
  }
}

TEST(Moe, ScoresInTheDtype) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool scale_input : {false, true}) {
      const Sizes s;
      expect_right(inputs(s, {.scale_input = scale_input}, some_routing(s), dtype, dtype), "scores like x");
    }
  }
}

TEST(Moe, NoTokens) {
  const Sizes s{.tokens = 0};
  const Inputs in = inputs(s, {.bias = true}, at::empty({0, 3}, at::kLong), at::kFloat);
  const Tensors trained = in.train();
  EXPECT_EQ(trained[0].sizes(), in.x.sizes());
  EXPECT_EQ(trained[4].abs().sum().item<int64_t>(), 0);
  const Tensors got = in.backward(in.x, trained);
  EXPECT_EQ(got[0].sizes(), in.x.sizes());
  for (const int i : {2, 3, 4, 5}) EXPECT_EQ(got[i].abs().max().item<float>(), 0) << i;
}

// Assignments in the order of their experts, as a stable sort gives them.
TEST(Moe, IndexArrays) {
  for (const auto& [tokens, top_k, experts] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {13, 3, 7}, {700, 8, 130}, {1024, 1, 3}, {9000, 16, 65}, {3, 2, 2000}}) {
    const Sizes s{.tokens = tokens, .top_k = top_k, .experts = experts, .hidden = 8, .inner = 1};
    const Inputs in = inputs(s, {.activation = "relu2"}, some_routing(s), at::kFloat);
    const Tensors got = in.train();
    const Tensor index = in.index.flatten().cpu(), mine = index.ge(0).logical_and(index.lt(experts));
    const Tensor kept = mine.nonzero().flatten(),
                 by_expert = std::get<1>(at::sort(index.index_select(0, kept), true, 0, false));
    const Tensor order = kept.index_select(0, by_expert).to(at::kInt);
    const int64_t used = order.numel();
    expect_equal(got[2].cpu().narrow(0, 0, used), order, "order");
    Tensor slots = at::full({tokens * top_k}, -1, at::kInt);
    slots.index_put_({order.to(at::kLong)}, at::arange(used, at::kInt));
    expect_equal(got[3].cpu(), slots, "slots");
    Tensor offsets = at::zeros({experts + 1}, at::kInt);
    offsets.narrow(0, 1, experts)
        .copy_(at::bincount(index.index_select(0, kept), {}, experts).narrow(0, 0, experts).cumsum(0));
    expect_equal(got[4].cpu(), offsets, "offsets");
  }
}

TEST(Moe, IndexAndRowsOfAnyLayout) {
  const Sizes s{.tokens = 40, .top_k = 2};
  const Inputs in = inputs(s, {.bias = true}, some_routing(s), at::kBFloat16);
  const Tensor dy = random_tensor(in.x.sizes(), at::kBFloat16);
  const Tensors want = in.train(), back = in.backward(dy, want);
  for (const auto& [layout, lay_out] : layouts()) {
    Inputs other = in;
    other.x = lay_out(in.x);
    other.index = in.index.to(at::kInt).t().contiguous().t();
    other.weights = in.weights.t().contiguous().t();
    const Tensors got = other.train(), got_back = other.backward(lay_out(dy), got);
    // Misaligned rows take another path on a GPU, whose sums have another order.
    const auto same = [&](const Tensor& a, const Tensor& b, const std::string& what) {
      if (a.is_cpu()) return expect_equal(a, b, what + " " + layout);
      expect_close(a, b.to(at::kDouble), tolerance(at::kBFloat16), what + " " + layout);
    };
    same(got[0], want[0], "y");
    for (size_t i = 0; i < back.size(); ++i) same(got_back[i], back[i], "gradient " + std::to_string(i));
  }
  const Tensor row = random_tensor({1, s.hidden}, at::kBFloat16);
  expect_equal(in.backward(row.expand(in.x.sizes()), want)[0],
               in.backward(row.expand(in.x.sizes()).contiguous(), want)[0], "dy expanded");
}

TEST(Moe, SomebodyElsesExpertsAreSkipped) {
  for (const bool scale_input : {false, true}) {
    const Sizes s{.tokens = 30, .top_k = 2};
    Tensor index = some_routing(s);
    index.select(1, 1).fill_(s.experts);
    index[4][0] = std::numeric_limits<int64_t>::min();
    index[5][0] = int64_t{1} << 40;
    Inputs in = inputs(s, {.scale_input = scale_input, .bias = true}, index, at::kFloat);
    in.weights.select(1, 1).fill_(std::numeric_limits<float>::quiet_NaN());
    const Tensor dy = random_tensor(in.x.sizes(), at::kFloat);
    const Tensors trained = in.train(), got = in.backward(dy, trained);
    Inputs alone = in;
    alone.index = in.index.narrow(1, 0, 1), alone.weights = in.weights.narrow(1, 0, 1);
    const Tensors alone_trained = alone.train(), want = alone.backward(dy, alone_trained);
    expect_equal(trained[0], alone_trained[0], "y");
    EXPECT_EQ(got[1].select(1, 1).abs().sum().item<float>(), 0);
    expect_equal(got[1].narrow(1, 0, 1), want[1], "dweights");
    for (const int i : {0, 2, 3, 4, 5}) expect_equal(got[i], want[i], "gradient " + std::to_string(i));
    EXPECT_EQ(trained[0].narrow(0, 4, 2).abs().sum().item<float>(), 0);
  }
}

TEST(Moe, NanStaysInItsTokenAndItsExperts) {
  for (const int64_t tokens : {8, 12, 200}) {
    for (const at::ScalarType dtype : kDtypes) {
      const Sizes s{.tokens = tokens, .top_k = 2, .experts = 6, .hidden = 64, .inner = 32};
      Tensor index = at::arange(tokens * 2).remainder(3).view({tokens, 2});
      index[7][0] = 3, index[7][1] = 4;  // token 7's are its own; nobody goes to 5
      Inputs in = inputs(s, {.bias = true}, index, dtype);
      const Tensor dy = random_tensor(in.x.sizes(), dtype);
      const Tensors before = in.train(), gradients = in.backward(dy, before);
      in.x = in.x.clone();
      in.x[7].fill_(std::numeric_limits<float>::quiet_NaN());
      const Tensors after = in.train();
      const Tensor bad_dy = dy.clone();
      bad_dy[7].fill_(std::numeric_limits<float>::infinity());
      const Tensors got = in.backward(bad_dy, after);
      const Tensor others = at::arange(tokens).ne(7).nonzero().flatten().to(device());
      for (const auto& [a, b, what] : {std::tuple{after[0], before[0], "y"}, {got[0], gradients[0], "dx"}})
        expect_equal(a.index_select(0, others), b.index_select(0, others), what);
      EXPECT_TRUE(after[0][7].isnan().all().item<bool>());
      const Tensor untouched = at::tensor({0, 1, 2, 5}, at::kLong).to(device());
      for (const int i : {2, 3, 4, 5})
        expect_equal(got[i].index_select(0, untouched), gradients[i].index_select(0, untouched),
                     "gradient " + std::to_string(i));
    }
  }
}

TEST_P(Experts, NanScoreStaysInItsAssignment) {
  for (const bool scale_input : {false, true}) {
    const Sizes s{.tokens = 12, .top_k = 1, .experts = 2, .hidden = 40, .inner = 24};
    const Tensor index = at::zeros({12, 1}, at::kLong);  // one expert's, one row after the other
    Inputs in = inputs(s, {.activation = GetParam(), .scale_input = scale_input, .bias = true}, index, at::kFloat);
    const Tensor dy = random_tensor(in.x.sizes(), at::kFloat);
    const Tensors want = in.backward(dy, in.train());
    in.weights[2].fill_(std::numeric_limits<float>::quiet_NaN());
    const Tensors got = in.backward(dy, in.train());
    const Tensor others = at::arange(12).ne(2).nonzero().flatten().to(device());
    for (const int i : {0, 1})
      expect_equal(got[i].index_select(0, others), want[i].index_select(0, others), i == 0 ? "dx" : "dweights");
  }
}

TEST(Moe, GradientsInPlaceOfH) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool interleaved : {false, true}) {
      const Sizes s{.tokens = 50, .top_k = 2};
      const Inputs in = inputs(s, {.interleaved = interleaved, .bias = true}, some_routing(s), dtype);
      const Tensor dy = random_tensor(in.x.sizes(), dtype);
      Tensors trained = in.train();
      const Tensors want = in.backward(dy, trained);
      trained[1] = trained[1].clone();
      const Tensors got = in.backward(dy, trained, true, "moe_experts_bwd_");
      for (size_t i = 0; i < want.size(); ++i) expect_equal(got[i], want[i], "gradient " + std::to_string(i));
    }
  }
}

TEST(Moe, FrozenExperts) {
  const Sizes s;
  const Inputs in = inputs(s, {.bias = true}, some_routing(s), at::kBFloat16);
  const Tensor dy = random_tensor(in.x.sizes(), at::kBFloat16);
  const Tensors trained = in.train(), want = in.backward(dy, trained), got = in.backward(dy, trained, false);
  expect_equal(got[0], want[0], "dx");
  expect_equal(got[1], want[1], "dweights");
  for (const int i : {2, 3, 4, 5}) EXPECT_EQ(got[i].numel(), 0);
}

TEST(Moe, ExpertsWithoutRowsGetZeros) {
  const Sizes s{.tokens = 33, .top_k = 1, .experts = 4};
  const Inputs in = inputs(s, {.bias = true}, at::full({33, 1}, 2, at::kLong), at::kBFloat16);
  for (int run = 0; run < 3; ++run) {  // in memory that held other numbers
    at::full_like(in.w_up, std::numeric_limits<float>::quiet_NaN());
    const Tensors got = in.backward(in.x, in.train());
    for (const int i : {2, 3, 4, 5})
      for (const int e : {0, 1, 3}) EXPECT_EQ(got[i][e].abs().max().item<float>(), 0) << i << " " << e;
  }
}

TEST(Moe, SameBitsRunAfterRun) {
  for (const at::ScalarType dtype : kDtypes) {
    const Sizes s{.tokens = 120, .top_k = 4, .experts = 8, .hidden = 128, .inner = 96};
    const Inputs in = inputs(s, {.bias = true}, some_routing(s), dtype);
    const Tensor dy = random_tensor(in.x.sizes(), dtype);
    const Tensors first = in.train(), back = in.backward(dy, first);
    for (int run = 0; run < 3; ++run) {
      const Tensors again = in.train(), again_back = in.backward(dy, again);
      expect_equal(again[0], first[0], "y");
      for (size_t i = 0; i < back.size(); ++i) expect_equal(again_back[i], back[i], "gradient " + std::to_string(i));
    }
  }
}

TEST(Moe, FewRowsGiveTheSameBitsWithAnyNumberOfThreads) {
  const Sizes s{.tokens = 16, .top_k = 4, .experts = 32, .hidden = 512, .inner = 300};
  for (const bool transposed : {false, true}) {
    const Inputs in = inputs(s, {.transposed = transposed, .bias = true}, some_routing(s), at::kBFloat16);
    const Tensor dy = random_tensor(in.x.sizes(), at::kBFloat16);
    expect_same_with_any_threads(
        [&] {
          const Tensors trained = in.train(), back = in.backward(dy, trained);
          return Tensors{trained[0], back[0], back[1], back[3], back[5]};  // dw_up, dw_down are GEMMs of torch's
        },
        "few rows");
  }
}

TEST(Moe, SomeRowsGiveTheSameBitsWithAnyNumberOfThreads) {
  const Sizes s{.tokens = 160, .top_k = 2, .experts = 4, .hidden = 600, .inner = 300};
  std::vector<at::ScalarType> dtypes{at::kFloat};
#if defined(__x86_64__)
  // without pairs these are GEMMs of torch's
  if (__builtin_cpu_supports("avx512bf16") && std::getenv("HOTSWAP_ISA") == nullptr) dtypes.push_back(at::kBFloat16);
#endif
  for (const at::ScalarType dtype : dtypes) {
    const Inputs in = inputs(s, {.bias = true}, some_routing(s), dtype);
    expect_same_with_any_threads([&] { return in.forward(); }, "some rows");
  }
}

TEST(Moe, RefusesWhatItCannotDo) {
  const Sizes s;
  const Inputs in = inputs(s, {}, some_routing(s), at::kFloat);
  const auto refused = [&](const std::function<void(Inputs&)>& change, const std::vector<std::string>& words) {
    Inputs other = in;
    change(other);
    expect_refusal([&] { other.forward(); }, words);
  };
  refused([](Inputs& i) { i.o.activation = "tanh"; }, {"moe_experts: expected activation one of swiglu", "\"tanh\""});
  refused([](Inputs& i) { i.o.activation = "silu", i.o.interleaved = true; }, {"interleaved", "gate"});
  refused([](Inputs& i) { i.x = i.x.unsqueeze(0); }, {"x [tokens, hidden]", "[1, 13, 64]"});
  refused([](Inputs& i) { i.index = i.index.to(at::kShort); }, {"index as int64 or int32"});
  refused([](Inputs& i) { i.index = i.index.narrow(0, 0, 5); }, {"index [13", "[5, 3]"});
  refused([](Inputs& i) { i.weights = i.weights.narrow(1, 0, 2); }, {"weights in index's shape"});
  refused([](Inputs& i) { i.weights = i.weights.to(at::kHalf); }, {"weights in float32 or x's dtype", "float16"});
  refused([](Inputs& i) { i.weights = i.weights.to(at::kLong); }, {"weights in float32 or x's dtype", "int64"});
  refused([](Inputs& i) { i.o.transposed = true; }, {"expected w_up ["});
  refused([](Inputs& i) { i.w_up = i.w_up.to(at::kHalf); }, {"w_up in x's dtype", "float16"});
  refused([](Inputs& i) { i.w_up = i.w_up.to(at::kLong); }, {"w_up in x's dtype", "int64"});
  refused([](Inputs& i) { i.w_up = i.w_up[0]; }, {"w_up and w_down of three dimensions", "[64, 64]", "stack"});
  refused([](Inputs& i) { i.w_up = i.w_up.narrow(0, 0, 0), i.w_down = i.w_down.narrow(0, 0, 0); },
          {"at least one expert", "[0, 64, 64]", "check the layer's sizes"});
  refused([](Inputs& i) { i.w_up = transposed(i.w_up); }, {"w_up contiguous", "contiguous()"});
  refused([](Inputs& i) { i.b_down = i.x; }, {"b_down [7, 64]"});
  refused(
      [](Inputs& i) {  // expanded: a copy of index alone would be 16 GB
        const int64_t tokens = (int64_t{1} << 31) - (int64_t{1} << 21) + 1;
        i.x = i.x.narrow(0, 0, 1).expand({tokens, -1});
        i.index = i.index.narrow(0, 0, 1).narrow(1, 0, 1).expand({tokens, 1});
        i.weights = i.weights.narrow(0, 0, 1).narrow(1, 0, 1).expand({tokens, 1});
      },
      {"at most 2^31 - 2^21 assignments; got 2145386497", "split the tokens"});
  const Tensors trained = in.train();
  expect_refusal([&] { in.backward(in.x.narrow(0, 0, 3), trained); }, {"moe_experts_bwd: expected dy [13, 64]"});
  expect_refusal(
      [&] {
        in.backward(in.x, {trained[0], trained[1], trained[3].to(at::kLong), trained[3], trained[4]});
      },
      {"order", "int32", "int64", "pass what it gave"});
}

TEST(Moe, CallsAreCounted) {
  const Sizes s;
  const Inputs in = inputs(s, {}, some_routing(s), at::kFloat);
  for (const char* op : {"moe_experts", "moe_experts_train", "moe_experts_bwd", "moe_experts_bwd_"}) {
    const int64_t before = package().call_count(op);
    const Tensors trained = in.train();
    in.forward();
    in.backward(in.x, trained);
    in.backward(in.x, trained, true, "moe_experts_bwd_");
    EXPECT_EQ(package().call_count(op), before + 1) << op;
  }
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
