// PickleDocument::parse: a machine with a stack and a memo, as Python's, but for what would call something.
#include <ATen/ops/as_strided.h>

#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "hotswap/base/error.h"
#include "hotswap/training/checkpoint/pickle.h"

namespace hotswap {
namespace {

using Values = std::vector<const PickleValue*>;

constexpr int64_t kMaxDimensions = 64;

// Those that are refused, for the Error. Others are named by their byte.
const char* refused_name(uint8_t code) {
  switch (code) {
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    case 0x93:
      return "STACK_GLOBAL";
    case 'P':
      return "PERSID";
    case 0x97:
      return "NEXT_BUFFER";
    case 'B':
      return "BINBYTES";
    case 'I':
      return "INT";
    case 'L':
      return "LONG";
    case 'F':
      return "FLOAT";
    case 'S':
      return "STRING";
    case 'V':
      return "UNICODE";
    default:
      return nullptr;
  }
}

// Classes that a checkpoint may hold and that are not read here: numpy's states in rng_state.pth.
bool is_opaque(const PickleGlobal& global) {
  const std::string name = cat(global.module, ".", global.name);
  for (const char* known : {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
                            "numpy.ndarray", "numpy.dtype", "_codecs.encode"}) {
    if (name == known) return true;
  }
  return false;
}

bool is(const PickleGlobal& global, const char* module, const char* name) {
  return global.module == module && global.name == name;
}

class Parser {
 public:
  Parser(std::span<const uint8_t> bytes, const std::string& where, const PickleDocument::LoadStorage& load,
         std::deque<PickleValue>& values)
      : bytes_(bytes), where_(where), load_(load), values_(values) {}

