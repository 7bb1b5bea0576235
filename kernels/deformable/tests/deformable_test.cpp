// Deformable attention against float64 loops (tests/oracle.h) and torch's grid_sample, and what it refuses.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/rand.h>

#include <limits>

#include "kernels/deformable/tests/oracle.h"

namespace {

using namespace kernels::testing;
using namespace deformable_test;
using kernels::package;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
const char* const kResults[] = {"y", "dvalue", "dlocations", "dweights"};

struct Shape {
  int64_t batch, queries, heads, channels;
  Pyramid pyramid;
};

Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, generator(), at::kDouble).to(dtype).to(device());
}
// Also outside of the levels: [-0.2, 1.2].
Tensor places(at::IntArrayRef shape, at::ScalarType dtype) {
  return (at::rand(shape, generator(), at::kDouble) * 1.4 - 0.2).to(dtype).to(device());
}

// value, locations, weights and dy of the general form: samples of all levels side by side.
Tensors inputs(const Shape& s, at::ScalarType dtype, at::ScalarType others) {
  const int64_t samples = s.pyramid.samples();
  return {numbers({s.batch, s.pyramid.rows(), s.heads, s.channels}, dtype),
          places({s.batch, s.queries, s.heads, samples, 2}, others),
          numbers({s.batch, s.queries, s.heads, samples}, others).abs() / double(std::max<int64_t>(samples, 1)),
          numbers({s.batch, s.queries, s.heads * s.channels}, dtype)};
}

// y and gradients. unordered: only with the same number of points in every level.
Tensors run(const Pyramid& pyramid, const Tensors& in, const Tensor& shapes, const Tensor& starts,
            bool unordered = false) {
  const bool same =
      std::all_of(pyramid.points.begin(), pyramid.points.end(), [&](int64_t n) { return n == pyramid.points[0]; });
  Tensors results;
  if (!same) {
    results = package().call("deformable_attention_points", in[0], shapes, starts, in[1], in[2], pyramid.points);
    const Tensors gradients =
        package().call("deformable_attention_points_bwd", in[3], in[0], shapes, starts, in[1], in[2], pyramid.points);
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  }
  const int64_t levels = int64_t(pyramid.sizes.size());
  auto split = in[2].sizes().vec();
  split.back() = levels;
  split.push_back(levels > 0 ? pyramid.points[0] : 0);
  const Tensor weights = in[2].reshape(split);
  split.push_back(2);
  const Tensor locations = in[1].reshape(split);
  const std::string bwd = unordered ? "deformable_attention_bwd_unordered" : "deformable_attention_bwd";
  results = package().call("deformable_attention", in[0], shapes, starts, locations, weights);
  const Tensors gradients = package().call(bwd, in[3], in[0], shapes, starts, locations, weights);
  results.insert(results.end(), gradients.begin(), gradients.end());
  for (size_t i : {2, 3}) {
    EXPECT_EQ(results[i].sizes(), i == 2 ? locations.sizes() : weights.sizes());
    results[i] = results[i].reshape(in[i - 1].sizes());
  }
  return results;
}
Tensors run(const Pyramid& pyramid, const Tensors& in, bool unordered = false) {
  return run(pyramid, in, pyramid.shapes(), pyramid.starts(), unordered);
}

// float32 knows a place to 2^-24 of the level's size, and with it a corner's share; each result is rounded once.
void expect_results(const Tensors& got, const Pyramid& pyramid, const Tensors& in, const std::string& what) {
  const Tensors want = oracle(pyramid, in, in[3]), sizes = oracle(pyramid, in, in[3], true);
  for (size_t i = 0; i < want.size(); ++i) {
    const Tensor& like = i == 0 ? in[0] : in[i - 1];
    EXPECT_EQ(got[i].scalar_type(), like.scalar_type()) << what << kResults[i];
    const bool wide = like.scalar_type() == at::kDouble;
    double widest = 1;
    for (const auto& [height, width] : pyramid.sizes) widest = std::max({widest, double(height), double(width)});
    expect_close(got[i].cpu(), want[i], tolerance(like.scalar_type()), what + " " + kResults[i],
                 wide ? Tensor() : sizes[i] * (i == 0 || i == 1 ? 1 : widest));
  }
}

