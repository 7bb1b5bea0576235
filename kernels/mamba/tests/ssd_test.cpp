// State space duality against the recurrence in float64 (tests/ssd_oracle.h), and what it refuses.
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <sys/mman.h>

#include "kernels/mamba/tests/ssd_oracle.h"

namespace {

using namespace mamba_test;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

struct Shape {
  int64_t batch, length, heads, dim, groups, state;
};
// What is given beside x, dt, A, B and C.
struct Given {
  bool D = true, each_D = false, z = false, bias = true, initial = false;
};

// As trained models have it: A in -[1, 16], Δ about 0.001 to 1.
Ssd problem(const Shape& s, const Given& g = {}, at::ScalarType dtype = at::kFloat) {
  Tensors in(kInputs);
  in[kX] = random_tensor({s.batch, s.length, s.heads, s.dim}, dtype);
  in[kDt] = random_tensor({s.batch, s.length, s.heads}, dtype);
  in[kA] = -(at::rand({s.heads}, generator(), at::kFloat) * 2.8).exp().to(device());
  in[kB] = random_tensor({s.batch, s.length, s.groups, s.state}, dtype);
  in[kC] = random_tensor({s.batch, s.length, s.groups, s.state}, dtype);
  if (g.D) in[kD] = g.each_D ? random_tensor({s.heads, s.dim}, dtype) : random_tensor({s.heads}, dtype);
  if (g.z) in[kZ] = random_tensor({s.batch, s.length, s.heads, s.dim}, dtype);
  if (g.bias) in[kBias] = (at::rand({s.heads}, generator(), at::kFloat) * 6 - 6).to(dtype).to(device());
  if (g.initial) in[kInitial] = random_tensor({s.batch, s.heads, s.dim, s.state}, at::kFloat);
  return {in, {}, {}};
}

// float32's error is that of sums of up to state x chunk products in another order; a result in another type is rounded
// once more. Gradients that are sums over all tokens cancel: their terms say how far.
// Of inputs in 16 bits a GPU rounds factors of products to 16 bits first (float16's states in two parts, to 2^-17),
// with z also the gradient behind the gate: what is a sum of them is known to that rounding, as are the terms of those
// that cancel.
double rounding(at::ScalarType given) { return device().is_cpu() || given == at::kFloat ? 0 : tolerance(given); }
double allowed(at::ScalarType dtype, at::ScalarType given) {
  return std::max({5e-6, rounding(given), dtype == at::kFloat ? 0. : tolerance(dtype)});
}
double term_units(at::ScalarType dtype, at::ScalarType given) {  // in those of expect_close
  return std::max(1., rounding(given) / 2 / (dtype == at::kBFloat16 ? 1e-4 : 5e-7));
}

void expect_results(const Ssd& s, const Tensors& got, const Tensor& dy, const Tensor& dfinal, const std::string& what) {
  const auto [want, terms] = oracle(s, dy, dfinal);
  const at::ScalarType dtype = s.in[kX].scalar_type();
  EXPECT_EQ(got[0].scalar_type(), dtype) << what;
  expect_close(got[0], want[0], allowed(dtype, dtype), what + " y");
  EXPECT_EQ(got[1].scalar_type(), at::kFloat) << what;
  expect_close(got[1], want[1], allowed(at::kFloat, dtype), what + " final_state");
  for (int i = 0; i < kInputs; ++i) {
    const Tensor& d = got[2 + i];
    if (!s.in[i].defined()) {
      EXPECT_EQ(d.numel(), 0) << what << ": gradient of " << kNames[i] << ", which was not given";
      continue;
    }
    const bool is_float = i == kA || i == kD || i == kBias || i == kInitial;
    EXPECT_EQ(d.scalar_type(), is_float ? at::kFloat : s.in[i].scalar_type()) << what;
    const Tensor least = at::full_like(want[2 + i], 1e-30);  // gradients through e^-100 are less than float32 holds
    Tensor of = terms[2 + i].defined() ? terms[2 + i] * term_units(d.scalar_type(), dtype) + least : least;
    // What is left of the initial state is e^S: float32 knows S, and so the logarithm of this gradient, to 2 |S| 2^-24,
    // which is 1/4 |S| of the 5e-7 that expect_close allows of a term.
    if (i == kInitial) of = of + (want[2 + i] * want[2 + i].abs().clamp_min(1e-300).log()).abs() / 4;
    expect_close(d, want[2 + i], allowed(d.scalar_type(), dtype), what + " d" + kNames[i], of);
  }
}

void check(const Ssd& s, const std::string& what, bool with_dfinal = true) {
  const Tensor dy = random_tensor(s.in[kX].sizes(), s.in[kX].scalar_type());
  const Tensor& x = s.in[kX];
  const Tensor dfinal =
      with_dfinal ? random_tensor({x.size(0), x.size(2), x.size(3), s.in[kB].size(3)}, at::kFloat) : Tensor();
  expect_results(s, run(s, dy, dfinal), dy, dfinal, what);
}

Tensor sequences(const std::vector<std::vector<int64_t>>& runs, int64_t length) {  // (id, tokens) pairs a batch entry
  std::vector<Tensor> rows;
  for (const auto& row : runs) {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < row.size(); i += 2) parts.push_back(at::full({row[i + 1]}, row[i], at::kInt));
    rows.push_back(at::cat(parts));
    EXPECT_EQ(rows.back().size(0), length);
  }
  return at::stack(rows).to(device());
}

