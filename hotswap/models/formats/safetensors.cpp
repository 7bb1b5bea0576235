#include "hotswap/models/formats/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/json_fault.h"
#include "hotswap/models/formats/safetensors_dtype.h"

namespace hotswap {
namespace {

using Node = nlohmann::json;  // keys in a std::map: base's Json keeps order and pays for it with linear look-ups

constexpr uint64_t kMaxHeader = 100'000'000;  // as the reference library has it
constexpr int kMaxDepth = 126;                // below the outermost object; likewise

[[noreturn]] void refuse(std::string wanted, const std::filesystem::path& file, std::string got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(wanted, " in ", file.string()),
               .got = std::move(got),
               .next = "fetch the file again; it is damaged or was not written by a safetensors library"});
}

// JSON without duplicate keys, of bounded depth; for headers with hundreds of thousands of names.
Node parse_json(std::string_view text, const std::filesystem::path& file) {
  std::vector<std::set<std::string>> keys;
  auto watch = [&](int depth, Node::parse_event_t event, Node& value) {
    if (depth > kMaxDepth) refuse(cat("JSON nested at most ", kMaxDepth, " deep"), file, "deeper nesting");
    if (event == Node::parse_event_t::object_start) keys.emplace_back();
    if (event == Node::parse_event_t::object_end) keys.pop_back();
    if (event == Node::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      refuse("each name once", file, cat("'", value.get<std::string>(), "' twice"));
    }
    return true;
  };
  try {
    return Node::parse(text, watch);
  } catch (const nlohmann::json::exception&) {
    refuse("valid JSON", file, json_fault(text));
  }
}

uint64_t unsigned_integer(const Node& node, const std::string& what, const std::filesystem::path& file) {
  if (!node.is_number_unsigned()) refuse(cat(what, " as integers from 0 to 2^64-1"), file, node.dump());
  return node.get<uint64_t>();
}

// The bytes that an entry's shape and type need; refuses products beyond 2^63.
uint64_t byte_size(const SafetensorsEntry& entry, uint64_t element, const std::string& name,
                   const std::filesystem::path& file) {
  uint64_t size = element;
  bool empty = false;
  for (const int64_t extent : entry.shape) {
    if (extent == 0) empty = true;
    // Zero extents do not excuse the others: torch multiplies them too, when it makes strides.
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(std::max<int64_t>(extent, 1)), &size) ||
        size > static_cast<uint64_t>(INT64_MAX)) {
      refuse(cat("a shape of fewer than 2^63 bytes for tensor '", name, "'"), file, cat("[", join(entry.shape), "]"));
    }
  }
  return empty ? 0 : size;
}

