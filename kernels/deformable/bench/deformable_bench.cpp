// Deformable attention against torch's grid_sample, level by level, as transformers has it without a kernel. The
// pyramid is that of an image of 400 x 533 pixels at strides of 8 to 64; queries as many as pixels (an encoder's) and
// 300 (a decoder's); places all over the image, and near each query's own pixel.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

using Forward = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);
using Backward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                    const Tensor&, const Tensor&);

constexpr int64_t kHeads = 8, kChannels = 32, kPoints = 4;
constexpr int64_t kSizes[][2] = {{50, 67}, {25, 34}, {13, 17}, {7, 9}};
constexpr int64_t kLevels = 4;

Tensor eager(const Tensor& value, const Tensor& locations, const Tensor& weights) {
  const int64_t images = value.size(0) * kHeads, queries = locations.size(1);
  const Tensor grids = 2 * locations - 1;
  std::vector<Tensor> taken;
  int64_t start = 0;
  for (int64_t l = 0; l < kLevels; ++l) {
    const auto [height, width] = kSizes[l];
    const Tensor level = value.narrow(1, start, height * width).flatten(2).transpose(1, 2);
    const Tensor grid = grids.select(3, l).transpose(1, 2).flatten(0, 1);  // [images, queries, points, 2]
    taken.push_back(at::grid_sampler(level.reshape({images, kChannels, height, width}), grid, 0, 0, false));
    start += height * width;
  }
  const Tensor w = weights.transpose(1, 2).reshape({images, 1, queries, kLevels * kPoints});
  const Tensor y = (at::stack(taken, -2).flatten(-2) * w).sum(-1);
  return y.view({value.size(0), kHeads * kChannels, queries}).transpose(1, 2).contiguous();
}

// The middle of each pixel of every level, (x, y).
Tensor centres() {
  std::vector<Tensor> all;
  for (const auto& [height, width] : kSizes) {
    const Tensor x = (at::arange(width, at::kFloat) + 0.5) / width, y = (at::arange(height, at::kFloat) + 0.5) / height;
    all.push_back(at::stack({x.expand({height, width}), y.unsqueeze(1).expand({height, width})}, -1).view({-1, 2}));
  }
  return at::cat(all);
}

void run(Bench& bench, bool encoder, bool local, at::ScalarType dtype) {
  std::vector<int64_t> flat, starts = {0};
  for (const auto& [height, width] : kSizes) {
    flat.insert(flat.end(), {height, width});
    starts.push_back(starts.back() + height * width);
  }
  const int64_t rows = starts.back(), queries = encoder ? rows : 300;
  starts.pop_back();
  const Tensor shapes = at::tensor(flat).view({kLevels, 2}), first = at::tensor(starts);
  const Tensor value = at::randn({1, rows, kHeads, kChannels}, dtype);
  Tensor places = at::rand({1, queries, kHeads, kLevels, kPoints, 2}, at::kFloat);
  if (local) {
    const Tensor pixels = at::stack({shapes.select(1, 1), shapes.select(1, 0)}, -1).view({1, 1, 1, kLevels, 1, 2});
    places = centres().narrow(0, 0, queries).view({1, queries, 1, 1, 1, 2}) + 2 * at::randn(places.sizes()) / pixels;
  }
  places = places.to(dtype);
  const Tensor weights = at::softmax(at::randn({1, queries, kHeads, kLevels * kPoints}), -1)
                             .view({1, queries, kHeads, kLevels, kPoints})
                             .to(dtype);
  const Tensor dy = at::randn({1, queries, kHeads * kChannels}, dtype);
  const auto forward = package().typed<Forward>("deformable_attention");
  const auto backward = package().typed<Backward>("deformable_attention_bwd");
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const auto bytes = [](const auto&... t) { return ((t.numel() * t.element_size()) + ...); };
  Case c{.shape = "S" + std::to_string(rows) + " Q" + std::to_string(queries) + (local ? " local" : " uniform"),
         .dtype = short_name(dtype),
         .peer = "torch grid_sample"};
  c.tolerance = dtype == at::kFloat ? 1e-5 : 1.0 / 128;

  c.op = "deformable_attention", c.target = 10, c.bytes = bytes(value, places, weights, dy);
  c.ours = [&] { forward.call(value, shapes, first, places, weights); };
  c.theirs = [&] { eager(value, places, weights); };
  c.error = [&] {
    return relative_l2(forward.call(value, shapes, first, places, weights),
                       eager(wide(value), wide(places), wide(weights)));
  };
  bench.run(c);

  // Theirs: the graph of one forward, gone through again each time.
  const auto graph = [&](const Tensor& v, const Tensor& p, const Tensor& w, const Tensor& d) {
    at::AutoGradMode grad(true);
    const std::vector<Tensor> leaves = {v.detach().requires_grad_(true), p.detach().requires_grad_(true),
                                        w.detach().requires_grad_(true)};
    const Tensor y = eager(leaves[0], leaves[1], leaves[2]);
    return [leaves, y, d] {
      c10::InferenceMode off(false);
      for (const Tensor& leaf : leaves) leaf.mutable_grad().reset();
      y.backward(d, /*retain_graph=*/true);
      return leaves[0].grad();
    };
  };
  const auto theirs = graph(value, places, weights, dy);
  c.op = "deformable_attention_bwd", c.target = 8, c.bytes = 2 * bytes(value, places, weights) + bytes(dy);
  c.ours = [&] { backward.call(dy, value, shapes, first, places, weights); };
  c.theirs = [&] { theirs(); };
  c.error = [&] {
    return relative_l2(std::get<0>(backward.call(dy, value, shapes, first, places, weights)),
                       graph(wide(value), wide(places), wide(weights), wide(dy))());
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool encoder : {false, true}) {
      for (const bool local : {false, true}) run(bench, encoder, local, dtype);
    }
  }
  return bench.finish();
}