TEST(StateSpaceDuality, ShapesMatchTheRecurrence) {
  const std::vector<Shape> shapes = {
      {1, 1, 1, 1, 1, 1},       // one of everything
      {2, 3, 4, 8, 2, 16},      // shorter than any vector
      {1, 63, 2, 16, 1, 8},     // one step less than a chunk,
      {1, 64, 2, 16, 1, 8},     // a chunk
      {1, 65, 2, 16, 1, 8},     // and one more
      {2, 130, 3, 7, 1, 17},    // odd
      {1, 70, 9, 5, 1, 3},      // more heads than are worked on at once, and not a multiple
      {2, 70, 6, 9, 3, 20},     // groups of two heads
      {1, 200, 2, 64, 1, 128},  // mamba2's dim and state
      {1, 80, 2, 33, 2, 256},   // bamba's state
      {1, 80, 1, 130, 1, 64},   // a wide head
  };
  for (const Shape& s : shapes) {
    const std::string what = "length " + std::to_string(s.length) + " dim " + std::to_string(s.dim);
    check(problem(s), what);
    check(problem(s, {.z = true, .initial = true}), what + " z, initial");
  }
}

TEST(StateSpaceDuality, NothingIsLegal) {
  for (const Shape& s : {Shape{2, 0, 2, 3, 1, 4}, Shape{0, 5, 2, 3, 1, 4}, Shape{1, 5, 2, 0, 1, 4},
                         Shape{1, 5, 2, 3, 1, 0}, Shape{1, 70, 0, 3, 1, 4}})
    check(problem(s, {.z = true, .initial = true}), "empty");
}

TEST(StateSpaceDuality, EveryType) {
  for (const at::ScalarType dtype : kDtypes) {
    const std::string what = c10::toString(dtype);
    check(problem({2, 100, 4, 16, 2, 32}, {.z = true, .initial = true}, dtype), what);
    Ssd s = problem({2, 100, 4, 16, 2, 32}, {}, dtype);  // as models mix them: dt, D and the bias in float32
    s.in[kDt] = s.in[kDt].to(at::kFloat), s.in[kD] = s.in[kD].to(at::kFloat), s.in[kBias] = s.in[kBias].to(at::kFloat);
    check(s, what + ", dt in float32");
    s = problem({1, 70, 2, 16, 1, 8}, {.initial = true}, dtype);
    s.in[kInitial] = s.in[kInitial].to(dtype), s.in[kA] = s.in[kA].to(dtype);
    check(s, what + ", A and initial state in it");
  }
}

// Everything with everything: what is given, with settings.
TEST(StateSpaceDuality, EveryCombination) {
  for (int bits = 0; bits < 64; ++bits) {
    const auto bit = [&](int n) { return (bits >> n & 1) != 0; };
    Ssd s = problem({2, 67, 2, 5, 1, 6},
                    {.D = bit(0) || bit(1), .each_D = bit(1), .z = bit(2), .bias = bit(3), .initial = bit(4)});
    s.settings.softplus = bit(5);
    if (!bit(5)) s.in[kDt] = s.in[kDt].abs() + 1e-3, s.settings.dt_min = 0.01;
    if (bits % 3 == 0) s.seq_idx = sequences({{0, 20, 3, 47}, {-1, 2, 5, 63, -1, 2}}, 67);
    if (bits % 5 == 0) s.settings.dt_min = 0.05, s.settings.dt_max = 0.8;
    check(s, "combination " + std::to_string(bits), bits % 2 == 0);
  }
}

