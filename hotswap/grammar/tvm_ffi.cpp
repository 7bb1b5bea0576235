#include "hotswap/grammar/tvm_ffi.h"

#include <dlfcn.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "hotswap/base/error.h"

namespace hotswap::grammar {
namespace {

// Of the ABI's tags; from kFirstObject on a value is a counted object.
constexpr int32_t kInt = 1, kBool = 2, kTensor = 7, kFirstObject = 64;

struct Object {  // what every counted object begins with
  uint64_t counts;
  int32_t type;
  uint32_t padding;
  void (*deleter)(void*, int);
};

struct ErrorObject {
  Object header;
  ffi::ByteArray kind, message;  // more follows
};

struct MethodInfo {
  ffi::ByteArray name, doc, metadata;
  int64_t flags;
  ffi::Any method;
};

struct TypeInfo {
  int32_t type, depth;
  ffi::ByteArray key;
  const TypeInfo** ancestors;
  uint64_t key_hash;
  int32_t fields_count, methods_count;
  const void* fields;
  const MethodInfo* methods;
  const void* metadata;
};

ffi::ByteArray view(std::string_view text) { return {text.data(), text.size()}; }
std::string text_of(const ffi::ByteArray& bytes) {
  return bytes.data == nullptr ? "" : std::string(bytes.data, bytes.size);
}

void* opened(const std::filesystem::path& file) {
  if (void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return handle;
  const char* why = ::dlerror();
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a library that loads: " + file.string(),
               .got = why != nullptr ? why : "a failure without a reason",
               .next = "install xgrammar again"});
}

// Of a method: {"type_schema": "{\"named_args\": {\"return\": [...], \"params\": [...]}}"}. None: not stated in this
// form.
std::optional<size_t> arguments_of(const std::string& metadata) {
  const auto outer = nlohmann::json::parse(metadata, nullptr, /*allow_exceptions=*/false);
  if (!outer.is_object() || !outer.contains("type_schema") || !outer["type_schema"].is_string()) return std::nullopt;
  const auto types = nlohmann::json::parse(outer["type_schema"].get<std::string>(), nullptr, false);
  const nlohmann::json::json_pointer parameters("/named_args/params");
  if (!types.is_object() || !types.contains(parameters) || !types[parameters].is_array()) return std::nullopt;
  return types[parameters].size();
}

}  // namespace

struct FfiLibrary::Functions {
  void (*get_version)(uint32_t* version) = nullptr;  // [3]
  int (*type_index)(const ffi::ByteArray* key, int32_t* index) = nullptr;
  const TypeInfo* (*type_info)(int32_t index) = nullptr;
  int (*get_global)(const ffi::ByteArray* name, void** function) = nullptr;
  int (*call)(void* function, ffi::Any* arguments, int32_t count, ffi::Any* result) = nullptr;
  void (*move_raised)(void** error) = nullptr;
  int (*drop)(void* object) = nullptr;
  int (*make_bytes)(const ffi::ByteArray* text, ffi::Any* out) = nullptr;
  int (*make_text)(const ffi::ByteArray* text, ffi::Any* out) = nullptr;
  void* make_array = nullptr;

  template <class Function>
  void find(void* library, const char* name, Function& to) {
    to = reinterpret_cast<Function>(::dlsym(library, name));
    if (to != nullptr) return;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a TVM FFI library with the function ", name),
                 .got = "one without",
                 .next = "install apache-tvm-ffi 0.1.15"});
  }
};

FfiLibrary::FfiLibrary(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}

FfiLibrary::Value::~Value() {
  if (any_.type >= kFirstObject && any_.pointer != nullptr) library_->functions_->drop(any_.pointer);
}

