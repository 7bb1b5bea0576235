// The part of Python's pickle that a file of torch.save needs, read without executing anything: a closed list of
// operations and of names, each an Error by its name where it is another. For sources of this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hotswap {

using at::Tensor;

struct PickleValue;
struct PickleList {
  std::vector<const PickleValue*> items;
  bool is_tuple = false;
};
struct PickleDict {
  std::vector<std::pair<const PickleValue*, const PickleValue*>> items;  // in the order of the file; the last one of
                                                                         // two equal keys counts
};
struct PickleGlobal {  // a name of a module, such as torch FloatStorage
  std::string module, name;
};
struct PickleStorage {
  std::string key;  // of the archive's entry
  at::ScalarType dtype;
  int64_t size;  // elements
};
struct PickleOpaque {};  // of a class that is not read here: numpy's arrays in rng_state.pth

struct PickleValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, PickleList, PickleDict, Tensor, PickleGlobal,
               PickleStorage, PickleOpaque>
      value;

  bool is_none() const { return std::holds_alternative<std::monostate>(value); }
  // These are Errors that name `where`, what a caller expected, where the value is of another kind.
  const PickleDict& dict(const std::string& where) const;
  const std::vector<const PickleValue*>& list(const std::string& where) const;  // or a tuple
  const std::string& text(const std::string& where) const;
  const Tensor& tensor(const std::string& where) const;
  int64_t integer(const std::string& where) const;
  double number(const std::string& where) const;  // an integer, too
  bool boolean(const std::string& where) const;
  // Of a dict with texts as keys: null where there is none.
  const PickleValue* find(const std::string& key, const std::string& where) const;
  const PickleValue& at(const std::string& key, const std::string& where) const;
};

// The values live as long as the document.
class PickleDocument {
 public:
  using LoadStorage = std::function<Tensor(const PickleStorage& storage)>;  // one dimension
  // `where` names the bytes in Errors.
  static PickleDocument parse(std::span<const uint8_t> bytes, const std::string& where, const LoadStorage& load);
  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

// A tensor whose data are made when they are written: another rank may have them.
struct PickledTensor {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::function<Tensor()> data;  // of that dtype and these sizes, contiguous
};

// Writes a value piece by piece, as pickle's protocol 2.
class PickleWriter {
 public:
  PickleWriter();
  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void number(double value);
  void text(const std::string& value);
  void begin_dict();  // then key, value, key, value
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();
  void tensor(PickledTensor value);  // its data: storages() of the same index
  void tensor(const Tensor& value);
  const std::vector<PickledTensor>& storages() const { return storages_; }
  std::string finish();

 private:
  void op(char code) { bytes_.push_back(code); }
  void global(const std::string& module, const std::string& name);

  std::string bytes_;
  std::vector<PickledTensor> storages_;
};

// torch's name of a storage of this type, such as FloatStorage. Error for one that has none here.
std::string storage_name(at::ScalarType dtype);

}  // namespace hotswap
