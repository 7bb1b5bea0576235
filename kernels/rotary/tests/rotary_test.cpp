// rotary, rotary_bwd and rotary_ against float64 ATen.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <set>

#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

struct Case {
  int64_t batch, heads, kv_heads, time, dim, rotary_dim;
};
// Decode, GQA, partial, odd halves, one pair, more pairs than a tile of the scratch, more positions than a block.
const std::vector<Case> kCases = {{1, 9, 3, 1, 64, 64},   {2, 4, 2, 7, 64, 64},    {1, 3, 1, 5, 20, 12},
                                  {2, 2, 2, 9, 6, 6},     {1, 1, 1, 3, 2, 2},      {1, 2, 1, 10, 80, 32},
                                  {1, 1, 1, 9, 600, 600}, {2, 32, 8, 3, 128, 128}, {1, 3, 2, 2, 8192, 8192}};
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

std::string describe(const Case& c, at::ScalarType dtype, const std::string& more) {
  return std::string(c10::toString(dtype)) + " dim " + std::to_string(c.dim) + " rotary_dim " +
         std::to_string(c.rotary_dim) + " time " + std::to_string(c.time) + " " + more;
}

// x [b, heads, s, d]; cos, sin [b or 1, s, rotary_dim or half of it], as the header says
Tensor formula(const Tensor& x, Tensor cos, Tensor sin, int64_t rotary_dim, bool interleaved) {
  const int64_t half = rotary_dim / 2;
  const Tensor r = x.narrow(-1, 0, rotary_dim), pass = x.narrow(-1, rotary_dim, x.size(-1) - rotary_dim);
  cos = cos.unsqueeze(1).to(at::kDouble);
  sin = sin.unsqueeze(1).to(at::kDouble);
  const auto first = [&](const Tensor& t) { return t.narrow(-1, 0, half); };
  const auto second = [&](const Tensor& t) { return t.size(-1) == half ? t : t.narrow(-1, half, half); };
  if (interleaved) {
    const Tensor a = r.slice(-1, 0, rotary_dim, 2), b = r.slice(-1, 1, rotary_dim, 2);
    const Tensor y = at::stack({a * first(cos) - b * first(sin), b * first(cos) + a * first(sin)}, -1);
    return at::cat({y.flatten(-2), pass}, -1);
  }
  const Tensor a = first(r), b = r.narrow(-1, half, half);
  return at::cat({a * first(cos) - b * first(sin), b * second(cos) + a * second(sin), pass}, -1);
}

// [b, heads, s, d] as models have it: a transposed [b, s, heads, d]
Tensor time_major(const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }

std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> all_layouts() {
  auto all = layouts();
  all.push_back({"time_major", time_major});
  all.push_back({"slice_of_qkv", [](const Tensor& t) {
                   return time_major(at::cat({t, t, t}, -1)).narrow(-1, 1, t.size(-1));
                 }});
  return all;
}