std::shared_ptr<const FfiLibrary> FfiLibrary::load(const std::filesystem::path& abi,
                                                   const std::filesystem::path& library) {
  void* handle = opened(abi);
  auto functions = std::make_unique<Functions>();
  Functions& f = *functions;
  f.find(handle, "TVMFFIGetVersion", f.get_version);
  f.find(handle, "TVMFFITypeKeyToIndex", f.type_index);
  f.find(handle, "TVMFFIGetTypeInfo", f.type_info);
  f.find(handle, "TVMFFIFunctionGetGlobal", f.get_global);
  f.find(handle, "TVMFFIFunctionCall", f.call);
  f.find(handle, "TVMFFIErrorMoveFromRaised", f.move_raised);
  f.find(handle, "TVMFFIObjectDecRef", f.drop);
  f.find(handle, "TVMFFIBytesFromByteArray", f.make_bytes);
  f.find(handle, "TVMFFIStringFromByteArray", f.make_text);
  opened(library);  // finds the first by its soname: it is in the process already
  const ffi::ByteArray name = view("ffi.Array");
  if (f.get_global(&name, &f.make_array) != 0 || f.make_array == nullptr) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a TVM FFI library with the function ffi.Array",
                 .got = "one without",
                 .next = "install apache-tvm-ffi 0.1.15"});
  }
  return std::shared_ptr<const FfiLibrary>(new FfiLibrary(std::move(functions)));
}

std::array<uint32_t, 3> FfiLibrary::version() const {
  std::array<uint32_t, 3> version{};
  functions_->get_version(version.data());
  return version;
}

void* FfiLibrary::method(const std::string& type, const std::string& name, size_t arguments) const {
  const ffi::ByteArray key = view(type);
  int32_t index = 0;
  const TypeInfo* info = functions_->type_index(&key, &index) == 0 ? functions_->type_info(index) : nullptr;
  const auto fail = [&](const std::string& got) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("xgrammar's ", type, ".", name, " with ", arguments, " arguments"),
                 .got = got,
                 .next = "install a version of xgrammar that hotswap was tested with"});
  };
  if (info == nullptr) fail("no such type");
  for (int32_t i = 0; i < info->methods_count; ++i) {
    const MethodInfo& found = info->methods[i];
    if (text_of(found.name) != name) continue;
    const auto count = arguments_of(text_of(found.metadata));
    if (!count) fail("one whose arguments are not stated");
    if (*count != arguments) fail(cat("one with ", *count));
    return found.method.pointer;
  }
  fail("no such method");
  return nullptr;
}

void FfiLibrary::throw_raised(const std::string& what) const {
  void* raised = nullptr;
  functions_->move_raised(&raised);
  std::string message = "no message";
  if (raised != nullptr) {
    message = text_of(static_cast<const ErrorObject*>(raised)->message);
    functions_->drop(raised);
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = what,
               .got = message.substr(0, message.find('\n')).substr(0, 300),
               .next = "correct it"});
}

FfiLibrary::Value FfiLibrary::call(void* function, std::span<const ffi::Any> arguments) const {
  ffi::Any result;
  auto* first = const_cast<ffi::Any*>(arguments.data());
  if (functions_->call(function, first, static_cast<int32_t>(arguments.size()), &result) != 0) {
    throw_raised("a grammar that xgrammar takes");
  }
  return {shared_from_this(), result};
}

FfiLibrary::Value FfiLibrary::array(std::span<const ffi::Any> elements) const {
  return call(functions_->make_array, elements);
}

FfiLibrary::Value FfiLibrary::bytes(std::string_view text) const {
  const ffi::ByteArray bytes = view(text);
  ffi::Any result;
  if (functions_->make_bytes(&bytes, &result) != 0) throw_raised("memory for a text");
  return {shared_from_this(), result};
}

FfiLibrary::Value FfiLibrary::text(std::string_view text) const {
  const ffi::ByteArray bytes = view(text);
  ffi::Any result;
  if (functions_->make_text(&bytes, &result) != 0) throw_raised("memory for a text");
  return {shared_from_this(), result};
}

ffi::Any FfiLibrary::of(int64_t value) {
  ffi::Any any;
  any.type = kInt;
  any.integer = value;
  return any;
}

ffi::Any FfiLibrary::of_bool(bool value) {
  ffi::Any any = of(static_cast<int64_t>(value));
  any.type = kBool;
  return any;
}

ffi::Any FfiLibrary::of(const ffi::Tensor& tensor) {
  ffi::Any any;
  any.type = kTensor;
  any.pointer = const_cast<ffi::Tensor*>(&tensor);
  return any;
}

}  // namespace hotswap::grammar
