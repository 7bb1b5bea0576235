// The two ways to keep keys and values: all of them in memory that grows, and the last of a window.
// In memory heads come before time, so that the tokens of one head stand together.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/layers/cache.h"

namespace hotswap {
namespace {

constexpr int64_t kFirstCapacity = 64;

// [batch, kv_heads, capacity, head_dim] in memory, seen as [batch, capacity, kv_heads, head_dim]
struct Buffers {
  Tensor k, v;

  int64_t capacity() const { return k.defined() ? k.size(1) : 0; }
  bool holds(int64_t batch) const { return k.defined() && k.size(0) == batch; }
  static Buffers like(const Tensor& k, const Tensor& v, int64_t capacity) {
    const c10::InferenceMode off(false);  // else only inference mode could write them
    const auto make = [&](const Tensor& t) {
      return at::empty({t.size(0), t.size(2), capacity, t.size(3)}, t.options()).transpose(1, 2);
    };
    return {make(k), make(v)};
  }
  void check(const Tensor& new_k) const {
    if (k.size(0) == new_k.size(0) && k.size(2) == new_k.size(2) && k.size(3) == new_k.size(3)) return;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("keys [", k.size(0), ", new, ", k.size(2), ", ", k.size(3), "] for the cache"),
                 .got = cat("[", join(new_k.sizes()), "]"),
                 .next = "use one cache per batch"});
  }
  void write(int64_t at, const Tensor& new_k, const Tensor& new_v) const {
    k.narrow(1, at, new_k.size(1)).copy_(new_k);
    v.narrow(1, at, new_v.size(1)).copy_(new_v);
  }
  std::pair<Tensor, Tensor> range(int64_t from, int64_t count) const {
    return {k.narrow(1, from, count), v.narrow(1, from, count)};
  }
};

// Buffers grow by doubling: a decode step writes one row per head and copies nothing else.
class DynamicLayer : public KeyValueLayer {
 public:
  explicit DynamicLayer(int64_t reserve) : reserve_(reserve) {}

  std::pair<Tensor, Tensor> update(const Tensor& k, const Tensor& v) override {
    if (buffers_.capacity() > 0) buffers_.check(k);
    make_room(k, v, k.size(1));
    buffers_.write(length_, k, v);
    length_ += k.size(1);
    return buffers_.range(0, length_);
  }
  std::pair<Tensor, Tensor> writable_rows(int64_t batch) override {
    if (!buffers_.holds(batch)) return {};
    make_room(buffers_.k, buffers_.v, 1);
    ++length_;
    return {buffers_.k, buffers_.v};
  }
  void crop(int64_t length) override {
    if (length == 0) *this = DynamicLayer(reserve_);
    length_ = std::min(length_, length);
  }

 private:
  void make_room(const Tensor& k, const Tensor& v, int64_t added) {
    const int64_t needed = length_ + added;
    if (needed <= buffers_.capacity()) return;
    const Buffers larger = Buffers::like(k, v, std::max({reserve_, needed, 2 * length_, kFirstCapacity}));
    if (length_ > 0) larger.write(0, buffers_.k.narrow(1, 0, length_), buffers_.v.narrow(1, 0, length_));
    buffers_ = larger;
  }

  int64_t reserve_, length_ = 0;
  Buffers buffers_;
};

// Keeps what the next token may see: the last window - 1 tokens. They move to the front of the memory when it is full.
class SlidingLayer : public KeyValueLayer {
 public:
  explicit SlidingLayer(int64_t window) : window_(window) {}

  std::pair<Tensor, Tensor> update(const Tensor& k, const Tensor& v) override {
    const int64_t added = k.size(1), kept = std::min(end_ - begin_, window_ - 1);
    if (buffers_.capacity() > 0) buffers_.check(k);
    dropped_ += end_ - kept - begin_;
    begin_ = end_ - kept;
    if (end_ + added > buffers_.capacity()) {
      const Buffers next = Buffers::like(k, v, std::max(kept + added, 2 * std::min(window_, kept + added)));
      if (kept > 0) next.write(0, buffers_.k.narrow(1, begin_, kept), buffers_.v.narrow(1, begin_, kept));
      buffers_ = next;
      begin_ = 0;
      end_ = kept;
    }
    buffers_.write(end_, k, v);
    end_ += added;
    return buffers_.range(begin_, kept + added);
  }
  void crop(int64_t length) override {
    check_crop(length);
    if (length == 0) {
      *this = SlidingLayer(window_);
      return;
    }
    end_ = std::min(end_, begin_ + length);
  }
  void check_crop(int64_t length) const override {
    if (length == 0 || dropped_ == 0) return;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a cache whose windows of ", window_, " tokens still hold all before token ", length),
                 .got = cat("one that has forgotten ", dropped_, " of them"),
                 .next = "crop(0) and run the prompt again"});
  }

 private:
  int64_t window_, begin_ = 0, end_ = 0, dropped_ = 0;
  Buffers buffers_;
};

}  // namespace

std::unique_ptr<CacheLayer> make_key_value_layer(int64_t reserve, int64_t window) {
  if (window > 0) return std::make_unique<SlidingLayer>(window);
  return std::make_unique<DynamicLayer>(reserve);
}

}  // namespace hotswap
