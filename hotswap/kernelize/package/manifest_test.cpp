// Hostile and broken packages: each a clear error, and nothing of them run.
#include "hotswap/kernelize/package/manifest.h"

#include <fstream>

#include "hotswap/kernelize/testing.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::load;
using test_support::message_of;
using test_support::PackageCopy;
using Ordered = nlohmann::ordered_json;

TEST(Manifest, OfABuiltPackage) {
  PackageCopy copy("norm");
  const Manifest m = read_manifest(copy.variant().string() + "/");
  EXPECT_EQ(m.name, "norm");
  EXPECT_EQ(m.variant, copy.variant().filename());
  EXPECT_EQ(m.layers.at("RMSNorm").contract, "rms_norm/1");
  EXPECT_EQ(m.digest.size(), 7u + 64u);
  ASSERT_NE(m.layer_named("LigerRMSNorm", "kernels-community/liger-kernels"), nullptr);
  EXPECT_EQ(m.layer_named("Nope", "kernels-community/liger_kernels"), nullptr);
  EXPECT_EQ(load(copy), "no error");
}

TEST(Manifest, CapabilitiesDefaultToNo) {
  PackageCopy copy("norm");
  copy.edit_layers([](Ordered& json) {
    json["defaults"].erase("capabilities");
    json["layers"]["RMSNorm"].erase("capabilities");
  });
  const Capabilities caps = read_manifest(copy.variant()).layers.at("RMSNorm").capabilities;
  EXPECT_FALSE(caps.backward || caps.capture || caps.deterministic);
  EXPECT_TRUE(caps.dtypes.empty());
}

TEST(Manifest, UnknownKeysOfTheForeignFormatPass) {
  PackageCopy copy("norm");
  copy.edit_metadata([](Ordered& json) {
    json["python-depends-backends"] = Ordered::object();
    json["backend"]["archs"] = {"9.0"};
    json["provenance"] = {{"kernel-builder", {{"version", "0.17"}}}};
  });
  EXPECT_EQ(load(copy), "no error");
}

struct BadJson {
  const char* name;
  PackageCopy::Edit edit;
  std::vector<std::string> says;
};

TEST(Manifest, BadMetadataIsRefused) {
  const auto drop = [](const char* key) { return [key](Ordered& j) { j.erase(key); }; };
  const auto file = [](const char* name) {
    return [name](Ordered& j) { j["digest"]["files"][name] = "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="; };
  };
  const std::vector<BadJson> cases = {
      {"no name", drop("name"), {"name", "metadata.json"}},
      {"no id", drop("id"), {"id"}},
      {"no version", drop("version"), {"version"}},
      {"no license", drop("license"), {"license"}},
      {"no python-depends", drop("python-depends"), {"python-depends"}},
      {"no backend", drop("backend"), {"backend"}},
      {"no digest", drop("digest"), {"digest"}},
      {"name of another kind", [](Ordered& j) { j["name"] = "Norm/.."; }, {"package name", "Norm/.."}},
      {"id that leaves the folder", [](Ordered& j) { j["id"] = "../../evil"; }, {"identifier", "../../evil"}},
      {"id with a nul", [](Ordered& j) { j["id"] = std::string("a\0b", 3); }, {"identifier"}},
      {"empty id", [](Ordered& j) { j["id"] = ""; }, {"identifier"}},
      {"version as text", [](Ordered& j) { j["version"] = "1"; }, {"version", "string"}},
      {"negative version", [](Ordered& j) { j["version"] = -1; }, {"version >= 0"}},
      {"unknown backend", [](Ordered& j) { j["backend"]["type"] = "quantum"; }, {"backend", "quantum"}},
      {"other algorithm", [](Ordered& j) { j["digest"]["algorithm"] = "md5"; }, {"sha256", "md5"}},
      {"digest of a list", [](Ordered& j) { j["digest"]["files"] = Ordered::array(); }, {"files"}},
      {"hash that is none", [](Ordered& j) { j["digest"]["files"]["layers.json"] = "abc"; }, {"base64", "abc"}},
      {"absolute file", file("/etc/passwd"), {"inside the package", "/etc/passwd"}},
      {"file above", file("../layers.json"), {"inside the package"}},
      {"file above, hidden", file("a/../../layers.json"), {"inside the package"}},
      {"backslashes", file("..\\x"), {"inside the package"}},
      {"empty file name", file(""), {"inside the package"}},
      {"library not in the digest", [](Ordered& j) { j["id"] = "_other_id"; }, {"digest of '_other_id.abi3.so'"}},
      {"layers.json not in the digest", [](Ordered& j) { j["digest"]["files"].erase("layers.json"); }, {"layers.json"}},
  };
  for (const auto& bad : cases) {
    PackageCopy copy("norm");
    copy.edit_metadata(bad.edit);
    const std::string text = load(copy);
    for (const auto& part : bad.says) EXPECT_NE(text.find(part), text.npos) << bad.name << ": " << text;
  }
}

