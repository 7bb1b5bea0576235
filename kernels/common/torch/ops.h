// A package's ops: one row each, its schema and its function. From the rows come the definitions and implementations in
// torch's registry, op_names(), call_count(op), isa(), and the module that Python imports. Included by one source of a
// package only.
//   constexpr std::array kOps{
//       kernels::op<&rms_norm>("rms_norm(Tensor x, Tensor weight, ...) -> Tensor"),
//       kernels::cpu_op<&linear>("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor"),
//   };
//   const kernels::Library<kOps> library;
#pragma once

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/torch/binding.h"
#include "kernels/common/torch/string_argument.h"

#ifndef TORCH_EXTENSION_NAME
#error \
    "expected TORCH_EXTENSION_NAME (the package's id); compile through hotswap_kernel() of cmake/hotswap_kernel.cmake"
#endif
#define HOTSWAP_TEXT_(a) #a
#define HOTSWAP_TEXT(a) HOTSWAP_TEXT_(a)  // one more level, so that the id expands
#define HOTSWAP_CAT_(a, b) a##b
#define HOTSWAP_CAT(a, b) HOTSWAP_CAT_(a, b)

namespace kernels {

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

// Of an op's function while its library is loaded.
struct Registered {
  std::atomic<int64_t> calls{0};
  std::string_view name, signature;
};

struct Op {
  std::string_view name, signature;  // silu, (Tensor x) -> Tensor
  Boxed cpu, cuda;                   // cuda: null where only the CPU has it
  Registered* registered;
};

template <auto kFunction>
inline constinit Registered registered{};

template <auto kFunction>
constexpr Boxed kBoxed = &torch::stable::detail::boxer<std::remove_pointer_t<decltype(kFunction)>, kFunction>::boxed_fn;

// ---- names in errors: what an op's function throws about a tensor gets the op's name and the argument's here

// "weight" of index 1 in "(Tensor(a!) x, Tensor? weight=None) -> Tensor".
[[gnu::cold]] inline std::string_view argument_name(std::string_view signature, int64_t index) {
  size_t begin = 1, end = 1;
  for (int depth = 0; end < signature.size(); ++end) {
    const char c = signature[end];
    if (depth == 0 && (c == ',' || c == ')') && index-- == 0) break;
    if (depth == 0 && c == ',') begin = end + 1;
    depth += (c == '(') - (c == ')');
  }
  const std::string_view argument = signature.substr(begin, end - begin),
                         typed = argument.substr(0, argument.find('='));
  return typed.substr(typed.rfind(' ') + 1);
}

// Which of an argument's tensors that one is; -1: none of them.
inline int64_t index_of(AtenTensorHandle handle, const Tensor& t) { return t.get() == handle ? 0 : -1; }
inline int64_t index_of(AtenTensorHandle handle, const std::optional<Tensor>& t) {
  return t.has_value() ? index_of(handle, *t) : -1;
}
inline int64_t index_of(AtenTensorHandle handle, const std::vector<Tensor>& list) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Tensor& t) { return t.get() == handle; });
  return found == list.end() ? -1 : found - list.begin();
}
template <class Other>
int64_t index_of(AtenTensorHandle, const Other&) {
  return -1;
}

template <class... Arguments>
[[noreturn, gnu::cold, gnu::noinline]] void throw_named(const TensorError& error, const Registered& op,
                                                        const Arguments&... arguments) {
  constexpr bool kIsList[] = {std::is_same_v<Arguments, std::vector<Tensor>>...};
  const int64_t places[] = {index_of(error.tensor, arguments)...};
  for (size_t i = 0; i < sizeof...(Arguments); ++i) {
    if (places[i] < 0) continue;
    std::ostringstream text;
    text << op.name << ": expected " << argument_name(op.signature, int64_t(i));
    if (kIsList[i]) text << "[" << places[i] << "]";
    text << " " << error.text;
    throw std::runtime_error(text.str());
  }
  throw std::runtime_error(std::string(op.name) + ": " + error.what());  // a tensor that the function made
}

// The function with names in its errors, which cost a call without an error nothing: the arguments stay where the boxed
// function holds them, and an exception is looked up only when it is thrown.
template <auto kFunction, class Function = decltype(kFunction)>
struct Named;
template <auto kFunction, class Result, class... Arguments>
struct Named<kFunction, Result (*)(Arguments...)> {
  static Result call(const std::remove_cvref_t<Arguments>&... arguments) {
    try {
      return kFunction(arguments...);
    } catch (const TensorError& error) {
      throw_named(error, registered<kFunction>, arguments...);
    }
  }
};

template <auto kFunction>
void counted(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  registered<kFunction>.calls.fetch_add(1, std::memory_order_relaxed);
  kBoxed<&Named<kFunction>::call>(stack, inputs, outputs);
}

template <class Function>
constexpr bool kTakesTensorFirst = false;
template <class Result, class First, class... Rest>
constexpr bool kTakesTensorFirst<Result (*)(First, Rest...)> = std::is_same_v<std::remove_cvref_t<First>, Tensor>;