std::vector<Shape> shapes() {
  return {
      {1, 2, 2, 2, {{{6, 4}, {3, 2}}, {2, 2}}},                          // Deformable-DETR's own test
      {2, 5, 8, 32, {{{9, 13}, {5, 7}, {3, 4}, {2, 2}}, {4, 4, 4, 4}}},  // as models have it
      {1, 37, 16, 16, {{{11, 6}}, {2}}},                                 // one level (lw_detr)
      {2, 3, 1, 64, {{{4, 4}, {1, 1}}, {8, 8}}},                         // a level of one pixel
      {1, 1, 3, 7, {{{5, 3}}, {1}}},                                     // one of everything, odd channels
      {2, 9, 2, 30, {{{7, 8}, {4, 4}, {2, 2}}, {3, 6, 3}}},              // points of their own (D-FINE)
      {1, 70, 2, 40, {{{20, 20}, {10, 10}}, {40, 40}}},                  // more samples than the CPU's table or pixels
      {65, 2, 2, 8, {{{3, 3}}, {3}}},                                    // more images than a step of theirs
      {1, 4, 2, 300, {{{3, 5}, {2, 2}}, {2, 2}}},                        // more channels than threads at once
      {1, 600, 2, 32, {{{2, 3}}, {4}}},                                  // many samples a pixel
      // Fewer samples than pixels: on a GPU a level's are sorted by one block, by a larger one, by all blocks together.
      {2, 120, 3, 8, {{{20, 20}, {10, 12}}, {2, 2}}},
      {1, 500, 2, 8, {{{50, 60}, {9, 9}}, {4, 2}}},
      {1, 1000, 1, 4, {{{64, 64}}, {4}}},
  };
}

TEST(Deformable, ForwardAndBackwardMatchFloat64) {
  for (const Shape& s : shapes()) {
    for (const at::ScalarType dtype : kDtypes) {
      const Tensors in = inputs(s, dtype, dtype);
      const std::string what = std::string(c10::toString(dtype)) + " channels " + std::to_string(s.channels);
      expect_results(run(s.pyramid, in), s.pyramid, in, what);
    }
  }
}

TEST(Deformable, EachInputHasATypeOfItsOwn) {
  const Shape s = shapes()[1];
  for (const at::ScalarType value : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType others : {at::kFloat, at::kBFloat16, at::kHalf}) {
      Tensors in = inputs(s, value, others);
      expect_results(run(s.pyramid, in), s.pyramid, in,
                     std::string(c10::toString(value)) + " " + c10::toString(others));
      in[1] = in[1].to(at::kFloat);
      expect_results(run(s.pyramid, in), s.pyramid, in, "float32 places");
    }
  }
}

TEST(Deformable, EveryLayout) {
  for (const int64_t channels : {32, 7}) {
    Shape s = shapes()[1];
    s.channels = channels;
    const Tensors plain = inputs(s, at::kFloat, at::kFloat);
    const Tensors want = run(s.pyramid, plain);
    for (const auto& [layout, lay_out] : layouts()) {
      for (size_t i = 0; i < plain.size(); ++i) {
        Tensors in = plain;
        in[i] = lay_out(in[i]);
        const Tensors got = run(s.pyramid, in);
        for (size_t k = 0; k < want.size(); ++k) {
          // a vector takes the channels in another order of sums than numbers one by one
          expect_close(got[k], want[k], tolerance(at::kFloat), std::string(layout) + " " + kResults[k]);
        }
      }
    }
    Tensors in = plain;
    in[0] = plain[0].narrow(0, 0, 1).expand_as(plain[0]);
    expect_results(run(s.pyramid, in), s.pyramid, in, "an image for all");
  }
}

