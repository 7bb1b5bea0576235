#include "hotswap/chat/jinja/limits.h"

#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {
namespace {

thread_local Budget* current_budget = nullptr;

}  // namespace

Budget::Budget(const Limits& limits) : limits_(limits), outer_(current_budget) { current_budget = this; }
Budget::~Budget() { current_budget = outer_; }
Budget* Budget::current() { return current_budget; }

void Budget::take(size_t bytes) {
  if (bytes > limits_.value_bytes - used_) {
    fail(Fault::kLimit, cat("values of more than ", limits_.value_bytes, " bytes"));
  }
  used_ += bytes;
}

void Budget::check_string(size_t bytes) const {
  if (bytes > limits_.string_bytes) {
    fail(Fault::kLimit, cat("a string of ", bytes, " bytes, at most ", limits_.string_bytes, " are allowed"));
  }
}

Counted::Counted(size_t bytes) : budget_(Budget::current()), bytes_(bytes) {
  if (budget_ != nullptr) budget_->take(bytes_);
}

Counted::~Counted() {
  if (budget_ != nullptr) budget_->give_back(bytes_);
}

}  // namespace hotswap::jinja