TEST(Rotary, ForwardAndBackwardMatchFloat64) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const Case& c : kCases) {
      const auto in = random_tensors({{c.batch, c.heads, c.time, c.dim}, {c.batch, c.kv_heads, c.time, c.dim}}, dtype);
      const auto dys = random_tensors({{c.batch, c.heads, c.time, c.dim}, {c.batch, c.kv_heads, c.time, c.dim}}, dtype);
      for (const at::ScalarType table : std::set<at::ScalarType>{at::kFloat, dtype}) {
        for (const bool interleaved : {false, true}) {
          for (const int64_t width : {c.rotary_dim, c.rotary_dim / 2}) {
            // both halves of the tables differ: nothing may rely on their being equal
            const auto angles = random_tensors({{c.batch, c.time, width}, {1, c.time, width}}, table);
            const Tensor &cos = angles[0], &sin = angles[1];
            const auto want = reference(
                [&](const Tensors& t) {
                  return Tensors{formula(t[0], cos, sin, c.rotary_dim, interleaved),
                                 formula(t[1], cos, sin, c.rotary_dim, interleaved)};
                },
                in, dys);
            for (const auto& [layout, lay_out] : all_layouts()) {
              const std::string what = describe(c, dtype, std::string(layout) + (interleaved ? " interleaved" : ""));
              const Tensor q = lay_out(in[0]), k = lay_out(in[1]);
              // slice_of_qkv reads other values: its reference is the op on a contiguous copy
              const bool sliced = std::string(layout) == "slice_of_qkv";
              if (width < c.rotary_dim && q.is_contiguous() == false) continue;  // layouts meet the full tables only
              const auto got = package().call("rotary", q, k, cos, sin, c.rotary_dim, interleaved);
              const auto back =
                  package().call("rotary_bwd", lay_out(dys[0]), lay_out(dys[1]), cos, sin, c.rotary_dim, interleaved);
              if (sliced) {
                const auto plain =
                    package().call("rotary", q.contiguous(), k.contiguous(), cos, sin, c.rotary_dim, interleaved);
                expect_equal(got[0], plain[0], "q " + what);
                expect_equal(got[1], plain[1], "k " + what);
                continue;
              }
              expect_close(got[0], want[0], tolerance(dtype), "q " + what);
              expect_close(got[1], want[1], tolerance(dtype), "k " + what);
              expect_close(back[0], want[2], tolerance(dtype), "dq " + what);
              expect_close(back[1], want[3], tolerance(dtype), "dk " + what);
              EXPECT_EQ(got[0].scalar_type(), dtype);
              const Tensor q2 = q.clone(), k2 = k.clone();
              package().call("rotary_", q2, k2, cos, sin, c.rotary_dim, interleaved);
              expect_equal(q2, got[0], "in place q " + what);
              expect_equal(k2, got[1], "in place k " + what);
            }
          }
        }
      }
    }
  }
}

TEST(Rotary, OutputsKeepTheMemoryOrderOfTheInputs) {
  const auto in = random_tensors({{2, 4, 6, 8}, {2, 2, 6, 8}, {1, 6, 8}}, at::kFloat);
  const auto got = package().call("rotary", time_major(in[0]), in[1], in[2], in[2], 8, false);
  EXPECT_EQ(got[0].strides(), time_major(in[0]).strides());
  EXPECT_TRUE(got[0].transpose(1, 2).is_contiguous());
  EXPECT_TRUE(got[1].is_contiguous());
}

TEST(Rotary, TablesMayBeTwoDimensionalAndStrided) {
  const auto in = random_tensors({{2, 3, 5, 8}, {2, 3, 5, 8}, {1, 5, 8}, {1, 5, 8}}, at::kFloat);
  const auto want = package().call("rotary", in[0], in[1], in[2], in[3], 8, false);
  const auto flat = package().call("rotary", in[0], in[1], in[2][0], transposed(in[3][0]), 8, false);
  expect_equal(flat[0], want[0], "q");
  expect_equal(flat[1], want[1], "k");
}

TEST(Rotary, EmptyInputs) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 2, 3, 8}, {2, 0, 3, 8}, {2, 2, 0, 8}}) {
    const Tensor x = random_tensor(shape, at::kFloat), table = random_tensor({1, shape[2], 8}, at::kFloat);
    EXPECT_EQ(package().call("rotary", x, x, table, table, 8, false)[0].sizes(), x.sizes());
  }
}

TEST(Rotary, BackwardIsTheGradientOfForward) {
  for (const bool interleaved : {false, true}) {
    const auto in = random_tensors({{1, 2, 3, 6}, {1, 1, 3, 6}}, at::kFloat);
    const auto dys = random_tensors({{1, 2, 3, 6}, {1, 1, 3, 6}}, at::kFloat);
    const auto table = random_tensors({{1, 3, 4}, {1, 3, 4}}, at::kFloat);
    const auto loss = [&](const Tensors& t) {
      const auto y = package().call("rotary", t[0], t[1], table[0], table[1], 4, interleaved);
      return (y[0].to(at::kDouble) * dys[0]).sum().item<double>() +
             (y[1].to(at::kDouble) * dys[1]).sum().item<double>();
    };
    const auto back = package().call("rotary_bwd", dys[0], dys[1], table[0], table[1], 4, interleaved);
    expect_finite_difference(loss, in, back, "rotary");
  }
}