TEST(Manifest, BadLayersAreRefused) {
  const std::vector<BadJson> cases = {
      {"unknown key", [](Ordered& j) { j["layer"] = 1; }, {"'layer'", "layers.json"}},
      {"unknown key of a layer", [](Ordered& j) { j["layers"]["RMSNorm"]["speed"] = 9; }, {"'speed'", "RMSNorm"}},
      {"unknown capability", [](Ordered& j) { j["layers"]["RMSNorm"]["capabilities"]["magic"] = true; }, {"'magic'"}},
      {"no schema", [](Ordered& j) { j.erase("schema"); }, {"schema"}},
      {"schema of tomorrow", [](Ordered& j) { j["schema"] = 3; }, {"schema 1 or 2", "'3'"}},
      {"no layers", [](Ordered& j) { j.erase("layers"); }, {"layers"}},
      {"unknown contract",
       [](Ordered& j) { j["layers"]["RMSNorm"]["contract"] = "rms_norm/9"; },
       {"rms_norm/9", "rms_norm/1"}},
      {"no contract", [](Ordered& j) { j["defaults"].erase("contract"); }, {"contract", "RMSNorm"}},
      {"unknown role",
       [](Ordered& j) { j["layers"]["RMSNorm"]["ops"]["sideways"] = "x"; },
       {"role of rms_norm/1", "sideways"}},
      {"op that is no name",
       [](Ordered& j) { j["layers"]["RMSNorm"]["ops"]["forward"] = "aten::add"; },
       {"op's name", "aten::add"}},
      {"no forward", [](Ordered& j) { j["layers"]["RMSNorm"]["ops"].erase("forward"); }, {"forward"}},
      {"backward promised, none there",
       [](Ordered& j) { j["layers"]["RMSNorm"]["ops"].erase("backward"); },
       {"backward"}},
      {"backward promised, not for packed rows",
       [](Ordered& j) {
         j["layers"]["RMSNorm"]["contract"] = "attention/1";
         j["layers"]["RMSNorm"]["ops"]["varlen_forward"] = "varlen_forward";
       },
       {"varlen_forward_train"}},
      {"dtype of its own", [](Ordered& j) { j["layers"]["RMSNorm"]["capabilities"]["dtypes"] = {"int3"}; }, {"int3"}},
      {"capability as text",
       [](Ordered& j) { j["layers"]["RMSNorm"]["capabilities"]["backward"] = "yes"; },
       {"backward", "string"}},
      {"captured and not",
       [](Ordered& j) { j["layers"]["RMSNorm"]["capabilities"]["needs_host_sync"] = true; },
       {"at most one of capture and needs_host_sync", "'both'"}},
      {"stands in for nothing", [](Ordered& j) { j["stands_in_for"] = {"liger"}; }, {"org/repo"}},
      {"stands in by no layer of its own",
       [](Ordered& j) { j["stands_in_for"] = {"a/b:C=D"}; },
       {"layer of this package", "'D'"}},
      {"stands in without a layer", [](Ordered& j) { j["stands_in_for"] = {"a/b"}; }, {"org/repo:Layer"}},
  };
  for (const auto& bad : cases) {
    PackageCopy copy("norm");
    copy.edit_layers(bad.edit);
    const std::string text = load(copy);
    for (const auto& part : bad.says) EXPECT_NE(text.find(part), text.npos) << bad.name << ": " << text;
  }
}

