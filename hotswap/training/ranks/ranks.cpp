#include "hotswap/training/ranks/ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "hotswap/base/cuda_library.h"
#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/training/ranks/nccl.h"
#include "hotswap/training/ranks/ranks_impl.h"

namespace hotswap {
namespace {

using std::chrono::milliseconds;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, const RankEnvironment& e,
                                            milliseconds timeout, at::Device device) {
  static const Result<void*> made = cuda_library_symbol(kMakeNccl);
  if (!made) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "NCCL, for a model that ranks train on GPUs",
                 .got = made.why(),
                 .next = "build where torch is one for CUDA, or train on the CPU (use_cpu)"});
  }
  // Later than Heartbeat's time-out, which names the rank: NCCL's own only ends the process.
  const NcclArguments arguments{store.get(), e.rank, e.size, timeout.count() + 30'000, device.index()};
  return c10::intrusive_ptr<c10d::Backend>::reclaim(reinterpret_cast<MakeNccl*>(*made)(arguments));
}

Group make_group(const c10::intrusive_ptr<c10d::Store>& store, const RankEnvironment& e, milliseconds timeout,
                 at::Device device) {
  using Type = c10d::ProcessGroup::BackendType;
  Group group = c10::make_intrusive<c10d::ProcessGroup>(store, e.rank, e.size);
  group->setGroupName("hotswap");
  if (device.is_cuda()) group->setBoundDeviceId(device);
  group->setBackend(c10::DeviceType::CPU, Type::GLOO, make_gloo(store, e.rank, e.size, timeout));
  group->setDefaultBackend(Type::GLOO);
  if (device.is_cuda()) {
    group->setBackend(c10::DeviceType::CUDA, Type::NCCL, make_nccl(store, e, timeout, device));
    group->setDefaultBackend(Type::NCCL);
  }
  return group;
}

// A collective of NCCL never ends by itself where a rank is gone, nor does a copy that waits for it.
void end_process(const std::string& lost) {
  const std::string message = cat("the ranks train no further: ", lost);
  log_line(LogLevel::kError, message);
  write_rank_error(message);
  std::_Exit(75);  // EX_TEMPFAIL, as of any other Error that is kUnavailable
}

std::vector<double> reduced(const Group& group, const std::vector<double>& values, c10d::ReduceOp::RedOpType op) {
  std::vector<Tensor> tensors{at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kDouble))};
  std::copy(values.begin(), values.end(), tensors[0].mutable_data_ptr<double>());
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  group->allreduce(tensors, options)->wait();
  const double* out = tensors[0].const_data_ptr<double>();
  return {out, out + values.size()};
}

Tensor tensor_of(const std::string& bytes, int64_t size) {
  Tensor tensor = at::zeros({size}, at::TensorOptions(at::kByte));
  std::memcpy(tensor.mutable_data_ptr<uint8_t>(), bytes.data(), bytes.size());
  return tensor;
}

std::string bytes_in(const Tensor& tensor, size_t size) {
  return {reinterpret_cast<const char*>(tensor.const_data_ptr<uint8_t>()), size};
}

constexpr int kStateTag = 1;  // of what send_to_first() sends

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

[[noreturn]] void not_all(const RankEnvironment& environment, const RanksOptions& options, const std::string& got) {
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("all ", environment.size, " ranks within ", options.timeout, " s (ddp_timeout)"),
               .got = got,
               .next = "start as many processes as WORLD_SIZE is, on machines that can connect to each other"});
}

}  // namespace

Ranks::Ranks(const RankEnvironment& environment, const RanksOptions& options) : parts_(std::make_unique<Parts>()) {
  const milliseconds timeout(std::max<int64_t>(1, static_cast<int64_t>(options.timeout * 1000)));
  Parts& p = *parts_;
  p.environment = environment;
  p.store = open_store(environment, timeout);
  Heartbeat::Options beats{.rank = environment.rank,
                           .size = environment.size,
                           .timeout = timeout,
                           .store_name = cat(environment.master_address, ":", environment.master_port)};
  if (options.device.is_cuda()) beats.on_lost = end_process;
  p.heartbeat = std::make_unique<Heartbeat>(p.store->clone(), std::move(beats));
  p.heartbeat->beat();
  if (const auto missing = p.heartbeat->wait_for_all(); !missing.empty()) {
    not_all(environment, options, cat("no rank ", join(missing)));
  }
  try {
    p.group = make_group(p.store, environment, timeout, options.device);
    barrier();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    not_all(environment, options, first_line(error.what()));
  }
  p.heartbeat->start();
}