TEST(Rotary, SameBitsWithAnyNumberOfThreads) {
  const auto in = random_tensors({{2, 4, 301, 64}, {2, 2, 301, 64}, {1, 301, 64}, {1, 301, 64}}, at::kFloat);
  expect_same_with_any_threads(
      [&] { return package().call("rotary", time_major(in[0]), in[1], in[2], in[3], 64, false); }, "rotary");
}

TEST(Rotary, StreamingStoresWriteTheSame) {  // outputs above the threshold against the same op on a part of them
  for (const int64_t dim : {64, 40}) {
    const auto in = random_tensors({{1, 9, 4096, dim}, {1, 3, 4096, dim}, {1, 4096, dim}, {1, 4096, dim}}, at::kFloat);
    const Tensor q = time_major(in[0]), k = time_major(in[1]);
    for (const bool interleaved : {false, true}) {
      const auto whole = package().call("rotary", q, k, in[2], in[3], dim, interleaved);
      const auto part = package().call("rotary", q.narrow(2, 0, 24), k.narrow(2, 0, 24), in[2].narrow(1, 0, 24),
                                       in[3].narrow(1, 0, 24), dim, interleaved);
      expect_equal(whole[0].narrow(2, 0, 24), part[0], "q");
      expect_equal(whole[1].narrow(2, 0, 24), part[1], "k");
    }
  }
}

TEST(Rotary, RefusesWhatItCannotDo) {
  const auto in = random_tensors({{2, 3, 5, 8}, {2, 1, 5, 8}, {1, 5, 8}, {1, 4, 8}, {1, 5, 6}}, at::kFloat);
  const auto call = [&](const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, int64_t rotary_dim) {
    return [=] { package().call("rotary", q, k, cos, sin, rotary_dim, false); };
  };
  expect_refusal(call(in[0], in[1], in[3], in[3], 8), {"cos", "5 positions", "[1, 4, 8]"});
  expect_refusal(call(in[0], in[1], in[2], in[4], 8), {"sin of width 8 or 4", "[1, 5, 6]"});
  expect_refusal(call(in[0], in[1], in[2], in[2], 7), {"even rotary_dim from 2 to 8", "got 7"});
  expect_refusal(call(in[0], in[1], in[2], in[2], 10), {"even rotary_dim", "got 10"});
  expect_refusal(call(in[0], in[1].narrow(2, 0, 4), in[2], in[2], 8), {"k [batch, heads, time, dim]", "[2, 1, 4, 8]"});
  expect_refusal(call(in[0], in[1].to(at::kHalf), in[2], in[2], 8), {"k in q's dtype"});
  expect_refusal(call(in[0].to(at::kDouble), in[1].to(at::kDouble), in[2], in[2], 8), {"float32, bfloat16 or float16"});
  const Tensor shared = in[1].narrow(0, 0, 1).expand({2, 3, 5, 8});
  expect_refusal([&] { package().call("rotary_", shared, in[1], in[2], in[2], 8, false); }, {"rotary_", "expanded"});
}

TEST(Rotary, CallsAreCounted) {
  const auto in = random_tensors({{1, 1, 2, 4}, {1, 2, 4}}, at::kFloat);
  for (const char* op : {"rotary", "rotary_bwd", "rotary_"}) {
    const int64_t before = package().call_count(op);
    package().call(op, in[0], in[0], in[1], in[1], 4, false);
    EXPECT_EQ(package().call_count(op), before + 1) << op;
  }
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
