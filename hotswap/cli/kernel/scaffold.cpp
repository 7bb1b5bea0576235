#include "hotswap/cli/kernel/scaffold.h"

#include <algorithm>
#include <string_view>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// @NAME@ is the package's name, @PY@ the same with '_' for '-', @HUB@ the table of its place on the Hub.
struct FileTemplate {
  const char* path;
  const char* text;
};

constexpr FileTemplate kTemplates[] = {
    {"build.toml", R"toml([general]
name = "@NAME@"
version = 1
edition = 5
license = "apache-2.0"
backends = ["cpu"]
@HUB@
[torch]
src = ["torch-ext/torch_binding.cpp"]
stable-abi = "2.10"

[kernel.@PY@_cpu]
backend = "cpu"
depends = ["torch"]
src = ["@PY@.h", "@PY@_cpu.cpp"]
)toml"},
    {"@PY@.h", R"text(// SiLU:  y = x s,  s = 1 / (1 + exp(-x));  dx = dy s (1 + x (1 - s)).  float32 throughout.
#pragma once

#include <cstdint>

namespace @PY@ {

// n numbers each; the output may be an input.
void silu(float* y, const float* x, int64_t n);
void silu_backward(float* dx, const float* dy, const float* x, int64_t n);

}  // namespace @PY@
)text"},
    {"@PY@_cpu.cpp", R"text(#include <cmath>

#include "@PY@.h"

namespace @PY@ {

void silu(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] / (1.f + std::exp(-x[i]));
}

void silu_backward(float* dx, const float* dy, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float s = 1.f / (1.f + std::exp(-x[i]));
    dx[i] = dy[i] * s * (1.f + x[i] * (1.f - s));
  }
}

}  // namespace @PY@
)text"},
    {"torch-ext/torch_binding.cpp",
     R"text(// Schemas, checks, registrations: torch's stable ABI only, so that one binary serves every torch from 2.10 on,
// and loads with and without Python.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "../@PY@.h"

// One more level than torch's macros, so that TORCH_EXTENSION_NAME (the package's id, from the build) expands.
#define LIBRARY(ns, m) STABLE_TORCH_LIBRARY(ns, m)
#define LIBRARY_IMPL(ns, key, m) STABLE_TORCH_LIBRARY_IMPL(ns, key, m)
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 8192;  // elements a thread, at least

std::atomic<int64_t> silu_calls{0}, silu_bwd_calls{0};

void check_float(const Tensor& t, const char* what) {
  if (t.scalar_type() == ScalarType::Float) return;
  throw std::runtime_error(std::string(what) + ": expected float32; got " +
                           torch::headeronly::toString(t.scalar_type()) + "; cast it first");
}

const float* read(const Tensor& t) { return static_cast<const float*>(t.data_ptr()); }

Tensor silu(const Tensor& x) {
  ++silu_calls;
  check_float(x, "silu: x");
  const Tensor in = torch::stable::contiguous(x);
  Tensor y = torch::stable::empty_like(in);
  float* out = static_cast<float*>(y.data_ptr());
  torch::stable::parallel_for(0, in.numel(), kGrain, [&](int64_t begin, int64_t end) {
    @PY@ ::silu(out + begin, read(in) + begin, end - begin);
  });
  return y;
}

Tensor silu_bwd(const Tensor& dy, const Tensor& x) {
  ++silu_bwd_calls;
  check_float(x, "silu_bwd: x");
  check_float(dy, "silu_bwd: dy");
  if (dy.numel() != x.numel()) {
    throw std::runtime_error("silu_bwd: expected dy in the shape of x; got " + std::to_string(dy.numel()) +
                             " numbers for " + std::to_string(x.numel()) + "; pass the gradient of the op's output");
  }
  const Tensor in = torch::stable::contiguous(x), grad = torch::stable::contiguous(dy);
  Tensor dx = torch::stable::empty_like(in);
  float* out = static_cast<float*>(dx.data_ptr());
  torch::stable::parallel_for(0, in.numel(), kGrain, [&](int64_t begin, int64_t end) {
    @PY@ ::silu_backward(out + begin, read(grad) + begin, read(in) + begin, end - begin);
  });
  return dx;
}

// Which path ran? Tests ask.
int64_t call_count(std::string op) {
  if (op == "silu") return silu_calls;
  if (op == "silu_bwd") return silu_bwd_calls;
  throw std::runtime_error("call_count: expected silu or silu_bwd; got '" + op + "'");
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("silu(Tensor x) -> Tensor");
  m.def("silu_bwd(Tensor dy, Tensor x) -> Tensor");
  m.def("call_count(str op) -> int");
}

LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) {
  m.impl("silu", TORCH_BOX(&silu));
  m.impl("silu_bwd", TORCH_BOX(&silu_bwd));
}

LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) { m.impl("call_count", TORCH_BOX(&call_count)); }

// Python imports the library as an empty module. Made without Python.h, by a weak symbol: a process without
// Python can dlopen the same file. The struct is the stable ABI's PyModuleDef (Python >= 3.9).
namespace {
struct ModuleDef {
  intptr_t refcount = 1;
  void* type = nullptr;
  void *init = nullptr, *index = nullptr, *copy = nullptr;
  const char *name = "ext", *doc = nullptr;
  intptr_t size = 0;
  void *methods = nullptr, *slots = nullptr, *traverse = nullptr, *clear = nullptr, *free = nullptr;
};
}  // namespace
extern "C" {
__attribute__((weak)) void* PyModule_Create2(ModuleDef*, int);
__attribute__((visibility("default"))) void* CAT(PyInit_, TORCH_EXTENSION_NAME)() {
  static ModuleDef def;
  return PyModule_Create2(&def, 3);
}
}
)text"},
    {"torch-ext/@PY@/__init__.py", R"py("""SiLU for the CPU: the op with fake and autograd, the layer in `layers`."""

import torch

from . import layers
from ._ops import add_op_namespace_prefix, ops


def _like(x):  # what the ops return, also for strided x
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy):
    return ops.silu_bwd(dy, *ctx.saved_tensors)


if not hasattr(ops, "python_registered"):  # the same package may be imported again through another path
    torch.library.register_fake(add_op_namespace_prefix("silu"))(_like)
    torch.library.register_fake(add_op_namespace_prefix("silu_bwd"))(lambda dy, x: _like(x))
    torch.library.register_autograd(add_op_namespace_prefix("silu"), _backward, setup_context=_setup)
    ops.python_registered = True

silu = ops.silu

__all__ = ["layers", "silu"]
)py"},
    {"torch-ext/@PY@/layers.py", R"py(from torch import nn

from ._ops import ops


class SiLU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.silu(input)
)py"},
    {"layers.json", R"json({
  "schema": 2,
  "defaults": {
    "contract": "activation/1",
    "capabilities": {"backward": true, "deterministic": true, "dtypes": ["float32"]}
  },
  "layers": {
    "SiLU": {"ops": {"forward": "silu", "forward_train": "silu", "backward": "silu_bwd"}}
  },
  "stands_in_for": []
}
)json"},
    {"tests/test_@PY@.py", R"py("""The built package as a user loads it. Run it with python, or with pytest."""

from pathlib import Path

import torch
from kernels import get_local_kernel

kernel = get_local_kernel(Path(__file__).resolve().parent.parent, backend="cpu")
ops = kernel._ops.ops
SHAPES = [(3, 7), (1,), (0, 5), (2, 3, 8192)]


def test_values_and_gradients_match_float64():
    for shape in SHAPES:
        x = torch.randn(*shape, requires_grad=True)
        dy = torch.randn(*shape)
        before = ops.call_count("silu"), ops.call_count("silu_bwd")
        y = kernel.layers.SiLU()(x)
        y.backward(dy)
        assert (ops.call_count("silu"), ops.call_count("silu_bwd")) == (before[0] + 1, before[1] + 1)
        exact = x.detach().double().requires_grad_()
        want = torch.nn.functional.silu(exact)
        want.backward(dy.double())
        torch.testing.assert_close(y.double(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-6, atol=1e-6)


def test_strided_input():
    x = torch.randn(6, 4).t()
    torch.testing.assert_close(kernel.silu(x), torch.nn.functional.silu(x))


def test_other_dtypes_are_refused():
    try:
        kernel.silu(torch.zeros(2, dtype=torch.float64))
    except RuntimeError as error:
        assert "expected float32" in str(error)
    else:
        raise AssertionError("float64 was taken")


if __name__ == "__main__":
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print(name, "passed")
)py"},
    {"CMakeLists.txt", R"cmake(# cmake -B cmake-build && cmake --build cmake-build && ctest --test-dir cmake-build
# `hotswap kernel build` does the work; Python is one that has torch and kernels.
cmake_minimum_required(VERSION 3.22)
project(@PY@ LANGUAGES NONE)
find_program(HOTSWAP hotswap REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_custom_target(package ALL COMMAND "${HOTSWAP}" kernel build "${CMAKE_CURRENT_SOURCE_DIR}" VERBATIM)
enable_testing()
add_test(NAME python COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/tests/test_@PY@.py")
)cmake"},
    {"CARD.md", R"md(# @NAME@

SiLU, `x / (1 + exp(-x))`, for the CPU, forward and backward, in float32. Deterministic: each number by itself.
)md"},
    {".gitignore", "build/\ncmake-build/\n__pycache__/\n"},
};

// The name is a namespace of C++ and a module of Python; these are something else there.
constexpr std::string_view kTaken[] = {"alignas",
                                       "alignof",
                                       "and",
                                       "and_eq",
                                       "as",
                                       "asm",
                                       "assert",
                                       "async",
                                       "at",
                                       "auto",
                                       "await",
                                       "bitand",
                                       "bitor",
                                       "bool",
                                       "break",
                                       "c10",
                                       "case",
                                       "catch",
                                       "char",
                                       "char16_t",
                                       "char32_t",
                                       "char8_t",
                                       "class",
                                       "co_await",
                                       "co_return",
                                       "co_yield",
                                       "compl",
                                       "concept",
                                       "const",
                                       "const_cast",
                                       "consteval",
                                       "constexpr",
                                       "constinit",
                                       "continue",
                                       "decltype",
                                       "def",
                                       "default",
                                       "del",
                                       "delete",
                                       "do",
                                       "double",
                                       "dynamic_cast",
                                       "elif",
                                       "else",
                                       "enum",
                                       "except",
                                       "explicit",
                                       "export",
                                       "extern",
                                       "false",
                                       "finally",
                                       "float",
                                       "for",
                                       "friend",
                                       "from",
                                       "global",
                                       "goto",
                                       "if",
                                       "import",
                                       "in",
                                       "inline",
                                       "int",
                                       "is",
                                       "kernels",
                                       "lambda",
                                       "linux",
                                       "long",
                                       "main",
                                       "mutable",
                                       "namespace",
                                       "new",
                                       "noexcept",
                                       "nonlocal",
                                       "not",
                                       "not_eq",
                                       "nullptr",
                                       "operator",
                                       "or",
                                       "or_eq",
                                       "pass",
                                       "private",
                                       "protected",
                                       "public",
                                       "raise",
                                       "register",
                                       "reinterpret_cast",
                                       "requires",
                                       "return",
                                       "short",
                                       "signed",
                                       "sizeof",
                                       "static",
                                       "static_assert",
                                       "static_cast",
                                       "std",
                                       "struct",
                                       "switch",
                                       "template",
                                       "this",
                                       "thread_local",
                                       "throw",
                                       "torch",
                                       "true",
                                       "try",
                                       "typedef",
                                       "typeid",
                                       "typename",
                                       "union",
                                       "unix",
                                       "unsigned",
                                       "using",
                                       "virtual",
                                       "void",
                                       "volatile",
                                       "wchar_t",
                                       "while",
                                       "with",
                                       "xor",
                                       "xor_eq",
                                       "yield"};

std::string python_name(const Scaffold& scaffold) {
  std::string name = scaffold.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string filled(std::string text, const Scaffold& scaffold) {
  const std::string python = python_name(scaffold);
  const std::string hub = scaffold.repo.empty() ? "" : cat("\n[general.hub]\nrepo-id = \"", scaffold.repo, "\"\n");
  for (const auto& [key, value] :
       {std::pair<std::string, std::string>{"@NAME@", scaffold.name}, {"@PY@", python}, {"@HUB@", hub}}) {
    for (size_t at = 0; (at = text.find(key, at)) != text.npos; at += value.size()) text.replace(at, key.size(), value);
  }
  return text;
}

}  // namespace

std::vector<std::string> write_scaffold(const Scaffold& scaffold) {
  if (!is_kernel_name(scaffold.name)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a package's name: small letters, digits and '-', from a letter on, at least two",
                 .got = "'" + scaffold.name + "'",
                 .next = "name it with --name"});
  }
  if (std::find(std::begin(kTaken), std::end(kTaken), python_name(scaffold)) != std::end(kTaken)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a package's name that can be a namespace of C++ and a module of Python",
                 .got = "'" + scaffold.name + "', which means something else there",
                 .next = "choose another with --name, such as my-" + scaffold.name});
  }
  if (!scaffold.repo.empty()) check_repo_with_publisher({RepoType::kKernel, scaffold.repo});
  if (fs::exists(scaffold.folder) && (!fs::is_directory(scaffold.folder) || !fs::is_empty(scaffold.folder))) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a folder that is not there yet, or empty",
                 .got = scaffold.folder.string() + ", which holds something",
                 .next = "name another one"});
  }
  std::vector<std::string> names;
  for (const FileTemplate& one : kTemplates) {
    names.push_back(filled(one.path, scaffold));
    const fs::path file = scaffold.folder / names.back();
    fs::create_directories(file.parent_path());
    write_file(file, filled(one.text, scaffold));
  }
  return names;
}

}  // namespace hotswap
