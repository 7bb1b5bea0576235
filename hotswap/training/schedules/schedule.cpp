#include "hotswap/training/schedules/schedule.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/base/nearest_name.h"

namespace hotswap {
namespace {

constexpr double kPi = 3.141592653589793;  // Python's math.pi
using Factor = std::function<double(int64_t)>;

// What a schedule is made of. Steps are double: every division below is one of Python's floats.
struct Setup {
  double warmup, total, learning_rate;
  Json kwargs;
  // A number of kwargs.
  double number(const char* key, double otherwise) const { return kwargs.get<double>(key, otherwise); }
};

// The phase after the warm-up, whose argument is the step; the warm-up itself is the same in nearly all.
Factor after_warmup(const Setup& s, Factor rest) {
  return [warmup = s.warmup, rest = std::move(rest)](int64_t step) {
    const auto at = static_cast<double>(step);
    return at < warmup ? at / std::max(1.0, warmup) : rest(step);
  };
}

double progress(const Setup& s, double step) { return (step - s.warmup) / std::max(1.0, s.total - s.warmup); }

double cosine(double cycles, double at) { return 0.5 * (1.0 + std::cos(kPi * cycles * 2.0 * at)); }

double from_floor(double factor, double floor) { return factor * (1 - floor) + floor; }

double floor_of(const Setup& s) {
  const auto lr = s.kwargs.find("min_lr"), rate = s.kwargs.find("min_lr_rate");
  if (lr.has_value() == rate.has_value()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "one of min_lr and min_lr_rate in lr_scheduler_kwargs",
                 .got = lr ? "both" : "neither",
                 .next = "name the learning rate at the end, or its share of the peak"});
  }
  return lr ? lr->as<double>() / s.learning_rate : rate->as<double>();
}

Factor constant(const Setup&) {
  return [](int64_t) { return 1.0; };
}

Factor constant_with_warmup(const Setup& s) { return after_warmup(s, constant(s)); }

Factor linear(const Setup& s) {
  return after_warmup(s, [s](int64_t step) {
    return std::max(0.0, (s.total - static_cast<double>(step)) / std::max(1.0, s.total - s.warmup));
  });
}

Factor cosine_schedule(const Setup& s) {
  return after_warmup(s, [s, cycles = s.number("num_cycles", 0.5)](int64_t step) {
    return std::max(0.0, from_floor(cosine(cycles, progress(s, static_cast<double>(step))), 0.0));
  });
}

Factor cosine_with_restarts(const Setup& s) {
  return after_warmup(s, [s, cycles = s.number("num_cycles", 1)](int64_t step) {
    const double at = progress(s, static_cast<double>(step));
    return at >= 1.0 ? 0.0 : std::max(0.0, 0.5 * (1.0 + std::cos(kPi * std::fmod(cycles * at, 1.0))));
  });
}

Factor cosine_with_min_lr(const Setup& s) {
  return after_warmup(s, [s, cycles = s.number("num_cycles", 0.5), floor = floor_of(s)](int64_t step) {
    return std::max(0.0, from_floor(cosine(cycles, progress(s, static_cast<double>(step))), floor));
  });
}

Factor cosine_warmup_with_min_lr(const Setup& s) {
  const bool has_start = s.kwargs.has("warmup_lr_rate");
  return [s, has_start, start = s.number("warmup_lr_rate", 0), cycles = s.number("num_cycles", 0.5),
          floor = floor_of(s)](int64_t step) {
    const auto at = static_cast<double>(step);
    if (at < s.warmup && !has_start) return (at + 1.0) / std::max(1.0, s.warmup);
    if (at < s.warmup) return start + (1.0 - start) * at / std::max(1.0, s.warmup - 1);
    const double after = (at - s.warmup + 1.0) / std::max(1.0, s.total - s.warmup);
    return std::max(0.0, from_floor(cosine(cycles, after), floor));
  };
}

Factor polynomial(const Setup& s) {
  const double end = s.number("lr_end", 1e-7), power = s.number("power", 1), peak = s.learning_rate;
  if (!(peak > end)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a learning_rate above lr_end, ", end),
                 .got = cat(peak),
                 .next = "raise it, or lower lr_end in lr_scheduler_kwargs"});
  }
  return after_warmup(s, [s, end, power, peak](int64_t step) {
    const auto at = static_cast<double>(step);
    if (at > s.total) return end / peak;
    const double left = 1 - (at - s.warmup) / (s.total - s.warmup);
    return ((peak - end) * std::pow(left, power) + end) / peak;
  });
}

Factor inverse_sqrt(const Setup& s) {
  const double scale = s.number("timescale", s.warmup > 0 ? s.warmup : 10000);
  return after_warmup(s, [s, scale](int64_t step) {
    const double shift = scale - s.warmup;
    return 1.0 / std::sqrt((static_cast<double>(step) + shift) / scale);
  });
}