  const PickleValue* run() {
    while (true) {
      const uint8_t code = byte();
      if (code == '.') return pop();
      if (!simple(code) && !container(code) && !memo(code) && !object(code)) {
        const char* name = refused_name(code);
        fail("operations that only read data",
             name != nullptr ? cat("the operation ", name) : cat("an operation of the code ", int{code}));
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw Error(
        {.kind = ErrorKind::kCorrupt,
         .wanted = cat(expected, " in the pickle of ", where_),
         .got = cat(got, " before byte ", at_),
         .next = "use checkpoints of transformers' Trainer or of hotswap train: nothing in a pickle is executed"});
  }

  uint8_t byte() { return take(1)[0]; }
  std::span<const uint8_t> take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("as much data as is announced", "its end");
    const auto part = bytes_.subspan(at_, count);
    at_ += count;
    return part;
  }
  uint64_t unsigned_number(int size) {
    uint64_t value = 0;
    const auto part = take(static_cast<uint64_t>(size));
    for (int i = 0; i < size; ++i) value |= static_cast<uint64_t>(part[static_cast<size_t>(i)]) << (8 * i);
    return value;
  }
  std::string text(uint64_t size) {
    const auto part = take(size);
    return {part.begin(), part.end()};
  }
  std::string line() {
    std::string text;
    for (uint8_t next = byte(); next != '\n'; next = byte()) text.push_back(static_cast<char>(next));
    return text;
  }

  void push(PickleValue value) {
    values_.push_back(std::move(value));
    stack_.push_back(&values_.back());
  }
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value on the stack", "none");
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Values pop_to_mark() {
    if (marks_.empty()) fail("a mark on the stack", "none");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Values values(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  template <typename T>
  T& top(const char* kind) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value on the stack", "none");
    T* value = std::get_if<T>(&stack_.back()->value);
    if (value == nullptr) fail(kind, "another value");
    return *value;
  }
  template <typename T>
  const T& kind_of(const PickleValue* value, const char* kind) const {
    const T* found = std::get_if<T>(&value->value);
    if (found == nullptr) fail(kind, "another value");
    return *found;
  }

  bool simple(uint8_t code) {
    switch (code) {
      case 0x80:
        if (byte() > 4) fail("a protocol up to 4", "a later one");
        return true;
      case 0x95:
        take(8);
        return true;  // a frame's length
      case 'N':
        push({});
        return true;
      case 0x88:
        push({true});
        return true;
      case 0x89:
        push({false});
        return true;
      case 'J':
        push({static_cast<int64_t>(static_cast<int32_t>(unsigned_number(4)))});
        return true;
      case 'K':
        push({static_cast<int64_t>(unsigned_number(1))});
        return true;
      case 'M':
        push({static_cast<int64_t>(unsigned_number(2))});
        return true;
      case 0x8a:
        push({long_number()});
        return true;
      case 'G':
        push({big_endian_double()});
        return true;
      case 'X':
        push({text(unsigned_number(4))});
        return true;
      case 0x8c:
        push({text(unsigned_number(1))});
        return true;
      case 'T':
        push({text(unsigned_number(4))});
        return true;
      case 'U':
        push({text(unsigned_number(1))});
        return true;
      default:
        return false;
    }
  }
  int64_t long_number() {
    const uint8_t size = byte();
    if (size > 8) fail("integers of 64 bits", cat("one of ", int{size}, " bytes"));
    uint64_t value = unsigned_number(size);
    if (size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * size);
    return static_cast<int64_t>(value);
  }
  double big_endian_double() {
    uint64_t bits = 0;
    for (const uint8_t next : take(8)) bits = bits << 8 | next;
    return std::bit_cast<double>(bits);
  }

  bool container(uint8_t code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '}':
        push({PickleDict{}});
        return true;
      case ']':
        push({PickleList{}});
        return true;
      case ')':
        push({PickleList{.is_tuple = true}});
        return true;
      case 't':
        tuple(pop_to_mark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87: {
        Values values(static_cast<size_t>(code - 0x84));
        for (size_t i = values.size(); i-- > 0;) values[i] = pop();
        tuple(std::move(values));
        return true;
      }
      case 'a': {
        const PickleValue* item = pop();
        top<PickleList>("a list").items.push_back(item);
        return true;
      }
      case 'e': {
        const Values added = pop_to_mark();
        auto& items = top<PickleList>("a list").items;
        items.insert(items.end(), added.begin(), added.end());
        return true;
      }
      case 's': {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        top<PickleDict>("a dict").items.emplace_back(key, value);
        return true;
      }
      case 'u': {
        const Values added = pop_to_mark();
        if (added.size() % 2 != 0) fail("a value for each key", "a key without one");
        auto& items = top<PickleDict>("a dict").items;
        for (size_t i = 0; i < added.size(); i += 2) items.emplace_back(added[i], added[i + 1]);
        return true;
      }
      default:
        return false;
    }
  }
  void tuple(Values values) { push({PickleList{.items = std::move(values), .is_tuple = true}}); }

  bool memo(uint8_t code) {
    switch (code) {
      case 'q':
        remember(unsigned_number(1));
        return true;
      case 'r':
        remember(unsigned_number(4));
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'h':
        recall(unsigned_number(1));
        return true;
      case 'j':
        recall(unsigned_number(4));
        return true;
      case '0':
        pop();
        return true;
      default:
        return false;
    }
  }
  void remember(uint64_t key) {
    PickleValue* value = pop();
    stack_.push_back(value);
    memo_[key] = value;
  }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("a value that was kept before", cat("number ", key));
    stack_.push_back(found->second);
  }

  bool object(uint8_t code) {
    switch (code) {
      case 'c':
        global();
        return true;
      case 'R':
        reduce();
        return true;
      case 'Q':
        storage();
        return true;
      case 'b': {
        pop();
        top<PickleOpaque>("a state of an object that is not read");
        return true;
      }
      default:
        return false;
    }
  }

  void global() {
    PickleGlobal named;
    named.module = line();
    named.name = line();
    const bool storage = named.module == "torch" && named.name.ends_with("Storage");
    if (!storage && !is_opaque(named) && !is(named, "torch._utils", "_rebuild_tensor_v2") &&
        !is(named, "torch._utils", "_rebuild_parameter") && !is(named, "collections", "OrderedDict") &&
        !is(named, "collections", "defaultdict") && !is(named, "torch", "Size")) {
      fail("names of tensors and containers", cat("the name ", named.module, ".", named.name));
    }
    push({std::move(named)});
  }

  void storage() {
    const auto id = kind_of<PickleList>(pop(), "a storage's tuple").items;
    if (id.size() != 5 || kind_of<std::string>(id[0], "a storage's kind") != "storage") {
      fail("a storage: its kind, type, key, device and size", cat(id.size(), " values"));
    }
    const auto& type = kind_of<PickleGlobal>(id[1], "a storage's type");
    std::optional<at::ScalarType> dtype;
    for (const at::ScalarType known : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                       at::kShort, at::kChar, at::kByte, at::kBool}) {
      if (is(type, "torch", storage_name(known).c_str())) dtype = known;
    }
    if (!dtype) fail("a storage's type that is known", cat(type.module, ".", type.name));
    push({PickleStorage{.key = kind_of<std::string>(id[2], "a storage's key"),
                        .dtype = *dtype,
                        .size = kind_of<int64_t>(id[4], "a storage's size")}});
  }