TEST(Deformable, AsGridSample) {
  const Shape s = shapes()[1];
  const Tensors in = inputs(s, at::kFloat, at::kFloat);
  const auto formula = [&](const Tensors& t) {
    Tensor sum;
    int64_t start = 0, first = 0;
    for (size_t l = 0; l < s.pyramid.sizes.size(); ++l) {
      const auto [height, width] = s.pyramid.sizes[l];
      const int64_t points = s.pyramid.points[l], images = s.batch * s.heads;
      const Tensor value =
          t[0].narrow(1, start, height * width).permute({0, 2, 3, 1});  // [batch, heads, channels, ...]
      const Tensor places = t[1].narrow(3, first, points).permute({0, 2, 1, 3, 4});
      const Tensor weights = t[2].narrow(3, first, points).permute({0, 2, 1, 3});
      const Tensor taken = at::grid_sampler(value.reshape({images, s.channels, height, width}),
                                            (2 * places - 1).reshape({images, s.queries, points, 2}), 0, 0, false);
      const Tensor one = (taken * weights.reshape({images, 1, s.queries, points})).sum(-1);
      sum = sum.defined() ? sum + one : one;
      start += height * width, first += points;
    }
    return Tensors{sum.view({s.batch, s.heads * s.channels, s.queries}).transpose(1, 2)};
  };
  const Tensors want = reference(formula, {in[0], in[1], in[2]}, {in[3]}), ours = oracle(s.pyramid, in, in[3]);
  for (size_t i = 0; i < want.size(); ++i) expect_close(ours[i], want[i].cpu(), 1e-12, kResults[i]);
}

// On pixels' centres, on borders, where a sample just counts no more, far outside and at no place at all. Around value
// lie NaNs: whoever reads beside it, and be it to multiply by 0, has one.
TEST(Deformable, PlacesAtTheEdgeAndNowhere) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> xs = {0,    1,    0.125, 0.375, 0.875, -0.125, 1.125, -0.1249, 1.1249, -0.126,
                                  1.13, 1e30, -1e30, inf,   -inf,  nan,    0.5,   3.4e38,  1e-40,  -0.};
  const Pyramid pyramid{{{4, 4}}, {int64_t(xs.size() * xs.size())}};
  std::vector<double> flat;
  for (const double y : xs) {
    for (const double x : xs) flat.insert(flat.end(), {x, y});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t channels : {32, 5}) {
      Tensors in = inputs({1, 1, 1, channels, pyramid}, dtype, dtype);
      in[1] = at::tensor(flat, at::kDouble).view({1, 1, 1, -1, 2}).to(dtype).to(device());
      Tensor around = at::full({1, 48, 1, channels}, nan, in[0].options());
      in[0] = around.narrow(1, 16, 16).copy_(in[0]);
      const std::string what = std::string(c10::toString(dtype)) + " " + std::to_string(channels);
      for (const bool unordered : {false, true}) {
        const Tensors got = run(pyramid, in, unordered);
        expect_results(got, pyramid, in, what);
        for (const Tensor& t : got) EXPECT_TRUE(t.isfinite().all().item<bool>()) << what;
      }
      // A weight of infinity at a border stays inside as well.
      in[2].fill_(inf);
      run(pyramid, in);
    }
  }
}

// A corner inside counts even where its share is 0, as in torch's grid_sample: 0 x infinity is no number.
TEST(Deformable, ACornerOfNoShareIsRead) {
  const Pyramid pyramid{{{4, 4}}, {1}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Tensors in = inputs({1, 2, 1, 8, pyramid}, dtype, at::kFloat);
    in[0].select(1, 5).fill_(std::numeric_limits<float>::infinity());
    in[1].fill_(0.125);               // the centre of pixel (0, 0): all of its share is at the upper left
    in[1].select(1, 1).fill_(0.625);  // of (2, 2), whose corners are others
    const Tensor y = run(pyramid, in)[0];
    EXPECT_TRUE(y.select(1, 0).isnan().all().item<bool>());
    EXPECT_TRUE(y.select(1, 1).isfinite().all().item<bool>());
  }
}