// Schema 2: what every layer would repeat is said once.
TEST(Manifest, DefaultsCopiesAndAliases) {
  PackageCopy copy("norm");
  copy.write("layers.json", R"({
    "schema": 2,
    "defaults": {"contract": "rms_norm/1", "capabilities": {"capture": true, "dtypes": ["float32"]}},
    "layers": {
      "RMSNorm": {"ops": {"forward": "rms_norm"}, "capabilities": {"deterministic": true}},
      "ANorm": "RMSNorm",
      "LayerNorm": {"contract": "layer_norm/1", "ops": {"forward": "layer_norm"},
                    "capabilities": {"capture": false, "needs_host_sync": true, "dtypes": ["bfloat16"]}}
    },
    "stands_in_for": ["acme/norms:Norm=RMSNorm", "other/norms:TheirNorm=LayerNorm"],
    "aliases": {"acme/older-norms": "acme/norms"}
  })");
  copy.sign();
  const Manifest m = read_manifest(copy.variant());
  const LayerEntry &rms = m.layers.at("RMSNorm"), &a = m.layers.at("ANorm"), &layer = m.layers.at("LayerNorm");
  EXPECT_EQ(rms.contract, "rms_norm/1");
  EXPECT_TRUE(rms.capabilities.capture && rms.capabilities.deterministic && !rms.capabilities.backward);
  EXPECT_EQ(rms.capabilities.dtypes, std::set<std::string>{"float32"});
  EXPECT_EQ(a.contract, rms.contract);
  EXPECT_EQ(a.ops, rms.ops);
  EXPECT_TRUE(a.capabilities.deterministic);
  EXPECT_EQ(layer.contract, "layer_norm/1");
  EXPECT_TRUE(!layer.capabilities.capture && !layer.capabilities.deterministic);
  EXPECT_TRUE(layer.capabilities.needs_host_sync && !rms.capabilities.needs_host_sync);
  EXPECT_EQ(layer.capabilities.dtypes, std::set<std::string>{"bfloat16"});
  ASSERT_NE(m.layer_named("Norm", "acme/older_norms"), nullptr);
  EXPECT_EQ(*m.layer_named("Norm", "acme/older_norms"), "RMSNorm");
  EXPECT_NE(m.layer_named("TheirNorm", "other/norms"), nullptr);
  EXPECT_EQ(m.layer_named("TheirNorm", "acme/older_norms"), nullptr) << "that is another repository's";
  EXPECT_EQ(load(copy), "no error");
}

TEST(Manifest, BadSchemaTwoIsRefused) {
  const auto one = [](Ordered& j) { j["schema"] = 1; };
  const auto feature = [](Ordered& j) { j["layers"]["RMSNorm"]["capabilities"] = {{"features", {"windw"}}}; };
  const auto numbers = [](Ordered& j) { j["layers"]["RMSNorm"]["capabilities"] = {{"numbers", {{"heads", {64}}}}}; };
  const std::vector<BadJson> cases = {
      {"defaults in schema 1", one, {"'defaults'", "layers.json"}},
      {"unknown default", [](Ordered& j) { j["defaults"]["ops"] = Ordered::object(); }, {"'ops'", "defaults"}},
      {"unknown capability", [](Ordered& j) { j["defaults"]["capabilities"]["magic"] = true; }, {"'magic'"}},
      {"feature that the contract has not", feature, {"a feature of rms_norm/1 (it has none)", "'windw'"}},
      {"numbers that the contract has not", numbers, {"numbers of rms_norm/1", "'heads'"}},
      {"the same as nothing", [](Ordered& j) { j["layers"]["Other"] = "Nope"; }, {"written out", "'Nope'"}},
      {"the same as a copy",
       [](Ordered& j) {
         j["layers"]["Second"] = "First";
         j["layers"]["First"] = "RMSNorm";
       },
       {"written out", "'First'"}},
      {"alias of nothing",
       [](Ordered& j) {
         j["aliases"] = {{"a/b", "c/d"}};
       },
       {"stands_in_for names", "'c/d'"}},
      {"alias that is no repository",
       [](Ordered& j) {
         j["aliases"] = {{"ab", "kernels-community/rmsnorm"}};
       },
       {"org/repo", "'ab'"}},
  };
  for (const auto& bad : cases) {
    PackageCopy copy("norm");
    copy.edit_layers(bad.edit);
    const std::string text = load(copy);
    for (const auto& part : bad.says) EXPECT_NE(text.find(part), text.npos) << bad.name << ": " << text;
  }
}

