#include "hotswap/training/checkpoint/torch_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <map>
#include <memory>

#include "hotswap/base/error.h"
#include "hotswap/training/checkpoint/zip_file.h"

namespace hotswap {
namespace {

std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Entries stand below a folder of any name.
std::string folder_of(const ZipReader& archive) {
  for (const std::string& name : archive.names()) {
    if (name.ends_with("/data.pkl")) return name.substr(0, name.size() - 8);
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("an entry data.pkl in ", archive.path().string()),
               .got = archive.names().empty() ? "an empty archive" : join(archive.names()),
               .next = "take a file that torch.save wrote"});
}

void check_byte_order(const ZipReader& archive, const std::string& name) {
  if (!archive.has(name) || text_of(archive.entry(name)) == "little") return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("little-endian tensors in ", archive.path().string()),
               .got = "another byte order",
               .next = "save the file on such a machine"});
}

// The whole entry as one tensor: the file's own memory, which is the system's to take back, or a copy of an entry that
// does not begin where its elements may.
Tensor entry_of(const std::shared_ptr<const ZipReader>& archive, const std::string& name, at::ScalarType dtype) {
  const auto bytes = archive->entry(name);
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const auto size = static_cast<int64_t>(bytes.size()) / width;
  if (size > 0 && reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(width) == 0) {
    const auto keep = [archive](void*) {};
    return at::from_blob(const_cast<uint8_t*>(bytes.data()), {size}, keep, at::TensorOptions(dtype));
  }
  Tensor data = at::empty({size}, at::TensorOptions(dtype));
  if (size > 0) std::memcpy(data.mutable_data_ptr(), bytes.data(), static_cast<size_t>(size * width));
  return data;
}

void check_storage(const ZipReader& archive, const PickleStorage& storage, const Tensor& data) {
  if (storage.size >= 0 && storage.size <= data.numel() && storage.dtype == data.scalar_type()) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(storage.size, " elements of ", toString(storage.dtype), " in the entry ", storage.key,
                             " of ", archive.path().string()),
               .got = cat(data.numel(), " of ", toString(data.scalar_type())),
               .next = "take an earlier checkpoint: this file is damaged"});
}

PickleDocument document_of(const std::filesystem::path& file) {
  const auto archive = std::make_shared<const ZipReader>(file);
  const std::string folder = folder_of(*archive);
  check_byte_order(*archive, folder + "byteorder");
  std::map<std::string, Tensor> loaded;  // tensors may share a storage
  return PickleDocument::parse(archive->entry(folder + "data.pkl"), file.string(), [&](const PickleStorage& storage) {
    Tensor& data = loaded[storage.key];
    if (!data.defined()) data = entry_of(archive, cat(folder, "data/", storage.key), storage.dtype);
    check_storage(*archive, storage, data);
    return data;
  });
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& file) : document_(document_of(file)) {}

void TorchFileWriter::save(const std::filesystem::path& file) {
  ZipWriter archive(file);
  archive.add("archive/data.pkl", pickle_.finish());
  archive.add("archive/byteorder", "little");
  for (size_t i = 0; i < pickle_.storages().size(); ++i) {
    const Tensor data = pickle_.storages()[i].data().cpu();
    archive.add(cat("archive/data/", i), {static_cast<const char*>(data.const_data_ptr()), data.nbytes()});
  }
  archive.add("archive/version", "3\n");
  archive.commit();
}

}  // namespace hotswap