TEST(StateSpaceDuality, EveryLayout) {
  const Ssd plain = problem({2, 70, 4, 8, 2, 24}, {.z = true, .initial = true});
  const Tensor dy = random_tensor(plain.in[kX].sizes(), at::kFloat);
  const Tensor dfinal = random_tensor(plain.in[kInitial].sizes(), at::kFloat);
  const Tensors want = run(plain, dy, dfinal);
  for (const auto& [layout, lay_out] : layouts()) {
    for (int i = 0; i < kInputs; ++i) {
      Ssd s = plain;
      s.in[i] = lay_out(s.in[i]);
      const Tensors got = run(s, dy, dfinal);
      for (size_t k = 0; k < want.size(); ++k) expect_equal(got[k], want[k], std::string(layout) + " " + kNames[i]);
    }
    const Tensors got = run(plain, lay_out(dy), lay_out(dfinal));
    for (size_t k = 0; k < want.size(); ++k) expect_equal(got[k], want[k], std::string(layout) + " dy");
  }
  // as transformers has them: parts of one projection, one dt for all heads
  Ssd s = plain;
  const Tensor projected = random_tensor({2, 70, 4 * 8 + 2 * 2 * 24}, at::kFloat);
  s.in[kX] = projected.narrow(2, 0, 32).view({2, 70, 4, 8});
  s.in[kB] = projected.narrow(2, 32, 48).view({2, 70, 2, 24});
  s.in[kC] = projected.narrow(2, 80, 48).view({2, 70, 2, 24});
  s.in[kDt] = s.in[kDt].narrow(2, 0, 1).expand({2, 70, 4});
  s.seq_idx = sequences({{0, 30, 1, 40}}, 70).expand({2, 70});
  expect_results(s, run(s, dy, dfinal), dy, dfinal, "views of a projection");
}

// Packed in one row, each as alone, however chunks cut them; and nothing of one in another.
TEST(StateSpaceDuality, PackedSequencesAreAsAlone) {
  const std::vector<int64_t> lengths = {1, 40, 64, 23, 130, 2};
  int64_t total = 0;
  std::vector<int64_t> runs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    runs.insert(runs.end(), {int64_t(i) % 2 == 0 ? 7 : int64_t(i), lengths[i]});
    total += lengths[i];
  }
  Ssd packed = problem({1, total, 3, 8, 1, 16}, {.z = true, .initial = true});
  packed.seq_idx = sequences({runs}, total);
  const Tensor dy = random_tensor(packed.in[kX].sizes(), at::kFloat);
  const Tensor dfinal = random_tensor(packed.in[kInitial].sizes(), at::kFloat);
  const Tensors got = run(packed, dy, dfinal);
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Ssd alone = packed;
    alone.seq_idx = Tensor();
    for (const int k : {kX, kDt, kB, kC, kZ}) alone.in[k] = packed.in[k].narrow(1, start, lengths[i]);
    const bool first = i == 0, last = i + 1 == lengths.size();
    if (!first) alone.in[kInitial] = at::zeros_like(packed.in[kInitial]);
    const Tensors want = run(alone, dy.narrow(1, start, lengths[i]), last ? dfinal : Tensor());
    const std::string what = "sequence " + std::to_string(i);
    expect_close(got[0].narrow(1, start, lengths[i]), want[0], 5e-6, what + " y");
    for (const int k : {kX, kDt, kB, kC, kZ})
      expect_close(got[2 + k].narrow(1, start, lengths[i]), want[2 + k], 5e-6, what + " d" + kNames[k]);
    if (last) expect_close(got[1], want[1], 5e-6, "final_state");
    if (first) expect_close(got[2 + kInitial], want[2 + kInitial], 5e-6, "dinitial_state");
    start += lengths[i];
  }
}

