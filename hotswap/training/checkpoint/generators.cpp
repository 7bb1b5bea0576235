#include "hotswap/training/checkpoint/generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "hotswap/base/error.h"
#include "hotswap/training/checkpoint/torch_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// The Mersenne Twister's state (Matsumoto and Nishimura, 1998), seeded by one number or by a list of one.
using Twister = std::array<uint32_t, 624>;

Twister seeded(uint32_t seed) {
  Twister state{seed};
  for (uint32_t i = 1; i < state.size(); ++i) {
    state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  }
  return state;
}

Twister seeded_by_list(uint32_t seed) {
  Twister state = seeded(19650218u);
  size_t at = 1;
  const auto next = [&] {
    if (++at < state.size()) return;
    state[0] = state.back();
    at = 1;
  };
  for (size_t i = 0; i < state.size(); ++i, next()) {
    state[at] = (state[at] ^ ((state[at - 1] ^ (state[at - 1] >> 30)) * 1664525u)) + seed;
  }
  for (size_t i = 1; i < state.size(); ++i, next()) {
    state[at] = (state[at] ^ ((state[at - 1] ^ (state[at - 1] >> 30)) * 1566083941u)) - static_cast<uint32_t>(at);
  }
  state[0] = 0x80000000u;
  return state;
}

void write_state(PickleWriter& out, const Twister& state) {
  for (const uint32_t word : state) out.integer(word);
}

at::Generator generator_of(at::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

Tensor generator_state(at::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

Tensor bytes_tensor(const std::string& bytes) {
  Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(tensor.mutable_data_ptr<uint8_t>()));
  return tensor;
}

}  // namespace

std::string generator_states(at::Device device) {
  const auto bytes = [](const Tensor& state) {
    return std::string(reinterpret_cast<const char*>(state.const_data_ptr<uint8_t>()),
                       static_cast<size_t>(state.numel()));
  };
  return bytes(generator_state(at::kCPU)) + (device.is_cuda() ? bytes(generator_state(device)) : "");
}

void save_generators(const fs::path& file, const std::string& states, int64_t seed) {
  const auto cpu_size = static_cast<size_t>(generator_state(at::kCPU).numel());
  TorchFileWriter writer;
  PickleWriter& out = writer.pickle();
  out.begin_dict();
  out.text("python");  // random.getstate()
  out.begin_tuple();
  out.integer(3);
  out.begin_tuple();
  write_state(out, seeded_by_list(static_cast<uint32_t>(seed)));
  out.integer(624);
  out.end_tuple();
  out.none();
  out.end_tuple();
  out.text("numpy");  // numpy.random.get_state()
  out.begin_tuple();
  out.text("MT19937");
  out.begin_list();
  write_state(out, seeded(static_cast<uint32_t>(seed)));
  out.end_list();
  out.integer(624);
  out.integer(0);
  out.number(0);
  out.end_tuple();
  out.text("cpu");
  out.tensor(bytes_tensor(states.substr(0, cpu_size)));
  if (states.size() > cpu_size) {
    out.text("cuda");
    out.tensor(bytes_tensor(states.substr(cpu_size)));
  }
  out.end_dict();
  writer.save(file);
}

void load_generators(const fs::path& file, at::Device device) {
  const TorchFile read(file);
  const auto load = [&](const char* key, at::Device of) {
    const PickleValue* state = read.root().find(key, file.string());
    if (state == nullptr || !std::holds_alternative<Tensor>(state->value)) return;
    const Tensor saved = std::get<Tensor>(state->value).contiguous(), own = generator_state(of);
    if (saved.sizes() != own.sizes() || saved.scalar_type() != own.scalar_type()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("a state of the random number generator of ", own.numel(), " bytes at ", file.string(),
                                 ": ", key),
                   .got = cat(saved.numel(), " elements of ", toString(saved.scalar_type())),
                   .next = "remove this file: training then draws other random values"});
    }
    at::Generator generator = generator_of(of);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(saved);
  };
  load("cpu", at::kCPU);
  if (device.is_cuda()) load("cuda", device);
}

}  // namespace hotswap