// The op on a GPU. The first tensor's device is the current one from before the arguments are looked at until the
// results are there: CUDA plans, sets attributes, makes cuBLAS handles and launches for the current device, and which
// one that is when the op is called is the caller's business. Every op for a GPU is registered through this function.
template <auto kFunction>
void counted_on_its_gpu(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  static_assert(kTakesTensorFirst<decltype(kFunction)>,
                "expected a tensor as the op's first argument: it names the GPU");
  const Device device = device_of(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
  if (device.is_cpu()) return counted<kFunction>(stack, inputs, outputs);  // mixed devices: the op's error names them
  const torch::stable::accelerator::DeviceGuard guard(device.index);
  counted<kFunction>(stack, inputs, outputs);
}

// On every device that the package is built for: the function looks where its tensors are (run_on).
template <auto kFunction>
constexpr Op op(std::string_view name, std::string_view signature) {
  return {name, signature, &counted<kFunction>, &counted_on_its_gpu<kFunction>, &registered<kFunction>};
}
template <auto kFunction>
constexpr Op op(std::string_view schema) {
  const size_t end = schema.find('(');
  return op<kFunction>(schema.substr(0, end), schema.substr(end));
}
template <auto kFunction>
constexpr Op cpu_op(std::string_view schema) {
  const size_t end = schema.find('(');
  return {schema.substr(0, end), schema.substr(end), &counted<kFunction>, nullptr, &registered<kFunction>};
}

// For a family of ops that differ in name and one constant: the name as a template argument, which reaches the errors
// too.
//   template <Name kName, Act kAct> Tensor act(const Tensor& x) { return unary(kName.text, x, kAct); }
template <size_t kSize>
struct Name {
  char text[kSize]{};
  constexpr Name() = default;
  constexpr Name(const char (&letters)[kSize]) { std::copy_n(letters, kSize, text); }
  template <size_t kMore>
  constexpr Name<kSize + kMore - 1> operator+(const char (&more)[kMore]) const {
    Name<kSize + kMore - 1> both;
    std::copy_n(text, kSize - 1, both.text);
    std::copy_n(more, kMore, both.text + kSize - 1);
    return both;
  }
};

template <size_t... kSizes>
constexpr auto join(const std::array<Op, kSizes>&... some) {
  std::array<Op, (kSizes + ...)> all{};
  Op* next = all.data();
  ((next = std::copy(some.begin(), some.end(), next)), ...);
  return all;
}

template <const auto& kOps>
[[gnu::cold]] std::string op_names() {
  std::string names;
  for (const Op& o : kOps) (names += names.empty() ? "" : " ") += o.name;
  return names;
}

template <const auto& kOps>
[[gnu::cold]] int64_t call_count(std::string name) {
  for (const Op& o : kOps) {
    if (name == o.name) return o.registered->calls.load(std::memory_order_relaxed);
  }
  check(false, "call_count: expected one of ", op_names<kOps>(), "; got \"", name,
        "\"; pass the name of an op of this package");
  return 0;
}

inline std::string isa() { return isa_name(chosen_isa()); }

// The ops in torch's registry, as long as the library is loaded.
template <const auto& kOps>
class Library {
 public:
  [[gnu::cold]] Library() {
    for (const Op& o : kOps) {
      o.registered->name = o.name, o.registered->signature = o.signature;
      std::string text(o.name);
      cpu_.impl(text.c_str(), o.cpu);
#if defined(CUDA_KERNEL)
      if (o.cuda != nullptr) cuda_.impl(text.c_str(), o.cuda);
#endif
      definitions_.def(text.append(o.signature).c_str());
    }
    definitions_.def("op_names() -> str").def("call_count(str op) -> int").def("isa() -> str");
    any_.impl("op_names", kBoxed<&op_names<kOps>>)
        .impl("call_count", kBoxed<&call_count<kOps>>)
        .impl("isa", kBoxed<&isa>);
  }

 private:
  using Registry = torch::stable::detail::StableLibrary;
  static constexpr const char* kId = HOTSWAP_TEXT(TORCH_EXTENSION_NAME);
  Registry definitions_{Registry::Kind::DEF, kId, nullptr, __FILE__, __LINE__};
  Registry cpu_{Registry::Kind::IMPL, kId, "CPU", __FILE__, __LINE__};
#if defined(CUDA_KERNEL)
  Registry cuda_{Registry::Kind::IMPL, kId, "CUDA", __FILE__, __LINE__};
#endif
  Registry any_{Registry::Kind::IMPL, kId, "CompositeExplicitAutograd", __FILE__, __LINE__};
};

struct PyModuleDef {  // the stable ABI's layout of PyModuleDef (Python >= 3.9, not the free-threaded build)
  intptr_t refcount = 1;
  void* type = nullptr;
  void *init = nullptr, *index = nullptr, *copy = nullptr;
  const char *name = "ext", *doc = nullptr;
  intptr_t size = 0;
  void *methods = nullptr, *slots = nullptr, *traverse = nullptr, *clear = nullptr, *free = nullptr;
};

}  // namespace kernels

// Python imports the library as a module: an empty one, made without Python.h. PyModule_Create2 is weak, so that a
// process without Python can dlopen(RTLD_NOW) this file.
extern "C" {
__attribute__((weak)) void* PyModule_Create2(kernels::PyModuleDef*, int);
__attribute__((visibility("default"))) void* HOTSWAP_CAT(PyInit_, TORCH_EXTENSION_NAME)() {
  static kernels::PyModuleDef def;
  return PyModule_Create2(&def, 3);
}
}
