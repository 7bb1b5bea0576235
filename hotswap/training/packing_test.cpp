// Examples that share a row, and files of token ids.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"
#include "hotswap/models/auto.h"
#include "hotswap/training/data/batches_ahead.h"
#include "hotswap/training/data/bins.h"
#include "hotswap/training/data/token_file.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;
using Bins = std::vector<std::vector<int64_t>>;

// The rule in its plainest form: every bin is looked at for every example.
Bins plain_rule(const std::vector<int64_t>& lengths, int64_t capacity) {
  struct Bin {
    int64_t space, since;
  };
  Bins bins;
  for (size_t first = 0; first < lengths.size(); first += 1000) {
    const size_t last = std::min(lengths.size(), first + 1000), bins_before = bins.size();
    std::vector<int64_t> order(last - first);
    std::iota(order.begin(), order.end(), static_cast<int64_t>(first));
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return lengths[size_t(a)] > lengths[size_t(b)]; });
    std::vector<Bin> state;
    int64_t time = 0;
    for (const int64_t example : order) {
      const int64_t length = lengths[size_t(example)];
      size_t best = state.size();
      for (size_t i = 0; i < state.size(); ++i) {
        if (state[i].space < length) continue;
        const bool better = best == state.size() || state[i].space < state[best].space ||
                            (state[i].space == state[best].space && state[i].since < state[best].since);
        if (better) best = i;
      }
      if (best == state.size()) {
        state.push_back({capacity, 0});
        bins.emplace_back();
      }
      state[best] = {state[best].space - length, ++time};
      bins[bins_before + best].push_back(example);
    }
  }
  return bins;
}

TEST(Packing, IsBestFitDecreasing) {
  // 7 | 6 | 5 and 2 and 1 | 4 and 4: the 3 fits the first bin with the least space that takes it.
  EXPECT_EQ(best_fit_decreasing({4, 7, 2, 6, 5, 1, 4, 3}, 8), (Bins{{1, 5}, {3, 2}, {4, 7}, {0, 6}}));
  EXPECT_EQ(best_fit_decreasing({}, 8), Bins{});
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t capacity = 4 + static_cast<int64_t>(random() % 60);
    std::vector<int64_t> lengths(random() % (trial < 190 ? 90 : 2600));
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(capacity));
    ASSERT_EQ(best_fit_decreasing(lengths, capacity), plain_rule(lengths, capacity)) << trial;
  }
  expect_has(message_of([&] { best_fit_decreasing({3, 9}, 8); }), {"1 to 8", "9"});
  expect_has(message_of([&] { packing_from("bdf"); }), {"did you mean bfd?"});
}

std::vector<Example> examples_of(const std::vector<int64_t>& lengths) {
  std::mt19937 random(9);
  std::vector<Example> examples;
  for (const int64_t length : lengths) {
    Example example;
    for (int64_t i = 0; i < length; ++i) {
      example.ids.push_back(static_cast<int64_t>(random() % 16));
      example.labels.push_back(i < length / 3 ? -100 : example.ids.back());
    }
    examples.push_back(example);
  }
  return examples;
}

TEST(Packing, ARowHasItsDocumentsApart) {
  const auto dataset = packed_examples({{{5, 6, 7}, {5, 6, 7}}, {{8, 9}, {-100, 9}}, {{3}, {3}}}, Packing::kBestFit, 4);
  EXPECT_EQ(dataset->size(), 2);  // 3 and 1, 2
  const TrainingBatch batch = dataset->batch({1, 0});
  EXPECT_TRUE(at::equal(batch.input_ids, at::tensor({8, 9, 5, 6, 7, 3}, at::kLong).view({1, 6})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({-100, 9, -100, 6, 7, -100}, at::kLong).view({1, 6})));
  EXPECT_TRUE(at::equal(batch.position_ids, at::tensor({0, 1, 0, 1, 2, 0}, at::kLong).view({1, 6})));
  EXPECT_TRUE(at::equal(batch.cu_seqlens, at::tensor({0, 2, 5, 6}, at::kInt)));
  EXPECT_EQ(batch.max_seqlen, 3);
  EXPECT_FALSE(batch.attention_mask.defined());
  EXPECT_EQ(label_count(batch), 3);
  EXPECT_THROW(dataset->batch({2}), Error);
}