// Padding is passed over: what follows is as if it were not there, whatever stands in it.
TEST(StateSpaceDuality, PaddingIsPassedOver) {
  Ssd s = problem({2, 150, 2, 6, 1, 9}, {.z = true, .initial = true});
  s.seq_idx = sequences({{-1, 3, 0, 80, -2, 10, 0, 50, -1, 7}, {-1, 70, 4, 60, -1, 20}}, 150);
  for (const int k : {kX, kDt, kB, kC, kZ}) {
    Tensor bad = s.in[k].clone();
    bad.index_put_({at::tensor(std::vector<int64_t>{0, 1}), at::tensor(std::vector<int64_t>{1, 140})},
                   at::full({}, std::numeric_limits<double>::quiet_NaN()));
    s.in[k] = bad;
  }
  const Tensor dy = random_tensor(s.in[kX].sizes(), at::kFloat);
  const Tensor dfinal = random_tensor(s.in[kInitial].sizes(), at::kFloat);
  const Tensors got = run(s, dy, dfinal);
  for (const Tensor& t : got) EXPECT_TRUE(t.isfinite().all().item<bool>());
  for (const int k : {0, 2 + int(kX), 2 + int(kDt), 2 + int(kB), 2 + int(kC), 2 + int(kZ)}) {
    EXPECT_EQ(got[k][0].narrow(0, 83, 10).abs().max().item<float>(), 0.f) << k;
    EXPECT_EQ(got[k][1].narrow(0, 0, 70).abs().max().item<float>(), 0.f) << k;
  }
  Ssd clean = s;
  for (const int k : {kX, kDt, kB, kC, kZ})
    clean.in[k] = at::where(s.in[k].isfinite(), s.in[k], at::zeros_like(s.in[k]));
  expect_results(clean, got, dy, dfinal, "padding");
}

// A call's final state as the next one's initial state gives what one call over both gives.
TEST(StateSpaceDuality, ContinuesFromAState) {
  const Ssd whole = problem({2, 190, 2, 16, 1, 32}, {.initial = true});
  const Tensors want = forward(whole);
  for (const int64_t cut : {1, 63, 64, 100}) {
    Ssd part = whole;
    const auto take = [&](int64_t from, int64_t count) {
      for (const int k : {kX, kDt, kB, kC}) part.in[k] = whole.in[k].narrow(1, from, count);
      return forward(part);
    };
    const Tensors first = take(0, cut);
    part.in[kInitial] = first[1];
    const Tensors second = take(cut, 190 - cut);
    expect_close(at::cat({first[0], second[0]}, 1), want[0], 5e-6, "y");
    expect_close(second[1], want[1], 5e-6, "final_state");
  }
}

// Decays from none to all, side by side in a chunk: T of neighbours needs S exactly where S is large.
TEST(StateSpaceDuality, DecaysOfAnySize) {
  for (const double rate : {-1e-6, -1e-3, -1.0, -30.0, -1e4, 0.05}) {
    Ssd s = problem({1, 150, 2, 8, 1, 8}, {.bias = false, .initial = true});
    s.in[kA] = at::full({2}, rate, at::kFloat).to(device());
    check(s, "A " + std::to_string(rate));
  }
  Ssd s = problem({1, 150, 2, 8, 1, 8}, {.bias = false, .initial = true});
  s.settings.softplus = false;
  const Tensor large = (at::rand({1, 150, 2}, generator(), at::kFloat) < 0.3).to(device());
  s.in[kDt] = at::where(large, at::full({}, 900.f), s.in[kDt].abs() * 1e-3);
  s.in[kA] = at::full({2}, -1.f, at::kFloat).to(device());
  s.in[kX] = at::where(large.unsqueeze(-1), at::full({}, 1e-3f), s.in[kX]);  // so that small terms show in the norm
  check(s, "large and small steps");
}

// softplus from where it is e^x to where it is x, to float32's last digits.
TEST(StateSpaceDuality, SoftplusIsExactEverywhere) {
  Ssd s = problem({1, 128, 1, 1, 1, 1}, {.D = false, .bias = false});
  s.in[kDt] = ((at::arange(128, at::kFloat) - 96).view({1, 128, 1}) * 0.3).to(device());  // -28.8 to 9.3
  s.in[kDt].select(1, 127).fill_(20.5), s.in[kDt].select(1, 126).fill_(19.5);
  s.in[kA] = at::full({1}, -1e30f).to(device()), s.in[kB] = at::ones_like(s.in[kB]), s.in[kC] = at::ones_like(s.in[kC]);
  s.in[kX] = at::ones_like(s.in[kX]);  // nothing stays from step to step: y is Δ
  const Tensor y = forward(s)[0].flatten().to(at::kDouble),
               want = at::softplus(s.in[kDt].flatten().to(at::kDouble), 1, 20);
  EXPECT_LE(((y - want) / want).abs().max().item<double>(), 4e-7);
}

