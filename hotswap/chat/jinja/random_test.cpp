// Random templates here and in Python's jinja2: the same text, or an error in both. HOTSWAP_TEST_SEED=N makes others.
#include <gtest/gtest.h>

#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/test_data.h"
#include "hotswap/base/test_support.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/template.h"

namespace hotswap::jinja {
namespace {

constexpr int kCases = 3000;

TEST(JinjaPython, RandomTemplatesRenderAsInPython) {
  const auto script = test_support::source_folder() / "hotswap/chat/jinja/random_templates.py";
  const uint64_t seed = test_support::test_seed();
  const test_support::TempFolder folder;
  const auto out = folder.path() / "cases.json";
  const auto run = test_support::run_script(script, cat(out.string(), " ", kCases, " ", seed));
  ASSERT_EQ(run.status, 0) << run.output;
  const auto made = nlohmann::ordered_json::parse(read_file(out));
  int rendered = 0, unsupported = 0;
  for (const auto& test : made["cases"]) {
    const auto source = test["template"].get<std::string>();
    std::string got, error;
    try {
      got = Template(source).render(made["context"]).text;
    } catch (const TemplateError& thrown) {
      error = thrown.what();
      if (thrown.fault() == Fault::kUnsupported) {
        ++unsupported;
        continue;
      }
    }
    if (test.contains("error")) {
      EXPECT_FALSE(error.empty()) << "seed " << test["seed"] << ": " << source << "\nhere: " << got
                                  << "\njinja2: " << test["error"];
    } else {
      EXPECT_EQ(error, "") << "seed " << test["seed"] << ": " << source << "\njinja2: " << test["text"];
      EXPECT_EQ(got, test["text"].get<std::string>()) << "seed " << test["seed"] << ": " << source;
      ++rendered;
    }
  }
  EXPECT_GT(rendered, kCases / 10);
  EXPECT_LT(unsupported, kCases / 100);  // complex numbers, for one
}

}  // namespace
}  // namespace hotswap::jinja
