// Files of torch.save: what is written is read again and by torch itself, and hostile ones are refused by name.
#include "hotswap/training/checkpoint/torch_file.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <random>

#include "hotswap/base/test_data.h"
#include "hotswap/training/checkpoint/zip_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

class TorchFileTest : public testing::Test {
 protected:
  fs::path file() const { return folder_ / "a.pt"; }
  // A file around these bytes of a pickle.
  std::string failure(const std::string& pickle) const {
    ZipWriter archive(file());
    archive.add("archive/data.pkl", pickle);
    archive.add("archive/data/0", std::string(16, '\0'));
    archive.add("archive/version", "3\n");
    archive.commit();
    return message_of([&] { TorchFile read(file()); });
  }
  static void write(const fs::path& to, const std::vector<Tensor>& tensors) {
    TorchFileWriter writer;
    PickleWriter& out = writer.pickle();
    out.begin_dict();
    out.text("tensors");
    out.begin_list();
    for (const Tensor& tensor : tensors) out.tensor(tensor);
    out.end_list();
    out.text("scalars");
    out.begin_tuple();
    for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, -(int64_t{1} << 40), INT64_MIN}) {
      out.integer(value);
    }
    out.number(0.1);
    out.boolean(true);
    out.none();
    out.end_tuple();
    out.end_dict();
    writer.save(to);
  }
  static std::vector<Tensor> tensors() {
    return {at::randn({3, 5}),     at::randn({4}).to(at::kBFloat16), at::ones({}), at::zeros({0, 7}),
            at::randn({4, 6}).t(), at::ones({3}, at::kByte)};
  }
  TempFolder folder_;
};

TEST_F(TorchFileTest, IsReadAgain) {
  const auto saved = tensors();
  write(file(), saved);
  const TorchFile read(file());
  const auto& list = read.root().at("tensors", "a").list("a");
  ASSERT_EQ(list.size(), saved.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    EXPECT_TRUE(at::equal(list[i]->tensor("a"), saved[i])) << i;
    EXPECT_EQ(list[i]->tensor("a").scalar_type(), saved[i].scalar_type());
  }
  const auto& scalars = read.root().at("scalars", "a").list("a");
  EXPECT_EQ(scalars[2]->integer("a"), int64_t{1} << 40);
  EXPECT_EQ(scalars[3]->integer("a"), -(int64_t{1} << 40));
  EXPECT_EQ(scalars[4]->integer("a"), INT64_MIN);
  EXPECT_EQ(scalars[5]->number("a"), 0.1);
  EXPECT_TRUE(scalars[6]->boolean("a"));
  EXPECT_TRUE(scalars[7]->is_none());
  expect_has(message_of([&] { read.root().at("weights", "a.pt"); }), {"\"weights\"", "tensors, scalars"});
  expect_has(message_of([&] { read.root().at("scalars", "a.pt").text("a.pt: scalars"); }), {"a text", "a.pt: scalars"});
}

constexpr const char* kTorchScript = R"(
import sys, zipfile, torch
ours, theirs = sys.argv[1:]
read = torch.load(ours, weights_only=True)
assert read["scalars"] == (0, -1, 1 << 40, -(1 << 40), -(1 << 63), 0.1, True, None), read["scalars"]
assert [t.dtype for t in read["tensors"]] == [torch.float32, torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.uint8]
assert [list(t.shape) for t in read["tensors"]] == [[3, 5], [4], [], [0, 7], [6, 4], [3]]
assert zipfile.ZipFile(ours).testzip() is None  # every checksum
torch.save({"tensors": read["tensors"] + [torch.nn.Parameter(read["tensors"][0])], "size": read["tensors"][0].shape}, theirs)
)";

class TorchFileAndTorch : public test_support::WithTransformers<TorchFileTest> {};

