// Models in several GGUF files, as llama-gguf-split and gguf's writer make them: NAME-00001-of-00003.gguf and so on.
// The first has the metadata, each has its index (split.no, from 0) and their count (split.count).
#include <array>
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/models/formats/gguf.h"

namespace hotswap {
namespace {

constexpr int64_t kMaxParts = 99999;  // five digits
constexpr const char *kCount = "split.count", *kIndex = "split.no";
constexpr const char* kAgain = "fetch the parts again: they are not of one model";

std::string ending_of_part(int64_t index, int64_t count) {
  std::array<char, 64> ending;
  std::snprintf(ending.data(), ending.size(), "-%05ld-of-%05ld.gguf", static_cast<long>(index + 1),
                static_cast<long>(count));
  return ending.data();
}

[[noreturn]] void refuse_parts(ErrorKind kind, std::string expected, std::string got, std::string next) {
  throw Error({.kind = kind, .wanted = std::move(expected), .got = std::move(got), .next = std::move(next)});
}

// The name of the parts up to their numbers. Error where the name of the file does not lead to the others.
std::string stem_of_first_part(const std::filesystem::path& file, int64_t index, int64_t count) {
  if (count < 0 || count > kMaxParts || index < 0 || index >= count) {
    refuse_parts(ErrorKind::kCorrupt, cat(kIndex, " below ", kCount, ", at most ", kMaxParts, ", in ", file.string()),
                 cat(index, " and ", count), "fetch the file again");
  }
  const std::string name = file.filename().string(), ending = ending_of_part(index, count);
  if (!name.ends_with(ending)) {
    refuse_parts(ErrorKind::kInvalidArgument,
                 cat("a name that ends in ", ending, " for a file with ", kCount, " ", count), file.string(),
                 "name the parts as llama-gguf-split does, or merge them (llama-gguf-split --merge)");
  }
  std::string stem = name.substr(0, name.size() - ending.size());
  if (index == 0) return stem;
  refuse_parts(ErrorKind::kInvalidArgument, cat("the first part, ", stem, ending_of_part(0, count)), file.string(),
               "give that file; the others are found beside it");
}

}  // namespace

void GgufFile::join_parts() {
  const auto count = get<int64_t>(kCount, 1);
  if (count == 0 || count == 1) return;
  const std::string file = path().string(), stem = stem_of_first_part(path(), at<int64_t>(kIndex), count);
  for (int64_t i = 1; i < count; ++i) {
    const auto next = path().parent_path() / (stem + ending_of_part(i, count));
    if (!std::filesystem::is_regular_file(next)) {
      refuse_parts(ErrorKind::kNotFound, cat("all ", count, " parts of the model beside ", file),
                   cat("no ", next.filename().string()), "fetch that part too");
    }
    const GgufFile part(next, OnePart{});
    const auto its_index = part.get<int64_t>(kIndex, 0), its_count = part.get<int64_t>(kCount, 1);
    if (its_count != count || its_index != i) {
      refuse_parts(ErrorKind::kCorrupt, cat(kIndex, " ", i, " and ", kCount, " ", count, " in ", next.string()),
                   cat(its_index, " and ", its_count), kAgain);
    }
    for (const std::string& tensor : part.names_) {
      if (!tensors_.emplace(tensor, part.tensors_.at(tensor)).second) {
        refuse_parts(ErrorKind::kCorrupt, cat("each tensor in one part of ", file),
                     cat("'", tensor, "' in ", next.string(), " too"), kAgain);
      }
      names_.push_back(tensor);
    }
    maps_.push_back(part.maps_.front());
  }
  const auto found = static_cast<int64_t>(names_.size()), expected = get<int64_t>("split.tensors.count", found);
  if (expected == found) return;
  refuse_parts(ErrorKind::kCorrupt, cat(expected, " tensors in the parts of ", file, " (split.tensors.count)"),
               cat(found), kAgain);
}

}  // namespace hotswap
