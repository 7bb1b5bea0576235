// The part of TVM FFI's C ABI (apache-tvm-ffi 0.1) that is needed to call a library that registers its types with it.
// Objects are counted by the library; a Value holds one reference.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap::grammar {

namespace ffi {

// A value as it crosses the boundary.
struct Any {
  int32_t type = 0;
  uint32_t small_length = 0;  // of a short text that is stored in place
  union {
    int64_t integer = 0;
    double real;
    void* pointer;
    char text[8];
  };
};
static_assert(sizeof(Any) == 16);

struct ByteArray {
  const char* data;
  size_t size;
};

struct Tensor {  // DLPack's DLTensor
  void* data;
  int32_t device_type, device_id;
  int32_t dims;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

}  // namespace ffi

// The two libraries: that of the ABI, and one that registers types with it. They stay loaded.
class FfiLibrary : public std::enable_shared_from_this<FfiLibrary> {
 public:
  class Value {
   public:
    Value() = default;
    Value(std::shared_ptr<const FfiLibrary> library, ffi::Any any) : library_(std::move(library)), any_(any) {}
    Value(Value&& other) noexcept : library_(std::move(other.library_)), any_(std::exchange(other.any_, {})) {}
    Value& operator=(Value&& other) noexcept {
      std::swap(library_, other.library_);
      std::swap(any_, other.any_);
      return *this;
    }
    ~Value();
    const ffi::Any& any() const { return any_; }
    bool as_bool() const { return any_.integer != 0; }
    int64_t as_int() const { return any_.integer; }

   private:
    std::shared_ptr<const FfiLibrary> library_;
    ffi::Any any_;
  };

  // Error (kUnsupported) where a file cannot be loaded or lacks a function.
  static std::shared_ptr<const FfiLibrary> load(const std::filesystem::path& abi, const std::filesystem::path& library);

  std::array<uint32_t, 3> version() const;  // of the ABI
  // A method of a registered type, with the count of its arguments that the caller expects, itself included. Error
  // (kUnsupported) where there is no such method, or one with another count.
  void* method(const std::string& type, const std::string& name, size_t arguments) const;
  // Error (kInvalidArgument) with the callee's message where it fails.
  Value call(void* function, std::span<const ffi::Any> arguments) const;
  Value array(std::span<const ffi::Any> elements) const;
  Value bytes(std::string_view text) const;
  Value text(std::string_view text) const;

  static ffi::Any of(int64_t value);
  static ffi::Any of_bool(bool value);
  static ffi::Any of(const ffi::Tensor& tensor);
  static ffi::Any none() { return {}; }

 private:
  struct Functions;
  explicit FfiLibrary(std::unique_ptr<Functions> functions);
  [[noreturn]] void throw_raised(const std::string& what) const;
  std::unique_ptr<Functions> functions_;
};

}  // namespace hotswap::grammar