// Other keys of an entry are left alone, as the reference library leaves them.
SafetensorsEntry parse_entry(const std::string& name, const Node& node, const std::filesystem::path& file) {
  if (!node.is_object() || !node.contains("dtype") || !node.contains("shape") || !node.contains("data_offsets")) {
    refuse(cat("an object with dtype, shape and data_offsets for tensor '", name, "'"), file,
           node.dump(-1, ' ', false, Node::error_handler_t::replace).substr(0, 80));
  }
  SafetensorsEntry entry;
  const Node& dtype = node["dtype"];
  if (!dtype.is_string()) refuse(cat("a dtype name for tensor '", name, "'"), file, dtype.dump());
  entry.dtype = dtype.get<std::string>();
  const SafetensorsDtype* known = find_safetensors_dtype(entry.dtype);
  if (known == nullptr) {
    refuse(cat("one of the types ", safetensors_dtype_names(), " for tensor '", name, "'"), file,
           cat("dtype '", entry.dtype, "'"));
  }
  const Node &shape = node["shape"], &offsets = node["data_offsets"];
  if (!shape.is_array() || shape.size() > 64) {
    refuse(cat("a shape of at most 64 dimensions for tensor '", name, "'"), file, shape.dump().substr(0, 80));
  }
  for (const Node& extent : shape) {
    const uint64_t value = unsigned_integer(extent, cat("the shape of tensor '", name, "'"), file);
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      refuse(cat("extents below 2^63 for tensor '", name, "'"), file, cat(value));
    }
    entry.shape.push_back(static_cast<int64_t>(value));
  }
  if (!offsets.is_array() || offsets.size() != 2) {
    refuse(cat("two data_offsets for tensor '", name, "'"), file, offsets.dump().substr(0, 80));
  }
  entry.begin = unsigned_integer(offsets[0], cat("the data_offsets of tensor '", name, "'"), file);
  entry.end = unsigned_integer(offsets[1], cat("the data_offsets of tensor '", name, "'"), file);
  const uint64_t size = byte_size(entry, known->size, name, file);
  if (entry.begin > entry.end || entry.end - entry.begin != size) {
    refuse(cat(size, " bytes (", entry.dtype, " [", join(entry.shape), "]) for tensor '", name, "'"), file,
           cat("data_offsets [", entry.begin, ", ", entry.end, "]"));
  }
  return entry;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : map_(std::make_shared<const MappedFile>(file)) {
  const auto bytes = map_->bytes();
  if (bytes.size() < 8) refuse("at least 8 bytes", file, cat(bytes.size()));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | bytes[i];
  if (length > kMaxHeader) refuse(cat("a header of at most ", kMaxHeader, " bytes"), file, cat("length ", length));
  if (length > bytes.size() - 8) {
    refuse(cat("a header of ", length, " bytes"), file, cat("a file that ends after ", bytes.size() - 8, " of them"));
  }
  data_ = bytes.data() + 8 + length;
  parse_header({reinterpret_cast<const char*>(bytes.data() + 8), length});
  check_layout(bytes.size() - 8 - length);
}

void SafetensorsFile::parse_header(std::string_view header) {
  const size_t first = header.find_first_not_of(" \t\n\r");
  if (first == header.npos || header[first] != '{') refuse("a header that begins with '{'", path(), "something else");
  const Node root = parse_json(header, path());
  for (const auto& [name, node] : root.items()) {
    if (name != "__metadata__") {
      entries_.emplace(name, parse_entry(name, node, path()));
      names_.push_back(name);
      continue;
    }
    if (node.is_null()) continue;  // none, as the reference library takes it
    if (!node.is_object()) refuse("__metadata__ as an object of strings", path(), node.dump().substr(0, 80));
    for (const auto& [key, value] : node.items()) {
      if (!value.is_string()) {
        refuse(cat("a string for __metadata__.", key), path(), value.dump().substr(0, 80));
      }
      metadata_.emplace(key, value.get<std::string>());
    }
  }
}

// Every byte belongs to exactly one tensor: no overlap, no hole, nothing past the end.
void SafetensorsFile::check_layout(uint64_t data_size) {
  std::sort(names_.begin(), names_.end(), [&](const std::string& a, const std::string& b) {
    const auto &x = entries_.at(a), &y = entries_.at(b);
    return std::tie(x.begin, x.end, a) < std::tie(y.begin, y.end, b);
  });
  uint64_t at = 0;
  for (const std::string& name : names_) {
    const SafetensorsEntry& entry = entries_.at(name);
    if (entry.begin != at) {
      refuse(cat("tensor '", name, "' to begin at byte ", at, " of the data, where the one before it ends"), path(),
             cat("it begins at ", entry.begin, entry.begin < at ? ": tensors overlap" : ": a hole"));
    }
    at = entry.end;
    if (at > data_size) {
      refuse(cat("tensor '", name, "' within ", data_size, " bytes of data"), path(), cat("it ends at ", at));
    }
  }
  if (at != data_size)
    refuse(cat(at, " bytes of data"), path(), cat(data_size, " bytes: the last belong to no tensor"));
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a tensor '", name, "' in ", path().string()),
                 .got = cat(entries_.size(), " tensors without it"),
                 .next = "check the name"});
  }
  return found->second;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsEntry& entry = this->entry(name);
  const SafetensorsDtype& dtype = *find_safetensors_dtype(entry.dtype);
  const uint8_t* bytes = data_ + entry.begin;
  const uint64_t size = entry.end - entry.begin;
  if (dtype.type == at::kBool && std::any_of(bytes, bytes + size, [](uint8_t byte) { return byte > 1; })) {
    refuse(cat("bytes 0 and 1 in the BOOL tensor '", name, "'"), path(), "others");
  }
  const auto options = at::TensorOptions().dtype(dtype.type);
  // Complex numbers are aligned as their parts are.
  const uint64_t alignment = dtype.type == at::kComplexFloat ? 4 : dtype.size;
  if (size == 0 || reinterpret_cast<uintptr_t>(bytes) % alignment != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    if (size != 0) std::memcpy(copy.data_ptr(), bytes, size);
    return copy;
  }
  return at::from_blob(
      const_cast<uint8_t*>(bytes), entry.shape, [map = map_](void*) {}, options);
}