  void reduce() {
    const auto arguments = kind_of<PickleList>(pop(), "a tuple of arguments").items;
    const PickleGlobal called = kind_of<PickleGlobal>(pop(), "a name");
    if (is(called, "torch._utils", "_rebuild_tensor_v2")) return rebuild(arguments);
    if (is(called, "torch._utils", "_rebuild_parameter") && !arguments.empty()) {
      push({kind_of<Tensor>(arguments[0], "a tensor")});
      return;
    }
    if (is(called, "torch", "Size") && arguments.size() == 1) {
      tuple(kind_of<PickleList>(arguments[0], "a tuple of sizes").items);
      return;
    }
    if (called.module == "collections" && (arguments.empty() || called.name == "defaultdict")) {
      push({PickleDict{}});
      return;
    }
    if (is_opaque(called)) {
      push({PickleOpaque{}});
      return;
    }
    fail("a tensor or a container", cat("a call of ", called.module, ".", called.name));
  }

  std::vector<int64_t> integers(const PickleValue* value) const {
    std::vector<int64_t> found;
    for (const PickleValue* one : kind_of<PickleList>(value, "a tuple of integers").items) {
      found.push_back(kind_of<int64_t>(one, "an integer"));
    }
    if (static_cast<int64_t>(found.size()) > kMaxDimensions) fail("a tensor", cat(found.size(), " dimensions"));
    return found;
  }

  // storage, offset, sizes, strides, ...: all within the storage.
  void rebuild(const Values& arguments) {
    if (arguments.size() < 4) fail("a tensor's storage, offset, sizes and strides", cat(arguments.size(), " values"));
    const auto& storage = kind_of<PickleStorage>(arguments[0], "a tensor's storage");
    const auto offset = kind_of<int64_t>(arguments[1], "a tensor's offset");
    const auto sizes = integers(arguments[2]), strides = integers(arguments[3]);
    bool inside = sizes.size() == strides.size() && offset >= 0 && offset <= storage.size, empty = false;
    int64_t last = offset;  // the farthest element
    for (size_t i = 0; inside && i < sizes.size(); ++i) {
      int64_t step = 0;
      inside = sizes[i] >= 0 && strides[i] >= 0;
      empty = empty || sizes[i] == 0;
      if (sizes[i] > 1) {
        inside = inside && !__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) &&
                 !__builtin_add_overflow(last, step, &last);
      }
    }
    if (!inside || (!empty && last >= storage.size)) {
      fail(cat("a tensor within its storage of ", storage.size, " elements"), "one beyond it");
    }
    push({at::as_strided(load_(storage), sizes, strides, offset)});
  }

  std::span<const uint8_t> bytes_;
  uint64_t at_ = 0;
  const std::string& where_;
  const PickleDocument::LoadStorage& load_;
  std::deque<PickleValue>& values_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // the height of the stack
  std::map<uint64_t, PickleValue*> memo_;
};

}  // namespace

PickleDocument PickleDocument::parse(std::span<const uint8_t> bytes, const std::string& where,
                                     const LoadStorage& load) {
  PickleDocument document;
  document.root_ = Parser(bytes, where, load, document.values_).run();
  return document;
}

}  // namespace hotswap