// The same updates, whether examples are padded or packed: attention sees one document.
TEST(Packing, HasThePaddedRowsLossAndGradients) {
  const auto examples = examples_of({9, 4, 12, 3, 7, 5});
  const auto padded = std::make_shared<ExampleDataset>(examples, 0);
  const auto packed = packed_examples(examples, Packing::kBestFit, 16);
  ASSERT_LT(packed->size(), padded->size());
  const auto steps = [](std::shared_ptr<const Dataset> dataset) {
    TrainingArguments arguments{.per_device_train_batch_size = 6, .max_steps = 4, .learning_rate = 0.02};
    return Trainer(test_support::tiny_llama({.layers = 2, .positions = 64, .initializer_range = 0.3}), arguments,
                   std::move(dataset))
        .train()
        .steps;
  };
  const auto one = steps(padded), other = steps(packed);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(other[i].loss, one[i].loss, 2e-5 * one[i].loss) << i;
    EXPECT_NEAR(other[i].grad_norm, one[i].grad_norm, 1e-4 * one[i].grad_norm) << i;
    EXPECT_LT(other[i].num_input_tokens, one[i].num_input_tokens);
  }
  // In one stream they are not apart.
  const auto wrapped = packed_examples(examples, Packing::kWrapped, 16);
  EXPECT_EQ(wrapped->size(), 3);
  EXPECT_GT(std::abs(steps(wrapped)[0].loss - one[0].loss), 1e-3);
}

TEST(Packing, LongExamplesAreSplitOrWrapped) {
  const auto examples = examples_of({11, 3});
  const auto split = packed_examples(examples, Packing::kBestFitSplit, 4);
  EXPECT_EQ(split->size(), 4);  // 4, 4, 3 and 3
  const auto wrapped = packed_examples(examples, Packing::kWrapped, 4);
  EXPECT_EQ(wrapped->size(), 4);  // 14 tokens
  EXPECT_FALSE(wrapped->batch({0}).cu_seqlens.defined());
  EXPECT_NE(split->fingerprint(), packed_examples(examples, Packing::kBestFitSplit, 5)->fingerprint());
  EXPECT_NE(split->fingerprint(), packed_examples(examples_of({11, 4}), Packing::kBestFitSplit, 4)->fingerprint());
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class TokenFiles : public testing::Test {
 protected:
  // Sequences of Megatron's, all tokens one after the other.
  static std::string index(uint8_t type, int width, const std::vector<int32_t>& lengths) {
    std::vector<int64_t> offsets{0}, documents;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (i > 0) offsets.push_back(offsets.back() + lengths[i - 1] * width);
      documents.push_back(static_cast<int64_t>(i));
    }
    documents.push_back(static_cast<int64_t>(lengths.size()));
    return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + std::string(1, static_cast<char>(type)) +
           bytes_of<uint64_t>({lengths.size(), documents.size()}) + bytes_of(lengths) + bytes_of(offsets) +
           bytes_of(documents);
  }
  static std::string llmc(int32_t magic, int32_t count) {
    std::vector<int32_t> header(256);
    header[0] = magic;
    header[1] = 1;
    header[2] = count;
    return bytes_of(header);
  }
  fs::path put(const std::string& bytes, const std::string& idx = {}) const {
    fs::remove(folder_ / "a.idx");
    if (!idx.empty()) folder_.write("a.idx", idx);
    return folder_.write("a.bin", bytes);
  }
  static std::vector<int64_t> ids(const TokenFile& file) {
    std::vector<int64_t> ids(static_cast<size_t>(file.size()));
    file.copy(0, file.size(), ids.data());
    return ids;
  }
  std::string failure(const std::string& bytes, const std::string& idx = {}) const {
    const fs::path file = put(bytes, idx);
    return message_of([&] { TokenFile read(file); });
  }
  TempFolder folder_;
};

TEST_F(TokenFiles, OfBothKindsAndEveryType) {
  const std::vector<int64_t> expected{1, 2, 3, 200, 5};
  const std::vector<int32_t> lengths{2, 3};
  EXPECT_EQ(ids(TokenFile(put(bytes_of<uint8_t>({1, 2, 3, 200, 5}), index(1, 1, lengths)))), expected);
  EXPECT_EQ(ids(TokenFile(put(bytes_of<int32_t>({1, 2, 3, 200, 5}), index(4, 4, lengths)))), expected);
  EXPECT_EQ(ids(TokenFile(put(bytes_of<int64_t>({1, 2, 3, 200, 5}), index(5, 8, lengths)))), expected);
  const TokenFile sixteen(put(bytes_of<uint16_t>({1, 2, 3, 60000, 5}), index(8, 2, lengths)));
  EXPECT_EQ(ids(sixteen)[3], 60000);
  EXPECT_EQ(sixteen.documents(), 2);
  EXPECT_EQ(ids(TokenFile(put(llmc(20240520, 5) + bytes_of<uint16_t>({1, 2, 3, 200, 5})))), expected);
  EXPECT_EQ(ids(TokenFile(put(llmc(20240801, 2) + bytes_of<uint32_t>({128000, 5})))),
            (std::vector<int64_t>{128000, 5}));
}

