#include "hotswap/engine/kv_pool.h"

#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"

namespace hotswap {
namespace {

constexpr int64_t kPageUnit = 16;  // a GPU's kernels take pages of a multiple of it
constexpr int64_t kFirstTokens = 64;

int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

void require_pool(bool holds, ErrorKind kind, std::string expected, std::string got, const char* next) {
  if (!holds) throw Error({.kind = kind, .wanted = std::move(expected), .got = std::move(got), .next = next});
}

}  // namespace

KvPool::KvPool(at::Device device, const KvPoolOptions& options) : device_(device), options_(options) {
  KvPoolOptions& o = options_;
  require_pool(o.max_sequences >= 1 && o.max_tokens >= 0 && o.page_size >= 0 && o.pages >= 0,
               ErrorKind::kInvalidArgument, "at least one sequence, and sizes of 0 or more",
               cat("max_sequences ", o.max_sequences, ", max_tokens ", o.max_tokens, ", page_size ", o.page_size,
                   ", pages ", o.pages),
               "correct KvPoolOptions");
  if (one_page_each()) {
    slab_tokens_ = rounded_up(std::max(o.max_tokens, kFirstTokens), kPageUnit);
    return;
  }
  require_pool(o.max_tokens > 0, ErrorKind::kInvalidArgument, "max_tokens of a sequence where there is a page_size",
               "0", "set KvPoolOptions::max_tokens");
  const int64_t most = rounded_up(o.max_tokens, o.page_size) / o.page_size;
  if (o.pages == 0) o.pages = o.max_sequences * most;
  require_pool(o.pages >= most, ErrorKind::kInvalidArgument, cat("pages for one sequence of max_tokens, ", most),
               cat(o.pages), "give the pool more pages, or fewer max_tokens");
  for (int64_t page = 0; page < o.pages; ++page) free_pages_.insert(static_cast<int32_t>(page));
}

const KvPool::Entry& KvPool::at(int64_t sequence) const {
  if (const auto found = entries_.find(sequence); found != entries_.end()) return found->second;
  throw Error(
      {.kind = ErrorKind::kNotFound,  // looked up some hundred times a step: no text is made before it is needed
       .wanted = "the id of a sequence in the pool",
       .got = cat(sequence),
       .next = "take one from acquire() that was not released"});
}

KvPool::Entry& KvPool::at(int64_t sequence) { return const_cast<Entry&>(std::as_const(*this).at(sequence)); }

std::vector<StepRow> KvPool::by_row(std::vector<StepRow> rows) const {
  std::sort(rows.begin(), rows.end(),
            [&](const StepRow& a, const StepRow& b) { return row(a.sequence) < row(b.sequence); });
  return rows;
}

// Companies follow one another in order: of each later one the first row becomes its last.
int64_t KvPool::acquire(int64_t company) {
  require_pool(free_sequences() > 0, ErrorKind::kUnavailable,
               cat("at most ", options_.max_sequences, " sequences in the pool"), "one more",
               "release() one, or make the pool with more max_sequences");
  auto gap = static_cast<int64_t>(order_.size());
  order_.push_back(next_id_);
  while (gap > 0 && entries_.at(order_[gap - 1]).company > company) {
    const int64_t moved = entries_.at(order_[gap - 1]).company;
    int64_t first = gap - 1;
    while (first > 0 && entries_.at(order_[first - 1]).company == moved) --first;
    move_to(gap, entries_.at(order_[first]));
    gap = first;
  }
  Entry fresh{.row = gap, .company = company};
  if (one_page_each()) fresh.pages = {static_cast<int32_t>(gap)};
  clear_states(gap);
  order_[gap] = next_id_;
  entries_.emplace(next_id_, std::move(fresh));
  return next_id_++;
}

// The last row of its company moves into the gap, then that of each later one into the gap that this leaves.
void KvPool::release(int64_t sequence) {
  const Entry gone = at(sequence);
  if (!one_page_each()) free_pages_.insert(gone.pages.begin(), gone.pages.end());
  const auto count = static_cast<int64_t>(order_.size());
  int64_t gap = gone.row, company = gone.company;
  while (true) {
    int64_t last = gap;
    while (last + 1 < count && entries_.at(order_[last + 1]).company == company) ++last;
    if (last != gap) move_to(gap, entries_.at(order_[last]));
    gap = last;
    if (gap + 1 == count) break;
    company = entries_.at(order_[gap + 1]).company;
  }
  entries_.erase(sequence);
  order_.pop_back();
}

void KvPool::move_to(int64_t row, Entry& entry) {
  move_row(entry.row, row, entry.length);
  order_[row] = order_[entry.row];
  entry.row = row;
  if (one_page_each()) entry.pages = {static_cast<int32_t>(row)};
}

void KvPool::move_row(int64_t from, int64_t to, int64_t tokens) {
  for (Layer& l : layers_) {
    if (l.states.conv.defined()) {
      l.states.conv.select(0, to).copy_(l.states.conv.select(0, from));
      l.states.ssm.select(0, to).copy_(l.states.ssm.select(0, from));
    }
    if (!l.k.defined() || !one_page_each()) continue;
    for (const Tensor* pages : {&l.k, &l.v}) {
      pages->select(0, to).narrow(0, 0, tokens).copy_(pages->select(0, from).narrow(0, 0, tokens));
    }
  }
}

void KvPool::clear_states(int64_t row) {
  for (Layer& l : layers_) {
    if (!l.states.conv.defined()) continue;
    l.states.conv.select(0, row).zero_();
    l.states.ssm.select(0, row).zero_();
  }
}

void KvPool::rollback(int64_t sequence, int64_t length) {
  Entry& entry = at(sequence);
  require_pool(length >= 0 && length <= entry.length, ErrorKind::kInvalidArgument,
               cat("a length of 0 to ", entry.length), cat(length), "roll back to tokens that were kept");
  if (length == entry.length) return;
  require_pool(!recurs() || length == 0, ErrorKind::kUnsupported, cat("a sequence that can go back to token ", length),
               "a recurrent state, which is of all tokens at once", "roll back to 0 and run the tokens again");
  entry.length = length;
  clear_states(entry.row);
  if (one_page_each()) return;
  const auto kept = static_cast<size_t>(pages_for(length));
  free_pages_.insert(entry.pages.begin() + static_cast<ptrdiff_t>(kept), entry.pages.end());
  entry.pages.resize(kept);
}

void KvPool::reorder(const std::vector<int64_t>& from) {
  const auto rows = static_cast<int64_t>(order_.size());
  const bool fits = static_cast<int64_t>(from.size()) == rows &&
                    std::all_of(from.begin(), from.end(), [&](int64_t row) { return row >= 0 && row < rows; });
  require_pool(one_page_each() && fits, ErrorKind::kInvalidArgument,
               cat("a row from 0 to ", rows - 1, " for each of ", rows, ", and no pages"), join(from),
               "give each row the one that it becomes");
  std::vector<int64_t> lengths;
  for (const int64_t row : from) lengths.push_back(entries_.at(order_[row]).length);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const Tensor index = to_device(from, at::kLong, device_);
  const auto copy = [&](const Tensor& all) { all.narrow(0, 0, rows).copy_(all.index_select(0, index)); };
  for (Layer& l : layers_) {
    if (l.states.conv.defined()) copy(l.states.conv), copy(l.states.ssm);
    if (l.k.defined()) copy(l.k.narrow(1, 0, longest)), copy(l.v.narrow(1, 0, longest));
  }
  for (int64_t row = 0; row < rows; ++row) entries_.at(order_[row]).length = lengths[row];
}

bool KvPool::recurs() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.states.conv.defined(); });
}