// A corner outside counts nothing, not 0 times something: infinities beside it, and gradients of infinity, stay what
// they are, in torch's grid_sample too.
TEST(Deformable, ACornerOutsideGivesNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  const Pyramid pyramid{{{4, 4}, {1, 1}}, {1, 1}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t channels : {32, 64, 5}) {  // threads of a GPU that share a sample: few, some, a warp
      for (const int64_t queries : {1, 20}) {     // fewer samples than pixels, and more: sorted in two ways there
        const std::string what = std::string(c10::toString(dtype)) + " " + std::to_string(channels);
        Tensors in = inputs({1, queries, 1, channels, pyramid}, dtype, dtype);
        in[1].fill_(0.0625);                    // half of a pixel outside, at the upper left of both levels
        in[1].select(3, 1).fill_(2);            // but nowhere on the second
        in[2].select(3, 1).fill_(inf);          // whose weight is not looked at
        in[0].select(1, 16).fill_(inf);         // nor its value
        in[0].select(1, 0).fill_(inf);          // the one pixel that counts
        in[0].select(1, 1).fill_(double(NAN));  // its neighbour, which is none of the corners
        EXPECT_TRUE((run(pyramid, in)[0] == inf).all().item<bool>()) << what;
        in[0].fill_(1);
        in[3].fill_(inf);
        for (const bool unordered : {false, true}) {
          const Tensors got = run(pyramid, in, unordered);
          EXPECT_TRUE((got[1].select(1, 0) == inf).all().item<bool>()) << what;
          EXPECT_EQ(got[1].narrow(1, 1, 16).abs().max().item<double>(), 0) << what;
          EXPECT_TRUE((got[2].select(3, 0) == inf).all().item<bool>()) << what;
          EXPECT_TRUE((got[3].select(3, 0) == inf).all().item<bool>()) << what;
          EXPECT_EQ(got[3].select(3, 1).abs().max().item<double>(), 0) << what;
          EXPECT_EQ(got[2].select(3, 1).abs().max().item<double>(), 0) << what;
        }
      }
    }
  }
}

TEST(Deformable, SizesOnEitherDeviceInEitherWidth) {
  const Shape s = shapes()[1];
  const Tensors in = inputs(s, at::kFloat, at::kFloat);
  const Tensors want = run(s.pyramid, in);
  for (const at::ScalarType type : {at::kLong, at::kInt}) {
    for (const at::Device where : {at::Device(at::kCPU), device()}) {
      const Tensors got = run(s.pyramid, in, s.pyramid.shapes(type).to(where), s.pyramid.starts(type).to(where));
      for (size_t i = 0; i < want.size(); ++i) expect_equal(got[i], want[i], kResults[i]);
    }
  }
}

TEST(Deformable, RowsOfNoLevelHaveNoGradient) {
  const Shape s = shapes()[1];
  Tensors in = inputs(s, at::kFloat, at::kFloat);
  in[0] = at::cat({in[0], at::full({s.batch, 3, s.heads, s.channels}, NAN, in[0].options())}, 1);
  for (const bool unordered : {false, true}) {
    const Tensor dvalue = run(s.pyramid, in, unordered)[1];
    EXPECT_EQ(dvalue.narrow(1, s.pyramid.rows(), 3).abs().max().item<float>(), 0);
    EXPECT_TRUE(dvalue.isfinite().all().item<bool>());
  }
}

TEST(Deformable, TheOtherOrderOfSums) {
  for (const Shape& s : shapes()) {
    if (s.channels == 30) continue;  // points of their own
    for (const at::ScalarType dtype : kDtypes) {
      const Tensors in = inputs(s, dtype, dtype);
      expect_results(run(s.pyramid, in, true), s.pyramid, in, "unordered " + std::string(c10::toString(dtype)));
    }
  }
}