Ranks::~Ranks() {
  parts_->heartbeat->stop();
  if (parts_->broken || std::uncaught_exceptions() > 0) return;
  try {
    barrier();  // rank 0 may serve the store: it leaves when no other rank needs it any more
  } catch (const std::exception& error) {
    log_warning("rank ", rank(), " ends, and another rank has ended before it: ", error.what());
    return;
  }
  for (const c10::Device& device : parts_->group->getDeviceTypes())
    parts_->group->getBackend(device.type())->shutdown();
}

int Ranks::rank() const { return parts_->environment.rank; }
int Ranks::size() const { return parts_->environment.size; }
int Ranks::restarts() const { return parts_->environment.restarts; }

std::vector<double> Ranks::sum(const std::vector<double>& values) {
  parts_->heartbeat->in_collective();
  return reduced(parts_->group, values, c10d::ReduceOp::SUM);
}
std::vector<double> Ranks::max(const std::vector<double>& values) {
  parts_->heartbeat->in_collective();
  return reduced(parts_->group, values, c10d::ReduceOp::MAX);
}

std::string Ranks::from_first(const std::string& text) {
  const auto size = static_cast<size_t>(sum({is_first() ? static_cast<double>(text.size()) : 0})[0]);
  if (size == 0) return {};
  std::vector<Tensor> tensors{tensor_of(is_first() ? text : std::string(), static_cast<int64_t>(size))};
  parts_->group->broadcast(tensors)->wait();
  return bytes_in(tensors[0], size);
}

std::vector<std::string> Ranks::to_first(const std::string& bytes) {
  std::vector<double> sizes(static_cast<size_t>(size()), 0);
  sizes[static_cast<size_t>(rank())] = static_cast<double>(bytes.size());
  sizes = sum(sizes);
  const auto longest = std::max<int64_t>(1, static_cast<int64_t>(*std::max_element(sizes.begin(), sizes.end())));
  std::vector<Tensor> own{tensor_of(bytes, longest)};
  std::vector<std::vector<Tensor>> all;
  if (is_first()) {
    all.emplace_back();
    for (int i = 0; i < size(); ++i) all[0].push_back(tensor_of({}, longest));
  }
  parts_->group->gather(all, own, c10d::GatherOptions{})->wait();
  std::vector<std::string> texts;
  for (size_t i = 0; is_first() && i < all[0].size(); ++i) {
    texts.push_back(bytes_in(all[0][i], static_cast<size_t>(sizes[i])));
  }
  return texts;
}

void Ranks::broadcast(const std::vector<Tensor>& tensors) {
  parts_->heartbeat->in_collective();
  check_same_tensors(parts_->group, tensors);
  broadcast_tensors(parts_->group, 0, tensors);
}

void Ranks::broadcast_from(int from, const std::vector<Tensor>& tensors) {
  parts_->heartbeat->in_collective();
  broadcast_tensors(parts_->group, from, tensors);
}

// Not counted as collectives, of which all ranks have as many.
void Ranks::send_to_first(const Tensor& tensor) {
  std::vector<Tensor> tensors{tensor};
  parts_->group->send(tensors, 0, kStateTag)->wait();
}

void Ranks::receive(int from, const Tensor& into) {
  std::vector<Tensor> tensors{into};
  parts_->group->recv(tensors, from, kStateTag)->wait();
}

std::unique_ptr<GradientSync> Ranks::gradient_sync(const TrainedTensors& trained, const GradientSyncOptions& options) {
  parts_->heartbeat->in_collective();
  return make_reducer(parts_->group, trained, options, [beats = parts_->heartbeat.get()] { beats->in_collective(); });
}

void Ranks::at_step(int64_t step) { parts_->heartbeat->at_step(step); }

void Ranks::watched(const std::function<void()>& work) {
  const auto ended = [&](const std::string& why) {
    if (!parts_->broken) parts_->heartbeat->failed(why);
    parts_->broken = true;
  };
  try {
    work();
  } catch (const Error& error) {
    ended(error.what());
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    ended(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    explain(error);
  }
}

// Of an exception of torch's or gloo's: another rank's end, or a fault here.
void Ranks::explain(const std::exception& error) {
  const auto lost = parts_->heartbeat->find_lost();
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch == nullptr ? error.what() : torch->what_without_backtrace();
  if (!lost) parts_->heartbeat->failed(text);
  parts_->broken = true;
  if (!lost) throw;
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("all ", size(), " ranks at the end of each step"),
               .got = cat(*lost, "; seen by rank ", rank(), ": ", first_line(text)),
               .next = "look at that rank's own error; torchrun --max-restarts starts all again, and they resume"});
}

}  // namespace hotswap