TEST_F(TorchFileAndTorch, ReadEachOther) {
  const auto saved = tensors();
  write(file(), saved);
  const auto run = test_support::run_script(folder_.write("script.py", kTorchScript),
                                            cat(file().string(), " ", (folder_ / "b.pt").string()));
  ASSERT_EQ(run.status, 0) << run.output;
  const TorchFile read(folder_ / "b.pt");
  const auto& list = read.root().at("tensors", "b").list("b");
  ASSERT_EQ(list.size(), saved.size() + 1);
  for (size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(at::equal(list[i]->tensor("b"), saved[i % saved.size()])) << i;
  EXPECT_EQ(read.root().at("size", "b").list("b").size(), 2u);
}

// What Python's pickle would do with these: run a command, make an object, import a name.
TEST_F(TorchFileTest, NothingIsExecuted) {
  expect_has(failure("\x80\x02"
                     "cposix\nsystem\n(X\x02\0\0\0idtR."),
             {"posix.system", "a.pt"});
  expect_has(failure("\x80\x02"
                     "cbuiltins\neval\n."),
             {"builtins.eval"});
  expect_has(failure("\x80\x02"
                     "(X\x02\0\0\0idios\nsystem\n."),
             {"its end"});
  expect_has(failure("(ios\nsystem\n."), {"the operation INST"});
  expect_has(failure("\x80\x02"
                     "ccollections\nOrderedDict\n)\x81."),
             {"the operation NEWOBJ"});
  expect_has(failure("\x8c\x02os\x8c\x06system\x93."), {"the operation STACK_GLOBAL"});
  expect_has(failure("\x82\x01."), {"the operation EXT1"});
  expect_has(failure("(oX."), {"the operation OBJ"});
  expect_has(failure("\xff."), {"the code 255"});
  expect_has(failure("\x80\x05N."), {"protocol"});
  expect_has(failure("."), {"a value on the stack"});
  expect_has(failure("(.t"), {"a value on the stack"});
  expect_has(failure("t."), {"a mark"});
  expect_has(failure("h\x07."), {"number 7"});
  expect_has(failure("}(Nu."), {"a key without one"});
  expect_has(failure("NN)R."), {"a name"});
  expect_has(failure("\x8a\x09"
                     "123456789."),
             {"64 bits"});
  expect_has(failure("X\xff\xff\xff\xffhello."), {"its end"});
}

TEST_F(TorchFileTest, ATensorStaysWithinItsData) {
  const auto tensor = [](int64_t storage, int64_t offset, int64_t size, int64_t stride, const char* key = "0") {
    PickleWriter out;
    std::string bytes = out.finish();
    bytes.pop_back();
    const auto number = [](int64_t value) {
      PickleWriter one;
      one.integer(value);
      const std::string bytes = one.finish();
      return bytes.substr(2, bytes.size() - 3);  // without protocol and end
    };
    const auto text = [](const std::string& value) { return cat("U", static_cast<char>(value.size()), value); };
    return bytes + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" + text(key) +
           text("cpu") + number(storage) + "tQ" + number(offset) + "(" + number(size) + "t(" + number(stride) +
           "t\x89"
           "NtR.";
  };
  EXPECT_EQ(failure(tensor(4, 0, 4, 1)), "no error");
  EXPECT_EQ(failure(tensor(4, 1, 2, 2)), "no error");
  expect_has(failure(tensor(5, 0, 4, 1)), {"5 elements of Float", "4 of Float"});
  expect_has(failure(tensor(-1, 0, 0, 1)), {"-1"});
  expect_has(failure(tensor(4, 1, 4, 1)), {"within its storage"});
  expect_has(failure(tensor(4, 0, 3, 2)), {"within its storage"});
  expect_has(failure(tensor(4, -1, 1, 1)), {"within its storage"});
  expect_has(failure(tensor(4, 0, -4, 1)), {"within its storage"});
  expect_has(failure(tensor(4, 0, 4, -1)), {"within its storage"});
  expect_has(failure(tensor(4, 0, INT64_MAX, INT64_MAX)), {"within its storage"});
  expect_has(failure(tensor(4, 0, 4, 1, "9")), {"no entry archive/data/9"});
}

// Cut off anywhere, and with any byte changed: an Error or a value, and no read beyond the file.
TEST_F(TorchFileTest, DamagedFilesAreErrors) {
  write(file(), tensors());
  const std::string bytes = read_file(file());
  for (size_t size = 0; size < bytes.size(); size += 13) {
    replace_file(folder_ / "cut.pt", bytes.substr(0, size));
    EXPECT_THROW(TorchFile read(folder_ / "cut.pt"), Error) << size;
  }
  std::mt19937 random(7);
  int64_t refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    replace_file(folder_ / "damaged.pt", damaged);
    try {
      TorchFile read(folder_ / "damaged.pt");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace hotswap