int64_t KvPool::pages_for(int64_t tokens) const {
  return one_page_each() ? 0 : rounded_up(tokens, options_.page_size) / options_.page_size;
}

KvUsage KvPool::usage() const {
  const bool whole = one_page_each();
  KvUsage use{.pages = whole ? options_.max_sequences : options_.pages,
              .pages_in_use = whole ? static_cast<int64_t>(order_.size()) : options_.pages - free_pages()};
  for (const auto& [_, entry] : entries_) use.tokens += entry.length;
  return use;
}

int64_t KvPool::missing_pages(const Entry& entry, int64_t tokens) const {
  return pages_for(tokens) - static_cast<int64_t>(entry.pages.size());
}

bool KvPool::can_reserve(int64_t sequence, int64_t tokens) const {
  return one_page_each() || (tokens <= options_.max_tokens && missing_pages(at(sequence), tokens) <= free_pages());
}

void KvPool::reserve(int64_t sequence, int64_t tokens) {
  if (one_page_each()) {
    if (tokens > slab_tokens_) grow(std::max(tokens, 2 * slab_tokens_));
    return;
  }
  require_pool(tokens <= options_.max_tokens, ErrorKind::kInvalidArgument,
               cat("at most ", options_.max_tokens, " tokens of a sequence"), cat(tokens),
               "make the pool with more max_tokens");
  Entry& entry = at(sequence);
  const int64_t added = missing_pages(entry, tokens);
  require_pool(added <= free_pages(), ErrorKind::kUnavailable,
               cat(added, " free pages of ", options_.page_size, " tokens"), cat(free_pages()),
               "release() a sequence, or make the pool with more pages");
  for (int64_t i = 0; i < added; ++i) {
    entry.pages.push_back(*free_pages_.begin());
    free_pages_.erase(free_pages_.begin());
  }
}

