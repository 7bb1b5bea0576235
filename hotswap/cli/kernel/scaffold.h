// `hotswap kernel init`: a package that builds and passes its tests at once, to be changed into one's own.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hotswap {

struct Scaffold {
  std::filesystem::path folder;  // not there yet, or empty
  std::string name;              // [a-z][-a-z0-9]*[a-z0-9]
  std::string repo;              // ORG/NAME on the Hub; may be empty
};

// Writes the package and returns the files' names. Error, and nothing written, where the name is none or the folder
// holds anything.
std::vector<std::string> write_scaffold(const Scaffold& scaffold);

}  // namespace hotswap
