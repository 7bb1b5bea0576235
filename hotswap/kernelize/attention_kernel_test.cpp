#include "hotswap/kernelize/attention_kernel.h"

#include <dlfcn.h>

#include "hotswap/kernelize/test_hub.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::ForeignCopy;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::ScopedEnv;
using test_support::TempFolder;

class AttentionKernel : public test_support::ServedKernels {
 protected:
  static std::string refused(const std::string& name, const AttentionLookup& lookup = {}) {
    return message_of([&] { check_attn_implementation(name, lookup); });
  }
};

TEST_F(AttentionKernel, BuiltInNamesPass) {
  for (const char* name : {"sdpa", "eager", "flash_attention_2", "paged|sdpa", "org:model", ""}) {
    EXPECT_EQ(refused(name), "no error") << name;
  }
  EXPECT_EQ(asked(), 0u);
}

TEST_F(AttentionKernel, LookedUpAsEveryKernelThenRefusedWithWhatWasFound) {
  const ForeignCopy flash("flash-attn2", HOTSWAP_TEST_FOREIGN_STABLE);
  for (const char* version : {"v1", "v2", "v3"}) serve(flash.root(), "kernels-community/flash-attn2", version);
  served.write("kernels/kernels-community/flash-attn2/v2/more.txt", "another commit");
  served.write("kernels/kernels-community/flash-attn2/v3/more.txt", "and another");
  const std::string name = "kernels-community/flash-attn2";
  expect_has(refused(name), {"'kernels-community/flash-attn2' is not from a trusted publisher", "allow_all_kernels"});
  EXPECT_EQ(asked("/resolve/"), 0u);
  expect_has(refused(name, {.allow_all_kernels = true}), {"attention has no contract yet", "(v3)"});
  trust("kernels-community");
  expect_has(refused(name), {"from kernels-community/flash-attn2@", "(v3)", ForeignCopy::kStableVariant,
                             "flash-attn2: attention has no contract yet", "sdpa or eager"});
  expect_has(refused(name + "@v1"), {"(v1)"});
  expect_has(refused("paged|" + name + "@>=1.0,<3.0:flash_attn_func"),
             {"attention by kernels-community/flash-attn2@>=1.0,<3.0:flash_attn_func", "(v2)"});
  expect_has(refused(name + "@v9"), {"Version 9 not found, available versions: 1, 2, 3"});
  expect_has(refused(name, {.device_kind = "cuda"}), {"no variant of kernels-community/flash-attn2@", "fits cuda"});
  EXPECT_EQ(dlopen(fetched(name, flash.library().filename()).c_str(), RTLD_NOLOAD | RTLD_LAZY), nullptr);

  // The project's version; and offline.
  TempFolder project;
  project.write("hotswap.toml", "[dependencies]\n\"kernels-community/flash-attn2\" = 2\n");
  expect_has(refused(name, {.project = project.path()}), {"(v2)"});
  const size_t sent = asked();
  const ScopedEnv offline("HF_HUB_OFFLINE", "1");
  expect_has(refused(name), {"(v3)", "no contract yet"});
  expect_has(refused("acme/other"), {"HF_HUB_OFFLINE", "acme/other"});
  change_byte(name, flash.library().filename(), 4000);
  expect_has(refused(name), {"File hash mismatch"});
  EXPECT_EQ(asked(), sent);
}

TEST_F(AttentionKernel, WhatElseMayBeNamed) {
  const PackageCopy norm("norm");
  serve(norm.root(), "acme/norm", "v1");
  expect_has(refused("acme/norm"), {"the layers AddRMSNorm (add_rms_norm/1), LayerNorm (layer_norm/1)"});
  const ForeignCopy other("unheard-of", HOTSWAP_TEST_FOREIGN_STABLE);
  serve(other.root(), "acme/other", "v1");
  expect_has(refused("acme/other"), {"unheard-of, without layers.json"});
  for (const char* bad : {"org//model", "org/model:a:b", "org/model@", "a/b/c"}) {
    expect_has(refused(bad), {"org/repo[@revision][:Layer]"});
  }
  expect_has(refused("/org/model"), {"the folder /org/model"});
}

}  // namespace
}  // namespace hotswap