TEST(Manifest, Numbers) {
  const auto numbers = [](const char* list) {
    Numbers result;
    const Json json = Json::parse(list, "layers.json");
    for (const Json& entry : json.elements()) result.add(entry);
    return result;
  };
  const Numbers heads = numbers(R"([64, "80-128", "192/128", "multiple of 256"])");
  for (const int64_t taken : {64, 80, 100, 128, 256, 1024}) EXPECT_TRUE(heads.has({taken})) << taken;
  for (const int64_t other : {1, 63, 65, 79, 129, 192, 300}) EXPECT_FALSE(heads.has({other})) << other;
  EXPECT_TRUE(heads.has({192, 128}));
  EXPECT_FALSE(heads.has({128, 192}));
  EXPECT_FALSE(heads.has({64, 128})) << "a pair is none of single ones";
  EXPECT_TRUE(heads.has({64, 64})) << "of equal numbers a pair is one";
  EXPECT_FALSE(heads.has({}));
  for (const char* bad :
       {R"([0])", R"([-8])", R"(["8-"])", R"(["-8"])", R"(["128-80"])", R"(["192/"])", R"(["/"])", R"([""])",
        R"(["multiple of 0"])", R"(["many"])", R"(["8 - 16"])", R"([true])", R"(["99999999999999999999"])"}) {
    EXPECT_NE(message_of([&] { numbers(bad); }), "no error") << bad;
  }
}

TEST(Manifest, NotEvenJson) {
  for (const char* text : {"", "{", "[]", "null", "{\"name\": \"norm\", \"name\": \"norm\"}", "\xff\xfe"}) {
    PackageCopy copy("norm");
    copy.write("metadata.json", text);
    EXPECT_NE(load(copy).find("metadata.json"), std::string::npos) << text;
  }
  PackageCopy deep("norm");
  deep.write("layers.json", std::string(100000, '['));
  EXPECT_NE(load(deep).find("deep"), std::string::npos);
  PackageCopy absent("norm");
  fs::remove(absent.variant() / "metadata.json");
  expect_has(load(absent), {"metadata.json"});
  PackageCopy python_only("norm");
  fs::remove(python_only.variant() / "layers.json");
  expect_has(load(python_only), {"layers.json in", "does not declare which layers"});
}

TEST(Digest, EveryDifferenceIsListedInOneError) {
  PackageCopy copy("norm");
  copy.write("extra.bin", "x");
  copy.write("sub/extra.py", "x");
  copy.write("_ops.py", "import os");
  fs::remove(copy.variant() / "__init__.py");
  expect_has(load(copy), {"Missing file: __init__.py", "File hash mismatch for _ops.py: expected: ", ", got: ",
                          "Unknown file: extra.bin", "Unknown file: sub/extra.py", "nothing of it was run"});
}

TEST(Digest, OneFlippedBitOfTheLibraryIsSeen) {
  PackageCopy copy("norm");
  std::fstream file(copy.library(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(4096);
  const char old = static_cast<char>(file.get());
  file.seekp(4096);
  file.put(static_cast<char>(old ^ 1));
  file.close();
  expect_has(load(copy), {"File hash mismatch for " + copy.id() + ".abi3.so"});
}

TEST(Digest, OneFlippedByteOfLayersJsonIsSeen) {
  PackageCopy copy("norm");
  copy.write("layers.json", R"({"schema": 1, "layers": {}})");
  expect_has(load(copy), {"File hash mismatch for layers.json"});
}

TEST(Digest, PythonCachesDoNotCount) {
  PackageCopy copy("norm");
  copy.write("__pycache__/a.cpython-311.pyc", "x");
  copy.write("metadata.json.sigstore", "x");
  EXPECT_EQ(load(copy), "no error");
}

}  // namespace
}  // namespace hotswap
