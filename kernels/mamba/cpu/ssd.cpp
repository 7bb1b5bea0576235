// Forward of ssd.h. Compiled once per ISA.
#include "kernels/mamba/cpu/ssd_chunk.h"

namespace mamba::ssd::HOTSWAP_ISA {
namespace {

// y of a head, from sums without D x.
template <class T>
void finish_rows(const Forward& a, const Rows& r, int64_t head, const float* sums) {
  const Problem& p = a.of;
  const float* skip = p.D == nullptr ? nullptr : p.D + head * p.dim;
  for (int i = 0; i < r.count; ++i, sums += padded(p.dim)) {
    T* y = at<T>(a.y, r, i, head);
    const T* x = at<const T>(p.x, r, i, head);
    const T* z = p.z.data == nullptr ? nullptr : at<const T>(p.z, r, i, head);
    sweep(p.dim, [&](int64_t n, auto part) HOTSWAP_LAMBDA {
      F v = load(sums + n);
      if (skip != nullptr) v += load(skip + n, part) * load(x + n, part);
      if (z != nullptr) v *= gate_of(load(z + n, part)).value;
      store(y + n, r.padding[i] ? F{} : v, part);
    });
  }
}

template <class T>
void forward_item(const Forward& a, const Item& item, Scratch s) {
  const Problem& p = a.of;
  const int64_t dim = padded(p.dim), state = padded(p.state);
  float *B = s.take(kChunk * state), *C = s.take(kChunk * state), *B_columns = s.take(state * kChunk);
  float *G = s.take(kChunk * kChunk), *decayed = s.take(kChunk * kChunk);
  float *x = s.take(kChunk * dim), *y = s.take(kChunk * dim), *keep = s.take(state);
  float* states = s.take(item.heads * p.state * dim);
  const auto state_of = [&](int64_t h) { return states + h * p.state * dim; };
  const auto outside = [&](auto* data, int64_t h) {
    return data == nullptr ? nullptr : data + (item.batch * p.heads + item.head + h) * p.dim * p.state;
  };
  for (int64_t h = 0; h < item.heads; ++h) load_state(state_of(h), outside(p.initial, h), p);

  for (int64_t chunk = 0; chunk < p.chunks(); ++chunk) {
    const Rows r = rows_of(p, item.batch, chunk);
    load_rows<T>(B, p.B, r, item.group, p.state);
    load_rows<T>(C, p.C, r, item.group, p.state);
    transpose_to(B_columns, kChunk, B, state, kChunk, p.state);
    dots(G, C, state, B_columns, r.count, p.state);

    for (int64_t h = 0; h < item.heads; ++h) {
      const int64_t head = item.head + h;
      float* H = state_of(h);
      if (a.states != nullptr) {
        float* to = a.states + ((item.batch * p.chunks() + chunk) * p.heads + head) * p.state * p.dim;
        for (int64_t n = 0; n < p.state; ++n) store_row(to + n * p.dim, H + n * dim, p.dim);
      }
      Steps steps;
      steps_of(steps, p, r, head);
      load_rows<T>(x, p.x, r, head, p.dim);
      for (int i = 0; i < r.count; ++i) {
        decays(steps, r, i, [&](int64_t j, F decay) HOTSWAP_LAMBDA {
          store(decayed + i * kChunk + j, decay * load(G + i * kChunk + j));
        });
        for (int64_t n = 0; n < dim; n += kLanes) store(x + i * dim + n, steps.delta[i] * load(x + i * dim + n));
      }
      multiply<Into::kSet>(y, dim, {C, state, 1}, {H, dim}, r.count, dim, p.state);
      add_before(y, decayed, x, dim, r.count, steps.enter);
      finish_rows<T>(a, r, head, y);

      for (int i = 0; i < r.count; ++i) {
        for (int64_t n = 0; n < dim; n += kLanes) store(x + i * dim + n, steps.leave[i] * load(x + i * dim + n));
      }
      for (int64_t n = 0; n < p.state; ++n) keep[n] = steps.keep;
      multiply<Into::kScaled>(H, dim, {B, 1, state}, {x, dim}, p.state, dim, r.count, keep);
    }
  }
  for (int64_t h = 0; h < item.heads; ++h) store_state(outside(a.final, h), state_of(h), p);
}

void forward(const Forward& a, float* scratch, int64_t begin, int64_t end) {
  with_dtype(a.of.type, [&]<typename T>() {
    for (int64_t i = begin; i < end; ++i) forward_item<T>(a, item_of(a.of, i), {scratch});
  });
}

}  // namespace

const Table kTable = {.forward = forward, .backward = backward, .sum_parts = sum_parts};

}  // namespace mamba::ssd::HOTSWAP_ISA