TEST(Deformable, SameBitsWithAnyNumberOfThreads) {
  Shape s = shapes()[1];
  s.queries = 400, s.channels = 70;
  const Tensors in = inputs(s, at::kBFloat16, at::kFloat);
  expect_same_with_any_threads([&] { return run(s.pyramid, in); }, "deformable");
}

TEST(Deformable, NothingToDo) {
  for (const Shape& s : std::vector<Shape>{{0, 3, 2, 8, {{{2, 2}}, {2}}},
                                           {2, 0, 2, 8, {{{2, 2}}, {2}}},
                                           {2, 3, 2, 8, {{{2, 2}}, {0}}},
                                           {2, 3, 2, 0, {{{2, 2}}, {2}}}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensors in = inputs(s, dtype, dtype);
      const Tensors got = run(s.pyramid, in), want = oracle(s.pyramid, in, in[3]);
      for (size_t i = 0; i < want.size(); ++i) expect_equal(got[i].cpu().to(at::kDouble), want[i], kResults[i]);
    }
  }
}

TEST(Deformable, RefusesWhatItCannotDo) {
  const Shape s = shapes()[1];
  const Pyramid& p = s.pyramid;
  const Tensors in = inputs(s, at::kFloat, at::kFloat);
  const auto call = [&](const Tensor& value, const Tensor& shapes, const Tensor& starts, const Tensor& locations,
                        const Tensor& weights, const Points& points) {
    return [=] { package().call("deformable_attention_points", value, shapes, starts, locations, weights, points); };
  };
  const Tensor sizes = p.shapes(), starts = p.starts();
  expect_refusal(call(in[0].select(1, 0), sizes, starts, in[1], in[2], p.points),
                 {"expected value [batch, rows, heads, channels]"});
  expect_refusal(call(in[0], sizes, starts.narrow(0, 0, 3), in[1], in[2], p.points), {"level_start_index [levels]"});
  expect_refusal(call(in[0], sizes.to(at::kFloat), starts, in[1], in[2], p.points), {"int64 or int32"});
  expect_refusal(call(in[0], sizes, starts, in[1], in[2], {4, 4, 4}), {"points of 4 levels", "got 3"});
  expect_refusal(call(in[0], sizes, starts, in[1], in[2], {4, 4, 4, 5}), {"expected 17 attention_weights", "got 16"});
  expect_refusal(call(in[0], sizes, starts, in[1].narrow(3, 0, 2), in[2], p.points), {"shape of attention_weights"});
  expect_refusal(call(in[0].to(at::kDouble), sizes, starts, in[1], in[2], p.points), {"float64 for all"});
  expect_refusal(call(in[0], sizes, starts + 1, in[1], in[2], p.points), {"one behind the other", "2 x 2 from row"});
  expect_refusal(call(in[0], sizes * 1000000007, starts, in[1], in[2], p.points), {"one behind the other"});
  expect_refusal(
      [&] {
        package().call("deformable_attention_points_bwd", in[3].to(at::kHalf), in[0], sizes, starts, in[1], in[2],
                       p.points);
      },
      {"dy in value's dtype"});
  expect_refusal(
      [&] {
        package().call("deformable_attention_points_bwd", in[3].narrow(1, 0, 1), in[0], sizes, starts, in[1], in[2],
                       p.points);
      },
      {"expected dy [2, 5, 256]"});
}

TEST(Deformable, CallsAreCounted) {
  const Shape s = shapes()[0];
  const Tensors in = inputs(s, at::kFloat, at::kFloat);
  const int64_t before = package().call_count("deformable_attention");
  const int64_t backward = package().call_count("deformable_attention_bwd");
  const int64_t other = package().call_count("deformable_attention_points");
  run(s.pyramid, in);
  EXPECT_EQ(package().call_count("deformable_attention"), before + 1);
  EXPECT_EQ(package().call_count("deformable_attention_bwd"), backward + 1);
  EXPECT_EQ(package().call_count("deformable_attention_points"), other);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