std::string shape_of(const Setup& s, const char* key, const char* otherwise) {
  const auto shape = s.kwargs.get<std::string>(key, otherwise);
  if (shape == "linear" || shape == "cosine" || shape == "1-sqrt") return shape;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(key, " linear, cosine or 1-sqrt in lr_scheduler_kwargs"),
               .got = cat("'", shape, "'"),
               .next = "name one of these"});
}

double rising(const std::string& shape, double at) {
  if (shape == "linear") return at;
  return shape == "cosine" ? 0.5 * (1.0 - std::cos(kPi * at)) : 1.0 - std::sqrt(1.0 - at);
}

double falling(const std::string& shape, double at, double cycles) {
  if (shape == "linear") return 1.0 - at;
  return shape == "cosine" ? cosine(cycles, at) : 1.0 - std::sqrt(at);
}

Factor warmup_stable_decay(const Setup& s) {
  const auto decay = s.kwargs.at<double>("num_decay_steps");
  const double stable = s.number("num_stable_steps", s.total - s.warmup - decay);
  const double floor = s.number("min_lr_ratio", 0), cycles = s.number("num_cycles", 0.5);
  const std::string up = shape_of(s, "warmup_type", "linear"), down = shape_of(s, "decay_type", "cosine");
  return [=](int64_t step) {
    const auto at = static_cast<double>(step);
    if (at < s.warmup) return std::max(0.0, from_floor(rising(up, at / std::max(1.0, s.warmup)), floor));
    if (at < s.warmup + stable) return 1.0;
    if (at >= s.warmup + stable + decay) return floor;
    const double after = (at - s.warmup - stable) / std::max(1.0, decay);
    return std::max(0.0, from_floor(falling(down, after, cycles), floor));
  };
}

struct Row {
  const char* name;
  Factor (*make)(const Setup& setup);
  std::vector<std::string> kwargs;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"linear", linear, {}},
      {"cosine", cosine_schedule, {"num_cycles"}},
      {"cosine_with_restarts", cosine_with_restarts, {"num_cycles"}},
      {"cosine_with_min_lr", cosine_with_min_lr, {"num_cycles", "min_lr", "min_lr_rate"}},
      {"cosine_warmup_with_min_lr",
       cosine_warmup_with_min_lr,
       {"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"}},
      {"polynomial", polynomial, {"lr_end", "power"}},
      {"inverse_sqrt", inverse_sqrt, {"timescale"}},
      {"warmup_stable_decay",
       warmup_stable_decay,
       {"num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"}},
      {"constant", constant, {}},
      {"constant_with_warmup", constant_with_warmup, {}},
  };
  return table;
}

void check_kwargs(const Row& row, const Json& kwargs) {
  for (const auto& [key, value] : kwargs.items()) {
    if (std::find(row.kwargs.begin(), row.kwargs.end(), key) != row.kwargs.end()) continue;
    throw Error(
        {.kind = ErrorKind::kInvalidArgument,
         .wanted = cat("lr_scheduler_kwargs of ", row.name, ": ", row.kwargs.empty() ? "none" : join(row.kwargs)),
         .got = cat("'", key, "'"),
         .next = row.kwargs.empty() ? "leave it out" : nearest_name_hint(key, row.kwargs)});
  }
}

}  // namespace

const std::vector<std::string>& Schedule::names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const Row& row : rows()) names.emplace_back(row.name);
    return names;
  }();
  return all;
}

Schedule::Schedule(const std::string& name, const ScheduleSpan& span) {
  const auto row = std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return name == r.name; });
  if (row == rows().end()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("an lr_scheduler_type: ", join(names())),
                 .got = cat("'", name, "'"),
                 .next = nearest_name_hint(name, names())});
  }
  if (span.warmup_steps < 0 || (span.warmup_steps > 0 && name == "constant")) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "warmup_steps of 0 or more, and 0 for the schedule constant",
                 .got = cat(span.warmup_steps),
                 .next = "use constant_with_warmup, or set warmup_steps to 0"});
  }
  const Json kwargs = Json::parse(span.kwargs.is_null() ? "{}" : span.kwargs.dump(), "lr_scheduler_kwargs");
  check_kwargs(*row, kwargs);
  factor_ = row->make({.warmup = static_cast<double>(span.warmup_steps),
                       .total = static_cast<double>(span.total_steps),
                       .learning_rate = span.learning_rate,
                       .kwargs = kwargs});
}

int64_t warmup_count(double warmup_steps, int64_t total_steps) {
  if (warmup_steps >= 1) return static_cast<int64_t>(warmup_steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * warmup_steps));
}

}  // namespace hotswap