TEST_F(TokenFiles, BadOnesAreNamed) {
  const std::string four = bytes_of<uint16_t>({1, 2, 3, 4});
  expect_has(failure(four), {"a.bin", "llm.c", ".idx", "8 bytes"});
  expect_has(failure(llmc(7, 4) + four), {"20240520", "got 7"});
  expect_has(failure(llmc(20240520, 5) + four), {"5 tokens", "got 4"});
  expect_has(failure(llmc(20240520, -1) + four), {"-1"});
  const std::string good = index(8, 2, {2, 2});
  EXPECT_EQ(failure(four, good), "no error");
  expect_has(failure(four.substr(0, 6), good), {"4 tokens of 2 bytes", "6 bytes"});
  expect_has(failure(four, "MMIDIDX"), {"a.idx", "MMIDIDX"});
  expect_has(failure(four, good.substr(0, good.size() - 1)), {"a.idx", "2 sequences"});
  expect_has(failure(four, index(6, 8, {2, 2})), {"a type of tokens", "got 6"});
  expect_has(failure(four, index(8, 4, {2, 2})), {"sequence 1 at byte 4", "at 8"});
  expect_has(failure(four, index(8, 2, {-1, 2})), {"sequence 0"});
  std::string huge = good;
  huge.replace(18, 8, bytes_of<uint64_t>({~uint64_t{0} / 4}));
  expect_has(failure(four, huge), {"sequences"});
  huge = good;
  huge[9] = 2;
  expect_has(failure(four, huge), {"version 1", "got 2"});
  std::mt19937 random(3);
  const fs::path file = put(four, good);
  for (int i = 0; i < 2000; ++i) {  // no read beyond a file
    std::string damaged = good;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    replace_file(folder_ / "a.idx", damaged);
    try {
      ids(TokenFile(file));
    } catch (const Error&) {
    }
  }
}

TEST_F(TokenFiles, AreADataset) {
  const auto open = [&] {
    return std::make_shared<TokenFile>(put(llmc(20240520, 7) + bytes_of<uint16_t>({1, 2, 3, 4, 5, 6, 15})));
  };
  const TokenFileDataset dataset(open(), 3, 16);
  EXPECT_EQ(dataset.size(), 2) << "the rest fills none";
  EXPECT_TRUE(at::equal(dataset.batch({1, 0}).input_ids, at::tensor({4, 5, 6, 1, 2, 3}, at::kLong).view({2, 3})));
  expect_has(message_of([&] { dataset.batch({2}); }), {"7 tokens"});
  const TokenFileDataset narrow(open(), 2, 5);
  EXPECT_EQ(message_of([&] { narrow.batch({1}); }), "no error");
  expect_has(message_of([&] { narrow.batch({2}); }), {"below 5", "5 as token 4", "a.bin"});
  EXPECT_THROW(TokenFileDataset(open(), 8), Error);
  EXPECT_EQ(dataset.fingerprint(), dataset.fingerprint());
  EXPECT_NE(dataset.fingerprint(), narrow.fingerprint());
}

struct Broken final : Dataset {
  int64_t size() const override { return 4; }
  TrainingBatch batch(const std::vector<int64_t>& examples) const override {
    if (examples[0] == 2)
      throw Error({.kind = ErrorKind::kCorrupt, .wanted = "example 2", .got = "none", .next = "look"});
    return {at::tensor(examples, at::kLong), {}};
  }
};

TEST(BatchesAhead, ComeInOrderAndThrowWhereTheyAreRead) {
  const Broken dataset;
  BatchesAhead ahead(dataset, {{{{0}, {1}}}, {{{2}}}, {{{3}}}});
  EXPECT_EQ(ahead.left(), 3u);
  EXPECT_EQ(ahead.next().batches[1].input_ids.item<int64_t>(), 1);
  EXPECT_THROW(ahead.next(), Error);
}

}  // namespace
}  // namespace hotswap