// [pages, kv_heads, tokens, head_dim] in memory, seen as [pages, tokens, kv_heads, head_dim]. Zeros, since a step of
// static shape masks what is not written yet, and a weight of 0 times a NaN would be one.
static Tensor make_pages(int64_t pages, int64_t tokens, int64_t kv_heads, int64_t dim,
                         const at::TensorOptions& options) {
  const c10::InferenceMode off(false);  // else only inference mode could write them
  return at::zeros({pages, kv_heads, tokens, dim}, options).transpose(1, 2);
}

void KvPool::grow(int64_t tokens) {
  const int64_t before = slab_tokens_, rows = static_cast<int64_t>(order_.size());
  slab_tokens_ = rounded_up(tokens, kPageUnit);
  for (Layer& l : layers_) {
    for (Tensor* pages : {&l.k, &l.v}) {
      if (!pages->defined()) continue;
      const Tensor larger = make_pages(pages->size(0), slab_tokens_, pages->size(2), pages->size(3), pages->options());
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t used = std::min(before, entries_.at(order_[row]).length);
        larger.select(0, row).narrow(0, 0, used).copy_(pages->select(0, row).narrow(0, 0, used));
      }
      *pages = larger;
    }
  }
}

KvPool::Layer& KvPool::layer(int64_t index) {
  if (index >= static_cast<int64_t>(layers_.size())) layers_.resize(static_cast<size_t>(index) + 1);
  return layers_[static_cast<size_t>(index)];
}

void KvPool::make_room(Layer& l, const Tensor& k, const Tensor& v) const {
  if (l.k.defined()) return;
  const int64_t pages = one_page_each() ? options_.max_sequences : options_.pages;
  l.k = make_pages(pages, page_tokens(), k.size(2), k.size(3), k.options());
  l.v = make_pages(pages, page_tokens(), v.size(2), v.size(3), v.options());
}

// Of each of the sequence's tokens [first, first + count): its page, and its offset there. Both [count] int64
std::pair<Tensor, Tensor> KvPool::positions_of(const Entry& entry, int64_t first, int64_t count) const {
  std::vector<int64_t> pages, offsets;
  for (int64_t token = first; token < first + count; ++token) {
    pages.push_back(entry.pages[static_cast<size_t>(token / page_tokens())]);
    offsets.push_back(token % page_tokens());
  }
  return {to_device(pages, at::kLong, device_), to_device(offsets, at::kLong, device_)};
}

std::vector<KvTokens> KvPool::tokens_of(int64_t sequence, int64_t first, int64_t count) {
  const Entry& entry = at(sequence);
  require_pool(first >= 0 && count >= 1 && first + count <= entry.length, ErrorKind::kInvalidArgument,
               cat("tokens among the sequence's ", entry.length), cat(count, " from ", first),
               "read tokens that have run");
  std::vector<KvTokens> layers(layers_.size());
  std::pair<Tensor, Tensor> positions;
  if (!one_page_each()) positions = positions_of(entry, first, count);
  const auto read = [&](const Tensor& pages) {
    return one_page_each() ? pages.select(0, entry.row).narrow(0, first, count)
                           : pages.index({positions.first, positions.second});
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].k.defined()) layers[i] = {read(layers_[i].k), read(layers_[i].v)};
  }
  return layers;
}

int64_t KvPool::reserve_more(int64_t sequence, int64_t count) {
  require_pool(!recurs(), ErrorKind::kUnsupported, "a model whose layers keep keys and values only",
               "a recurrent state", "run the tokens");
  const int64_t first = length(sequence);
  reserve(sequence, first + count);
  return first;
}

std::vector<KvTokens> KvPool::append(int64_t sequence, int64_t count) {
  require_pool(one_page_each(), ErrorKind::kUnsupported, "a sequence in one piece", "pages", "give the tokens");
  const int64_t first = reserve_more(sequence, count);
  at(sequence).length = first + count;
  return tokens_of(sequence, first, count);
}

void KvPool::append(int64_t sequence, int64_t count, const std::vector<KvTokens>& layers) {
  const int64_t first = reserve_more(sequence, count);
  Entry& entry = at(sequence);
  std::pair<Tensor, Tensor> positions;
  if (!one_page_each()) positions = positions_of(entry, first, count);
  const auto write = [&](Tensor& pages, const Tensor& tokens) {
    if (one_page_each()) {
      pages.select(0, entry.row).narrow(0, first, count).copy_(tokens);
    } else {
      pages.index_put_({positions.first, positions.second}, tokens);
    }
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].k.defined()) continue;
    Layer& kept = layer(static_cast<int64_t>(i));
    make_room(kept, layers[i].k.unsqueeze(0), layers[i].v.unsqueeze(0));
    write(kept.k, layers[i].k);
    write(kept.v, layers[i].v);
  }
  entry.length = first + count;
}

}  // namespace hotswap
