// Every parser of this room against thousands of damaged inputs: an Error at most, never a crash, a hang or an answer
// of another kind. The sanitizers' build runs this too. Seeds are fixed, so a failure comes back.
#include <random>

#include "hotswap/base/json.h"
#include "hotswap/base/test_support.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/variant.h"
#include "hotswap/hub/names/version.h"
#include "hotswap/hub/package/build_toml.h"
#include "hotswap/hub/package/elf.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/package/metadata.h"
#include "hotswap/hub/sign/bundle.h"
#include "hotswap/hub/sign/sigstore_world.h"
#include "hotswap/hub/sign/trust.h"

namespace hotswap {
namespace {

using test_support::TempFolder;

std::string damaged(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n ? n - 1 : 0)(random); };
  for (size_t i = 0, n = 1 + below(4); i < n; ++i) {
    const size_t at = below(text.size() + 1);
    static const std::string kPieces[] = {"\"",   "{",
                                          "}",    "[",
                                          "]",    ",",
                                          ":",    "-",
                                          "0",    "99999999999999999999",
                                          "null", "\n",
                                          "=",    "..",
                                          "/",    "\\",
                                          "@",    ">=",
                                          "\xff", std::string(1, '\0'),
                                          "e9",   "\xe2\x80\x94 "};
    switch (below(5)) {
      case 0:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, 1 + below(20));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 3:  // a piece again, elsewhere
        text.insert(below(text.size() + 1), text.substr(at, 1 + below(40)));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

template <typename Parse>
void attack(const std::string& good, int rounds, const Parse& parse) {
  parse(good);
  std::mt19937 random(20261121);
  for (int i = 0; i < rounds; ++i) {
    const std::string bad = damaged(good, random);
    try {
      parse(bad);
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 20000u);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an Error but " << error.what() << " for: " << bad.substr(0, 500);
      return;
    }
  }
}

TEST(Hostile, Names) {
  for (const char* good : {"org/repo@>=2.0,<3.0:Layer", "kernels-community/flash-attn2@v1.2.3:f", "/abs/path:Layer"}) {
    attack(good, 3000, [](const std::string& text) {
      const KernelRef ref(text);
      if (!ref.is_path()) {
        EXPECT_EQ(KernelRef(ref.str()), ref);  // what is accepted has one meaning
      }
    });
  }
}

TEST(Hostile, VersionsAndSpecifiers) {
  attack("1!2.0rc1.post2.dev3+local.4", 3000, [](const std::string& text) {
    if (const auto version = Version::try_parse(text)) {
      EXPECT_EQ(Version::parse(version->str()), *version);
      EXPECT_EQ(Version::parse(version->str()).str(), version->str());
    }
  });
  attack(">=2.0,<3.0,!=2.5.*,~=2.1", 3000,
         [](const std::string& text) { SpecifierSet::parse(text).contains(Version::parse("2.2")); });
}

TEST(Hostile, Variants) {
  const System system{.torch = {{2, 11}}, .backend = *Backend::parse("cu130")};
  for (const char* good :
       {"torch-stable-abi211-cu130-x86_64-linux", "torch211-cxx11-cu130-x86_64-linux", "torch-universal"}) {
    attack(good, 3000, [&](const std::string& text) {
      if (const auto name = VariantName::parse(text)) {
        EXPECT_EQ(name->str(), text);
        EXPECT_EQ(text.find('/'), text.npos);
        EXPECT_EQ(text.find(".."), text.npos);
      }
      choose_variant(std::vector<std::string>{text, "torch-cuda"}, system).trace_lines();
    });
  }
}

constexpr const char* kMetadata = R"({"name": "rms-norm", "id": "_rms_norm_cpu_abc", "version": 1, "license": "mit",
 "python-depends": ["einops"], "kernel-depends": [{"repo-id": "a/b", "version": 1}], "backend": {"type": "cuda", "archs": ["9.0"]},
 "upstream": "https://x/y", "digest": {"algorithm": "sha256", "files": {"a/b.py": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}},
 "provenance": {"kernel-builder": {"version": "1", "commit": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "dirty": true}}})";

TEST(Hostile, Metadata) {
  attack(kMetadata, 5000, [](const std::string& text) {
    const KernelMetadata m = parse_metadata(text, "metadata.json");
    EXPECT_TRUE(is_identifier(m.id) && is_kernel_name(m.name));
    if (!m.digests) return;
    for (const auto& [name, hash] : m.digests->files) EXPECT_TRUE(is_inside(name)) << name;
  });
}

TEST(Hostile, Locks) {
  const std::string commit(40, 'a'), hash(64, 'b');
  attack(cat(R"([{"repo_id": "a/b", "sha": ")", commit, R"(", "variants": {"torch-cpu": {"hash": "sha256-)", hash,
             R"(", "hash_type": "git_lfs_concat"}}}])"),
         4000, [](const std::string& text) { Lockfile::parse(Lockfile::parse(text, "lock").text(), "lock"); });
  attack(cat(R"([{"dependency": {"repo-id": "a/b", "version": 1}, "lock": {"commit": ")", commit, R"("}}])"), 4000,
         [](const std::string& text) { Lockfile::parse(Lockfile::parse(text, "lock").text(), "lock"); });
}

TEST(Hostile, Toml) {
  TempFolder folder;
  attack(
      "[general]\nname = \"ab\"\nversion = 1\nedition = 5\nlicense = \"mit\"\nbackends = [\"cuda\"]\n[torch]\nsrc = "
      "[\"a.cpp\"]\n"
      "[kernel.x]\nbackend = \"cuda\"\ndepends = [\"torch\"]\nsrc = [\"x.cu\"]\ncuda-capabilities = [\"9.0\"]\n",
      1500, [&](const std::string& text) {
        const auto file = folder.path() / "build.toml";
        std::FILE* out = std::fopen(file.c_str(), "wb");
        std::fwrite(text.data(), 1, text.size(), out);
        std::fclose(out);
        check_build(read_build_toml(file), folder.path());
      });
}

TEST(Hostile, Bundles) {
  const test_support::SigstoreWorld world;
  attack(world.bundle().dump(), 3000, [](const std::string& text) { Bundle::parse(text, "bundle"); });
  attack(world.root().dump(), 1000, [](const std::string& text) { TrustRoot::parse(text, "root"); });
}

}  // namespace
}  // namespace hotswap
