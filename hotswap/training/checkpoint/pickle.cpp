#include "hotswap/training/checkpoint/pickle.h"

#include <algorithm>
#include <cstring>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

struct Storage {
  const char* name;
  at::ScalarType dtype;
};
constexpr Storage kStorages[] = {
    {"FloatStorage", at::kFloat},       {"DoubleStorage", at::kDouble}, {"HalfStorage", at::kHalf},
    {"BFloat16Storage", at::kBFloat16}, {"LongStorage", at::kLong},     {"IntStorage", at::kInt},
    {"ShortStorage", at::kShort},       {"CharStorage", at::kChar},     {"ByteStorage", at::kByte},
    {"BoolStorage", at::kBool},
};

template <typename T>
const T& as(const PickleValue& value, const char* kind, const std::string& where) {
  if (const T* found = std::get_if<T>(&value.value)) return *found;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(kind, " at ", where),
               .got = "a value of another type",
               .next = "take a file that torch.save wrote of an optimizer or a scheduler"});
}

}  // namespace

std::string storage_name(at::ScalarType dtype) {
  for (const Storage& storage : kStorages) {
    if (storage.dtype == dtype) return storage.name;
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a tensor of a type that torch.save's older files have",
               .got = toString(dtype),
               .next = "keep the state in float32 or bfloat16"});
}

const PickleDict& PickleValue::dict(const std::string& where) const { return as<PickleDict>(*this, "a dict", where); }
const std::vector<const PickleValue*>& PickleValue::list(const std::string& where) const {
  return as<PickleList>(*this, "a list", where).items;
}
const std::string& PickleValue::text(const std::string& where) const { return as<std::string>(*this, "a text", where); }
const Tensor& PickleValue::tensor(const std::string& where) const { return as<Tensor>(*this, "a tensor", where); }
int64_t PickleValue::integer(const std::string& where) const { return as<int64_t>(*this, "an integer", where); }
bool PickleValue::boolean(const std::string& where) const { return as<bool>(*this, "True or False", where); }
double PickleValue::number(const std::string& where) const {
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  return as<double>(*this, "a number", where);
}

const PickleValue* PickleValue::find(const std::string& key, const std::string& where) const {
  const PickleValue* found = nullptr;
  for (const auto& [name, entry] : dict(where).items) {
    const auto* text = std::get_if<std::string>(&name->value);
    if (text != nullptr && *text == key) found = entry;
  }
  return found;
}

const PickleValue& PickleValue::at(const std::string& key, const std::string& where) const {
  if (const PickleValue* found = find(key, where)) return *found;
  std::vector<std::string> keys;
  for (const auto& [name, entry] : dict(where).items) {
    if (const auto* text = std::get_if<std::string>(&name->value)) keys.push_back(*text);
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a key \"", key, "\" in ", where),
               .got = keys.empty() ? "none" : join(keys),
               .next = "take a checkpoint of transformers' Trainer, or of hotswap train"});
}

PickleWriter::PickleWriter() : bytes_("\x80\x02") {}

void PickleWriter::none() { op('N'); }
void PickleWriter::boolean(bool value) { op(value ? '\x88' : '\x89'); }

void PickleWriter::integer(int64_t value) {
  const bool small = value >= INT32_MIN && value <= INT32_MAX;
  if (small) {
    op('J');
  } else {
    op('\x8a');
    op(8);
  }
  for (int i = 0; i < (small ? 4 : 8); ++i) op(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
}

void PickleWriter::number(double value) {
  op('G');
  uint64_t bits = 0;
  static_assert(sizeof bits == sizeof value);
  std::memcpy(&bits, &value, sizeof bits);
  for (int i = 7; i >= 0; --i) op(static_cast<char>(bits >> (8 * i) & 0xff));
}

void PickleWriter::text(const std::string& value) {
  op('X');
  for (int i = 0; i < 4; ++i) op(static_cast<char>(value.size() >> (8 * i) & 0xff));
  bytes_ += value;
}

void PickleWriter::begin_dict() { bytes_ += "}("; }
void PickleWriter::end_dict() { op('u'); }
void PickleWriter::begin_list() { bytes_ += "]("; }
void PickleWriter::end_list() { op('e'); }
void PickleWriter::begin_tuple() { op('('); }
void PickleWriter::end_tuple() { op('t'); }

void PickleWriter::global(const std::string& module, const std::string& name) {
  bytes_ += cat("c", module, "\n", name, "\n");
}

void PickleWriter::tensor(const Tensor& value) {
  tensor({.dtype = value.scalar_type(), .sizes = value.sizes().vec(), .data = [value] {
            return value.detach().contiguous();
          }});
}

void PickleWriter::tensor(PickledTensor value) {
  int64_t elements = 1;
  std::vector<int64_t> strides(value.sizes.size());  // of contiguous data
  for (size_t dim = strides.size(); dim-- > 0;) {
    strides[dim] = elements;
    elements *= std::max<int64_t>(1, value.sizes[dim]);
  }
  const bool empty = std::find(value.sizes.begin(), value.sizes.end(), 0) != value.sizes.end();
  global("torch._utils", "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  text("storage");
  global("torch", storage_name(value.dtype));
  text(std::to_string(storages_.size()));
  text("cpu");
  integer(empty ? 0 : elements);
  end_tuple();
  op('Q');
  integer(0);  // its offset in the storage
  for (const auto* dims : {&value.sizes, &strides}) {
    begin_tuple();
    for (const int64_t dim : *dims) integer(dim);
    end_tuple();
  }
  boolean(false);  // requires_grad
  global("collections", "OrderedDict");
  bytes_ += ")R";  // of hooks: none
  end_tuple();
  op('R');
  storages_.push_back(std::move(value));
}

std::string PickleWriter::finish() {
  op('.');
  return bytes_;
}

}  // namespace hotswap
