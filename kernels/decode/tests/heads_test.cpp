// What stands between a layer's products and its attention, against float64: heads normed and turned, and what is
// written into the caches.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/rsqrt.h>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {
namespace {

constexpr double kEps = 1e-5;
constexpr int64_t kCapacity = 40;

struct Case {
  int64_t rows, heads, kv_heads, dim;
  bool norms, by_row, joint;
  std::string str() const {
    std::ostringstream text;
    text << rows << " rows, " << heads << "/" << kv_heads << " heads of " << dim << (norms ? ", norms" : "")
         << (by_row ? ", a position each" : "") << (joint ? ", views of one product" : "");
    return text.str();
  }
};

struct Step {
  Tensor q, k, v, q_norm, k_norm, cos, sin, k_cache, v_cache, position;
  Case shape;

  Step(const Case& c, at::ScalarType dtype) : shape(c) {
    const int64_t queries = c.heads * c.dim, keys = c.kv_heads * c.dim, all = queries + 2 * keys;
    const Tensor product = random_tensor({c.rows, 1, all}, dtype);
    const auto part = [&](int64_t begin, int64_t count) {
      const Tensor view = product.narrow(-1, begin, count);
      return c.joint ? view : view.contiguous();
    };
    q = part(0, queries), k = part(queries, keys), v = part(queries + keys, keys);
    if (c.norms) q_norm = random_tensor({c.dim}, dtype, 0.2) + 1, k_norm = random_tensor({c.dim}, dtype, 0.2) + 1;
    const int64_t tables = c.by_row ? c.rows : 1;
    const Tensor half = random_tensor({tables, 1, c.dim / 2}, at::kFloat), angle = at::cat({half, half}, -1);
    cos = angle.cos().to(dtype), sin = angle.sin().to(dtype);
    const auto cache = [&] {
      return at::full({c.rows, c.kv_heads, kCapacity, c.dim}, 7, product.options()).transpose(1, 2);
    };
    k_cache = cache(), v_cache = cache();
    position = c.by_row ? (at::arange(c.rows, at::kLong) * 13 % kCapacity).to(device())
                        : at::full({1}, kCapacity - 1, at::kLong).to(device());
  }
  Tensor run() const {
    const auto optional = [](const Tensor& t) { return t.defined() ? c10::IValue(t) : c10::IValue(); };
    return package().call("decoder_heads", q, k, v, optional(q_norm), optional(k_norm), cos, sin, k_cache, v_cache,
                          position, kEps)[0];
  }
  Tensor ready(const Tensor& t, const Tensor& norm) const {  // [rows, 1, n] -> [rows, heads, dim] float64
    Tensor x = t.to(at::kDouble).reshape({shape.rows, -1, shape.dim});
    if (norm.defined()) x = x * at::rsqrt(x.pow(2).mean(-1, true) + kEps) * norm.to(at::kDouble);
    const int64_t half = shape.dim / 2;
    const Tensor turned = at::cat({at::neg(x.narrow(-1, half, half)), x.narrow(-1, 0, half)}, -1);
    return x * cos.to(at::kDouble) + turned * sin.to(at::kDouble);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t rows : {1, 3, 17, 64}) {
    for (const bool norms : {false, true}) {
      for (const bool by_row : {false, true}) {
        all.push_back({rows, 16, 8, 128, norms, by_row, by_row != norms});
        all.push_back({rows, 9, 3, 64, norms, by_row, by_row == norms});
      }
    }
  }
  if (!on_cuda()) all.push_back({5, 3, 3, 6, true, true, true});
  return all;
}

TEST(DecoderHeads, MatchFloat64AndFillTheCaches) {
  const std::vector<at::ScalarType> dtypes =
      on_cuda() ? std::vector{at::kBFloat16, at::kHalf} : std::vector{at::kFloat, at::kBFloat16, at::kHalf};
  for (const auto dtype : dtypes) {
    for (const Case& shape : cases()) {
      const std::string what = shape.str() + " " + c10::toString(dtype);
      const Step step(shape, dtype);
      const Tensor out = step.run();
      const double limit =
          dtype == at::kFloat ? 1e-6 : 2 * tolerance(dtype);  // rounded twice, and once more by the norm
      EXPECT_EQ(out.sizes(), at::IntArrayRef({shape.rows, 1, shape.heads, shape.dim})) << what;
      expect_close(out.squeeze(1), step.ready(step.q, step.q_norm), limit, what + ", queries");
      const Tensor rows = at::arange(shape.rows, step.position.options());
      const auto kept = [&](const Tensor& cache) { return cache.index({rows, step.position.expand({shape.rows})}); };
      expect_close(kept(step.k_cache), step.ready(step.k, step.k_norm), limit, what + ", keys");
      expect_equal(kept(step.v_cache), step.v.reshape({shape.rows, shape.kv_heads, shape.dim}), what + ", values");
      for (const Tensor& cache : {step.k_cache, step.v_cache}) {
        EXPECT_EQ((cache == 7).to(at::kLong).sum().item<int64_t>() / (shape.kv_heads * shape.dim),
                  shape.rows * (kCapacity - 1))
            << what << ": all other positions";
      }
    }
  }
}

TEST(DecoderHeads, RefuseWhatDoesNotFit) {
  const Case shape{3, 4, 2, 64, true, true, false};
  const auto refused = [&](const std::function<void(Step&)>& change, const std::vector<std::string>& parts) {
    Step step(shape, at::kBFloat16);
    change(step);
    expect_refusal([&] { step.run(); }, parts);
  };
  refused([](Step& s) { s.k = s.k.narrow(-1, 0, 64); }, {"decoder_heads", "2 heads of 64", "check the layer's sizes"});
  refused([](Step& s) { s.position = s.position.narrow(0, 0, 2); }, {"decoder_heads", "one for each of 3"});
  refused([](Step& s) { s.cos = s.cos.narrow(-1, 0, 32); }, {"decoder_heads", "cos and sin [1 or 3, 64]"});
  refused([](Step& s) { s.v_cache = s.v_cache.narrow(1, 0, 9); }, {"decoder_heads", "caches of one capacity"});
  refused([](Step& s) { s.v = s.v.to(at::kHalf); }, {"decoder_heads", "v in q's dtype"});
  if (!on_cuda()) refused([](Step& s) { s.position.fill_(kCapacity); }, {"a position from 0 to 39", "got 40"});
}

}  // namespace
}  // namespace kernels::testing
