// For tests: the program bin/hotswap beside the test, run as a script runs it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"

namespace hotswap::test_support {

struct Outcome {
  int status;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("hotswap_cli_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(std::filesystem::exists(program())) << "build the target hotswap_main";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::filesystem::path program() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "hotswap";
  }
  std::filesystem::path file(const std::string& name) const { return folder_ / name; }

  Outcome run(const std::string& arguments, const std::string& input = "") const {
    return run_with("", arguments, input);
  }
  // prefix: "env A=b "
  Outcome run_with(const std::string& prefix, const std::string& arguments, const std::string& input = "") const {
    write_file(file("stdin"), input);
    const std::string line = prefix + program().string() + " " + arguments + " <" + file("stdin").string() + " >" +
                             file("stdout").string() + " 2>" + file("stderr").string();
    const int status = std::system(("timeout 240 " + line).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, read_file(file("stdout")), read_file(file("stderr"))};
  }
  nlohmann::json run_json(const std::string& arguments, const std::string& input = "") const {
    const Outcome outcome = run(arguments, input);
    EXPECT_EQ(outcome.status, 0) << arguments << '\n' << outcome.err;
    return outcome.status == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  }

 private:
  std::filesystem::path folder_;
};

// The small model that models/golden_model.py makes, what transformers generates with it in golden.json, and its texts.
inline const std::filesystem::path& model_data() { return made_data("models/golden_model.py"); }
inline std::filesystem::path tiny_model() { return model_data() / "models/tiny"; }

class CliModel : public Cli {
 protected:
  std::string model() const { return "--model " + tiny_model().string(); }
  nlohmann::json golden() const { return nlohmann::json::parse(read_file(tiny_model() / "golden.json")); }
};

using Keys = std::set<std::string>;
inline Keys keys(const nlohmann::json& json) {
  Keys names;
  for (const auto& [key, value] : json.items()) names.insert(key);
  return names;
}

}  // namespace hotswap::test_support
