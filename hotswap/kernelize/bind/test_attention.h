// For tests: a package of the contract attention/1, made of testdata/attention_library.cpp.
#pragma once

#include "hotswap/base/file.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/testing.h"

namespace hotswap::test_support {

class AttentionPackage {
 public:
  using Ordered = nlohmann::ordered_json;
  // edit: of the layer's capabilities, which claim everything.
  explicit AttentionPackage(const std::function<void(Ordered&)>& edit = nullptr) {
    const std::string built = "_attn_cpu_0000000";  // as long as the copy's own
    std::string bytes = read_file(test_library(HOTSWAP_TEST_ATTENTION));
    for (size_t at = bytes.find(built); at != bytes.npos; at = bytes.find(built, at)) {
      bytes.replace(at, built.size(), copy_.id());
    }
    write_file(copy_.library(), bytes);
    copy_.edit_metadata([](Ordered& metadata) { metadata["name"] = "attn"; });
    copy_.edit_layers([&](Ordered& manifest) {
      Ordered ops;
      for (const char* role : {"forward", "forward_train", "backward", "varlen_forward", "varlen_forward_train",
                               "varlen_backward", "decode"}) {
        ops[role] = role;
      }
      Ordered capabilities = {{"backward", true},
                              {"deterministic", true},
                              {"dtypes", {"float32", "bfloat16"}},
                              {"features", {"causal", "gqa", "window", "chunk", "softcap", "sinks", "alibi"}},
                              {"numbers", {{"head_dims", {"2-256"}}}}};
      if (edit) edit(capabilities);
      manifest = {
          {"schema", 2},
          {"layers", {{"attention", {{"contract", "attention/1"}, {"ops", ops}, {"capabilities", capabilities}}}}}};
    });
  }
  std::filesystem::path root() const { return copy_.root(); }
  const std::filesystem::path& variant() const { return copy_.variant(); }
  PackageCopy& copy() { return copy_; }
  KernelRef ref() const { return {cat(root().string(), ":attention")}; }
  int64_t calls(const char* op) const { return op_calls(copy_.id(), op); }

 private:
  PackageCopy copy_{"norm"};
};

}  // namespace hotswap::test_support
