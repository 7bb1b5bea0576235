#include <ATen/core/Tensor.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <tuple>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/formats/safetensors_dtype.h"

namespace hotswap {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception& e) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "tensor names and metadata in UTF-8",
                 .got = e.what(),
                 .next = "rename what is not UTF-8"});
  }
}

const SafetensorsDtype& dtype_of(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a tensor under the name '", name, "'"),
                 .got = "an undefined one",
                 .next = "leave it out, or give it a value"});
  }
  const SafetensorsDtype* dtype = find_safetensors_dtype(tensor.scalar_type());
  if (dtype == nullptr || tensor.layout() != at::kStrided || tensor.is_meta()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a dense tensor with values, of a type among ", safetensors_dtype_names()),
                 .got = cat("'", name, "': ", tensor.toString(), tensor.is_meta() ? " on the meta device" : ""),
                 .next = "convert it before saving"});
  }
  return *dtype;
}

// The file up to its last commit: several shards become visible together.
std::unique_ptr<AtomicFile> write_safetensors(const std::filesystem::path& file, TensorMap tensors,
                                              const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> seen;
  for (const auto& [name, tensor] : tensors) {
    dtype_of(name, tensor);
    if (name == "__metadata__" || !seen.insert(name).second) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "each tensor name once, and none called __metadata__",
                   .got = cat("'", name, "'"),
                   .next = "rename it"});
    }
  }
  seen.clear();  // it points into the names, which move now
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const int x = safetensors_dtype_rank(dtype_of(a.first, a.second));
    const int y = safetensors_dtype_rank(dtype_of(b.first, b.second));
    return x != y ? x > y : a.first < b.first;
  });

  std::string header = "{", comma;
  if (!metadata.empty()) {
    std::vector<std::string> entries;
    for (const auto& [key, value] : metadata) entries.push_back(quoted(key) + ":" + quoted(value));
    header += "\"__metadata__\":{" + join(entries, ",") + "}";
    comma = ",";
  }
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t end = at + tensor.numel() * tensor.element_size();
    header += cat(comma, quoted(name), ":{\"dtype\":\"", dtype_of(name, tensor).name, "\",\"shape\":[",
                  join(tensor.sizes(), ","), "],\"data_offsets\":[", at, ",", end, "]}");
    comma = ",";
    at = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data begin aligned

  auto out = std::make_unique<AtomicFile>(file);
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  out->write(length, 8);
  out->write(header);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
    if (dense.numel() > 0) out->write(dense.const_data_ptr(), dense.nbytes());
  }
  return out;
}

// Without the tensors that are another name of earlier memory.
TensorMap without_ties(const TensorMap& tensors) {
  std::set<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, at::ScalarType, std::string>> seen;
  TensorMap result;
  for (const auto& [name, tensor] : tensors) {
    dtype_of(name, tensor);
    const bool fresh =
        tensor.numel() == 0 || seen.emplace(tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(),
                                            tensor.scalar_type(), tensor.device().str())
                                   .second;
    if (fresh) result.emplace_back(name, tensor);
  }
  return result;
}

// transformers sorts a loaded model's tensors part by part: numbers before words, numbers by value, "layer2" before
// "layer11". The order decides which shard a tensor lands in.
using NaturalKey = std::vector<std::tuple<bool, std::string, size_t, std::string>>;

NaturalKey natural_key(const std::string& name) {
  NaturalKey key;
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    const size_t digits = part.find_last_not_of("0123456789") + 1;  // where the trailing number begins
    const size_t value = part.find_first_not_of('0', digits);       // without leading zeros, so that length decides
    const std::string number = value == std::string::npos ? "" : part.substr(value);
    const bool has_number = digits < part.size();
    key.emplace_back(digits > 0 || !has_number, part.substr(0, digits), has_number ? 1 + number.size() : 0, number);
  }
  return key;
}

TensorMap in_natural_order(TensorMap tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return natural_key(a.first) < natural_key(b.first); });
  return tensors;
}

// Filled in order; a tensor larger than the limit gets a shard of its own, at the place where it comes.
std::vector<TensorMap> split_shards(const TensorMap& tensors, int64_t max_shard_size) {
  std::vector<TensorMap> shards;
  TensorMap open;
  int64_t open_size = 0;
  for (const auto& entry : tensors) {
    const auto size = static_cast<int64_t>(entry.second.nbytes());
    if (size > max_shard_size) {
      shards.push_back({entry});
      continue;
    }
    if (open_size + size > max_shard_size) {
      shards.push_back(std::move(open));
      open.clear();
      open_size = 0;
    }
    open.push_back(entry);
    open_size += size;
  }
  if (!open.empty() || shards.empty()) shards.push_back(std::move(open));
  return shards;
}

bool is_weight_file(const std::string& name) {
  if (name == kSingleFile || name == kIndexFile) return true;
  // model-NNNNN-of-NNNNN.safetensors
  const std::string pattern = "model-#####-of-#####.safetensors";
  return name.size() == pattern.size() && std::equal(name.begin(), name.end(), pattern.begin(), [](char c, char p) {
           return p == '#' ? c >= '0' && c <= '9' : c == p;
         });
}

void remove_stale(const std::filesystem::path& folder, const std::set<std::string>& current) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_weight_file(name) && current.count(name) == 0) std::filesystem::remove(entry.path());
  }
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const TensorMap& tensors,
                      const std::map<std::string, std::string>& metadata) {
  write_safetensors(file, tensors, metadata)->commit();
}

void save_pretrained_weights(const std::filesystem::path& folder, const TensorMap& tensors, int64_t max_shard_size) {
  if (max_shard_size <= 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a positive max_shard_size",
                 .got = cat(max_shard_size),
                 .next = "give it in bytes"});
  }
  const std::vector<TensorMap> shards = split_shards(in_natural_order(without_ties(tensors)), max_shard_size);
  std::set<std::string> current;
  std::vector<std::unique_ptr<AtomicFile>> files;
  nlohmann::json weight_map = nlohmann::json::object();  // sorted by name, as Python's sort_keys gives it
  uint64_t bytes = 0, parameters = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    char file_name[64];
    std::snprintf(file_name, sizeof(file_name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    const std::string shard = shards.size() == 1 ? kSingleFile : file_name;
    files.push_back(write_safetensors(folder / shard, shards[i], {{"format", "pt"}}));
    current.insert(shard);
    for (const auto& [name, tensor] : shards[i]) {
      weight_map[name] = shard;
      bytes += tensor.nbytes();
      parameters += tensor.numel();
    }
  }
  if (shards.size() > 1) {
    const nlohmann::json index = {{"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
                                  {"weight_map", weight_map}};
    files.push_back(std::make_unique<AtomicFile>(folder / kIndexFile));
    files.back()->write(index.dump(2, ' ', true) + "\n");
    current.insert(kIndexFile);
  }
  for (const auto& file : files) file->commit();
  remove_stale(folder, current);
}

}  // namespace hotswap