namespace {

// A plain file name or path below the index's folder: nothing that could lead out of it.
void check_shard_name(const std::string& shard, const std::filesystem::path& index_file) {
  const std::filesystem::path path(shard);
  bool safe = !shard.empty() && path.is_relative() && shard.find('\\') == std::string::npos &&
              shard.find('\0') == std::string::npos;
  for (const auto& part : path) safe = safe && part != ".." && part != ".";
  if (!safe) refuse("shard names that are relative paths below the folder", index_file, cat("'", shard, "'"));
  if (path.extension() != ".safetensors") {
    refuse("shards that are .safetensors files, so no index and not itself", index_file, cat("'", shard, "'"));
  }
}

}  // namespace

SafetensorsIndex::SafetensorsIndex(const std::filesystem::path& index_file) : path_(index_file) {
  std::error_code ignored;  // read_file says what is wrong with a file that has no size
  if (const auto size = std::filesystem::file_size(index_file, ignored); !ignored && size > kMaxHeader) {
    refuse(cat("an index of at most ", kMaxHeader, " bytes"), index_file, cat(size, " bytes"));
  }
  const Node root = parse_json(read_file(index_file), index_file);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || map == root.end() || !map->is_object() || map->empty()) {
    refuse("an object 'weight_map' of tensor name to file name", index_file, "none");
  }
  std::map<std::string, std::vector<std::string>> listed;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) refuse(cat("a file name for tensor '", name, "'"), index_file, shard.dump().substr(0, 80));
    listed[shard.get<std::string>()].push_back(name);
  }
  for (const auto& [shard, names] : listed) {
    check_shard_name(shard, index_file);
    const auto file = index_file.parent_path() / shard;
    if (!std::filesystem::exists(file)) {
      throw Error({.kind = ErrorKind::kNotFound,
                   .wanted = cat("the shard ", shard, " that ", index_file.string(), " lists"),
                   .got = "no such file",
                   .next = "fetch the missing shards"});
    }
    const SafetensorsFile& opened = shards_.emplace(shard, SafetensorsFile(file)).first->second;
    for (const std::string& name : names) {
      if (!opened.has(name)) {
        refuse(cat("tensor '", name, "', listed in the index,"), file,
               cat(opened.names().size(), " tensors without it"));
      }
      shard_of_.emplace(name, &opened);
      names_.push_back(name);
    }
  }
  for (const auto& [shard, opened] : shards_) {
    for (const std::string& name : opened.names()) {
      const auto [holder, fresh] = shard_of_.emplace(name, &opened);
      if (fresh) names_.push_back(name);
      if (!fresh && map->find(name) == map->end()) {
        refuse(cat("each tensor in one shard: '", name, "'"), opened.path(),
               cat("it is in ", holder->second->path().string(), " too"));
      }
    }
  }
}

const SafetensorsFile& SafetensorsIndex::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a tensor '", name, "' in ", path_.string()),
                 .got = cat(names_.size(), " tensors without it"),
                 .next = "check the name"});
  }
  return *found->second;
}

}  // namespace hotswap
