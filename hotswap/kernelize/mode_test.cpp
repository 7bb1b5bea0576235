#include "hotswap/kernelize/mode.h"

#include "hotswap/kernelize/test_modes.h"
#include "hotswap/kernelize/testing.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

using test_support::C;
using test_support::F;
using test_support::I;
using test_support::T;

TEST(Mode, UnionsThatMakeNoSenseAreRefused) {
  expect_has(message_of([] { I | T; }), {"mutually exclusive", "INFERENCE", "TRAINING"});
  expect_has(message_of([] { (T | C) | I; }), {"mutually exclusive", "TRAINING|TORCH_COMPILE"});
  for (const Mode other : {I, T, C, I | C}) {
    expect_has(message_of([&] { F | other; }), {"FALLBACK alone", "cannot be combined"});
    expect_has(message_of([&] { other | F; }), {"cannot be combined"});
  }
  EXPECT_EQ(F | F, F);
  EXPECT_EQ(I | I, I);
  EXPECT_EQ(C | T, T | C);
  EXPECT_NE(I, I | C);
}

TEST(Mode, IsServedInTheDocumentedOrder) {
  EXPECT_EQ(modes_that_serve(I), (std::vector<Mode>{I, I | C, T, T | C, F}));
  EXPECT_EQ(modes_that_serve(T), (std::vector<Mode>{T, T | C, F}));
  EXPECT_EQ(modes_that_serve(I | C), (std::vector<Mode>{I | C, T | C, F}));
  EXPECT_EQ(modes_that_serve(T | C), (std::vector<Mode>{T | C, F}));
}

TEST(Mode, OnlyInferenceOrTrainingCanBeAskedFor) {
  expect_has(message_of([] { modes_that_serve(F); }), {"can only be used to register kernels"});
  expect_has(message_of([] { modes_that_serve(C); }), {"INFERENCE or TRAINING", "got TORCH_COMPILE"});
}

TEST(Mode, TextGoesBothWays) {
  EXPECT_EQ((T | C).str(), "TRAINING|TORCH_COMPILE");
  for (const Mode mode : {I, T, F, C, I | C, T | C}) EXPECT_EQ(Mode::parse(mode.str()), mode);
  EXPECT_EQ(Mode::parse("training, compile"), T | C);
  expect_has(message_of([] { Mode::parse("fast"); }), {"'FAST'", "INFERENCE"});
  expect_has(message_of([] { Mode::parse(""); }), {"INFERENCE"});
  expect_has(message_of([] { Mode::parse("training|"); }), {"''"});
  expect_has(message_of([] { Mode::parse("training|inference"); }), {"mutually exclusive"});
}

}  // namespace
}  // namespace hotswap