// The same numbers with nothing readable behind the last one.
Tensor at_the_end_of_a_page(const Tensor& t) {
  constexpr int64_t kPage = 4096;
  const int64_t bytes = t.numel() * t.element_size(), whole = (bytes + kPage - 1) / kPage * kPage;
  void* memory = mmap(nullptr, whole + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  EXPECT_EQ(mprotect(static_cast<char*>(memory) + whole, kPage, PROT_NONE), 0);
  const auto give_back = [memory, whole](void*) { munmap(memory, whole + kPage); };
  return at::from_blob(static_cast<char*>(memory) + whole - bytes, t.sizes(), give_back, t.options()).copy_(t);
}

TEST(StateSpaceDuality, ReadsNothingBehindItsInputs) {
  if (kernels::on_cuda()) GTEST_SKIP() << "compute-sanitizer sees that on a GPU";
  for (const at::ScalarType dtype : kDtypes) {
    Ssd s = problem({1, 66, 2, 3, 1, 5}, {.each_D = true, .z = true, .initial = true}, dtype);
    for (Tensor& t : s.in) t = at_the_end_of_a_page(t);
    const Tensor dy = at_the_end_of_a_page(random_tensor(s.in[kX].sizes(), dtype));
    const Tensor dfinal = at_the_end_of_a_page(random_tensor(s.in[kInitial].sizes(), at::kFloat));
    const Tensors out = forward(s, "ssd_fwd");
    backward(s, dy, dfinal, at_the_end_of_a_page(out[2]));
  }
}

TEST(StateSpaceDuality, ChunkSizeIsAHint) {
  Ssd s = problem({1, 100, 2, 8, 1, 8});
  const Tensors want = forward(s);
  for (const int64_t size : {1, 16, 128, 100000}) {
    s.settings.chunk_size = size;
    const Tensors got = forward(s);
    for (size_t k = 0; k < want.size(); ++k) expect_close(got[k], want[k], 5e-6, "chunk_size");
  }
}

TEST(StateSpaceDuality, SameBitsWithAnyThreadsAndFromAllThreeOps) {
  Ssd s = problem({3, 200, 9, 16, 1, 16}, {.z = true, .initial = true}, at::kBFloat16);
  const Tensor dy = random_tensor(s.in[kX].sizes(), at::kBFloat16);
  const Tensor dfinal = random_tensor(s.in[kInitial].sizes(), at::kFloat);
  expect_same_with_any_threads([&] { return run(s, dy, dfinal); }, "ssd");
  const Tensors plain = forward(s), saving = forward(s, "ssd_fwd");
  for (size_t k = 0; k < 2; ++k) expect_equal(plain[k], saving[k], "ssd and ssd_fwd");
}

TEST(StateSpaceDuality, SameBitsEveryRun) {
  for (const at::ScalarType dtype : kDtypes) {
    const Ssd s = problem({2, 300, 20, 64, 2, 128}, {.z = true, .initial = true}, dtype);
    const Tensor dy = random_tensor(s.in[kX].sizes(), dtype);
    const Tensor dfinal = random_tensor(s.in[kInitial].sizes(), at::kFloat);
    const Tensors want = run(s, dy, dfinal);
    for (int i = 0; i < 3; ++i) {
      const Tensors got = run(s, dy, dfinal);
      for (size_t k = 0; k < want.size(); ++k) expect_equal(got[k], want[k], c10::toString(dtype));
    }
  }
}

// So many heads that a GPU walks over them (cuda/sm80_ssd_walk.cu), and lengths that are no whole chunks: some of them
// against the recurrence.
TEST(StateSpaceDuality, ManyHeads) {
  for (const int64_t state : {64, 128}) {
    const Ssd all = problem({2, 150, 160, 64, 2, state}, {.initial = true}, at::kBFloat16);
    const Tensors got = forward(all);
    for (const int64_t head : {0, 90}) {
      Ssd few = all;
      for (const int k : {kX, kDt}) few.in[k] = all.in[k].narrow(2, head, 3);
      for (const int k : {kB, kC}) few.in[k] = all.in[k].narrow(2, head / 80, 1);
      for (const int k : {kA, kD, kBias}) few.in[k] = all.in[k].narrow(0, head, 3);
      few.in[kInitial] = all.in[kInitial].narrow(1, head, 3);
      const std::string what = "state " + std::to_string(state) + ", head " + std::to_string(head);
      const Tensors want = oracle(few, few.in[kX], Tensor()).results;
      expect_close(got[0].narrow(2, head, 3), want[0], allowed(at::kBFloat16, at::kBFloat16), what + " y");
      expect_close(got[1].narrow(1, head, 3), want[1], allowed(at::kFloat, at::kBFloat16), what + " final_state");
    }
  }
}

TEST(StateSpaceDuality, ManySteps) { check(problem({1, 1500, 1, 4, 1, 4}, {.z = true}), "1500 steps"); }

TEST(StateSpaceDuality, VeryManySteps) {
  const int64_t length = 65537;
  const Ssd s = problem({1, length, 1, 1, 1, 2}, {.D = false, .bias = false, .initial = true});
  const Tensors got = forward(s);
  Tensors wide;
  for (const int k : {kX, kDt, kA, kB, kC, kInitial}) wide.push_back(wide_on_cpu(s.in[k].flatten()));
  const auto number = [&](int k, int64_t i) { return wide[k].const_data_ptr<double>()[i]; };
  double h[2] = {number(5, 0), number(5, 1)};
  Tensor want = at::zeros({length}, at::kDouble);
  for (int64_t t = 0; t < length; ++t) {
    const double dt = number(1, t), delta = dt > 20 ? dt : std::log1p(std::exp(dt));
    double y = 0;
    for (int n = 0; n < 2; ++n) {
      h[n] = std::exp(delta * number(2, 0)) * h[n] + delta * number(0, t) * number(3, 2 * t + n);
      y += h[n] * number(4, 2 * t + n);
    }
    want.mutable_data_ptr<double>()[t] = y;
  }
  expect_close(got[0].flatten(), want.to(device()), 5e-6, "y");
  expect_close(got[1].flatten(), at::tensor({h[0], h[1]}, at::kDouble).to(device()), 5e-6, "final_state");
}

TEST(StateSpaceDuality, Refuses) {
  const Ssd good = problem({2, 5, 4, 3, 2, 6}, {.z = true, .initial = true});
  const auto refuses = [&](int input, const Tensor& t, const std::vector<std::string>& words) {
    Ssd bad = good;
    bad.in[input] = t;
    expect_refusal([&] { forward(bad); }, words);
  };
  refuses(kX, good.in[kX].to(at::kComplexFloat), {"ssd", "real"});
  refuses(kX, good.in[kX].select(1, 0), {"expected x [batch, length, heads, dim]"});
  refuses(kDt, good.in[kDt].narrow(2, 0, 3), {"expected dt", "[2, 5, 4]", "[2, 5, 3]"});
  refuses(kA, good.in[kA].narrow(0, 0, 3), {"expected A", "[4]"});
  refuses(kB, good.in[kB].to(at::kHalf), {"B in x's dtype"});
  refuses(kC, good.in[kC].narrow(3, 0, 5), {"expected C"});
  refuses(kD, zeros({4, 2}), {"expected D", "[4, 3]"});
  refuses(kZ, good.in[kZ].narrow(1, 0, 4), {"z in the shape of x"});
  refuses(kInitial, good.in[kInitial].transpose(2, 3), {"initial_state", "[2, 4, 3, 6]"});
  Ssd bad = good;
  bad.in[kB] = zeros({2, 5, 3, 6}), bad.in[kC] = bad.in[kB];
  expect_refusal([&] { forward(bad); }, {"multiple of groups"});
  bad = good, bad.seq_idx = zeros({2, 5}, at::kLong);
  expect_refusal([&] { forward(bad); }, {"seq_idx in int32"});
  if (kernels::on_cuda()) {
    const Ssd many = problem({1, 5, 2, 3, 1, 257});
    expect_refusal([&] { forward(many); }, {"at most 256 numbers on a GPU", "257"});
  }
  bad = good, bad.settings.chunk_size = 0;
  expect_refusal([&] { forward(bad); }, {"chunk_size from 1"});
  bad = good, bad.settings.dt_min = 2, bad.settings.dt_max = 1;
  expect_refusal([&] { forward(bad); }, {"dt_min <= dt_max"});
  expect_refusal([&] { backward(good, good.in[kX], {}, zeros({1})); }, {"states", "ssd_fwd"});
}

}  // namespace
