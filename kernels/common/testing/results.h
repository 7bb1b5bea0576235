// What every benchmark of a package says and how it is asked: flags, one line a case, and rows of bench/results.csv.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace kernels::bench {

// "--csv FILE --quick" -> {{"--csv", "FILE"}, {"--quick", ""}}. `known`: those that a program takes, each with a value,
// and
// --quick; a stranger ends it with the list.
using Flags = std::map<std::string, std::string>;
inline Flags parse_flags(int argc, char** argv, const std::vector<std::string>& known) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    bool takes = false;
    for (const std::string& one : known) takes |= one == flag;
    if (flag == "--quick") {
      flags[flag];
    } else if (takes && i + 1 < argc) {
      flags[flag] = argv[++i];
    } else {
      std::string all = "--quick";
      for (const std::string& one : known) all += ", " + one + " VALUE";
      std::fprintf(stderr, "expected %s; got %s\n", all.c_str(), flag.c_str());
      std::exit(2);
    }
  }
  return flags;
}

struct Result {
  std::string op, shape, dtype, threads, peer;  // threads: empty on a GPU
  double ours_us, peer_us;                      // 0: not timed
  double bytes, copy_gbps;                      // bytes: what must be read and written; the rate of a copy of as many
  double error;                                 // relative L2, of the worst output
  bool ok;                                      // it is small enough, and the case was timed
  std::string target = "", note = "";
};

class Results {
 public:
  Results(const Flags& flags, std::string machine) : flags_(flags), machine_(std::move(machine)) {
    std::printf("%s\n%-26s %-26s %-9s %2s %10s %10s %7s %8s %6s  %s\n", machine_.c_str(), "op", "shape", "dtype", "th",
                "ours us", "peer us", "ratio", "GB/s", "share", "check, peer");
  }
  bool wants(const std::string& op) const { return op.find(flag("--filter")) != std::string::npos; }
  bool quick() const { return flags_.count("--quick") > 0; }

  void add(const Result& r) {
    const double ratio = r.ours_us > 0 ? r.peer_us / r.ours_us : 0,
                 rate = r.ours_us > 0 ? r.bytes / r.ours_us / 1e3 : 0;
    const double share = r.copy_gbps > 0 ? rate / r.copy_gbps : 0;
    std::printf("%-26s %-26s %-9s %2s %10.2f %10.2f %7.2f %8.1f %6.3f  %s %.1e %s %s\n", r.op.c_str(), r.shape.c_str(),
                r.dtype.c_str(), r.threads.c_str(), r.ours_us, r.peer_us, ratio, rate, share, r.ok ? "ok" : "FAILED",
                r.error, r.peer.c_str(), r.note.c_str());
    std::fflush(stdout);
    if (!r.ok) {
      std::fprintf(stderr, "%s %s %s: FAILED its check, error %.1e; not timed\n", r.op.c_str(), r.shape.c_str(),
                   r.dtype.c_str(), r.error);
      ++failures_;
    } else if (!flag("--csv").empty()) {
      write(r, ratio, share);
    }
  }

  int finish() const { return failures_ > 0 ? 1 : 0; }

 private:
  std::string flag(const char* name) const {
    const auto found = flags_.find(name);
    return found == flags_.end() ? "" : found->second;
  }
  static std::string number(double v) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.3f", v);
    return v > 0 ? buffer : "";
  }

  // As CSV has a cell with a comma in it: in quotes.
  static std::string cell(const std::string& text) {
    return text.find(',') == std::string::npos ? text : '"' + text + '"';
  }

  void write(const Result& r, double ratio, double share) const {
    const std::string csv = flag("--csv");
    const bool fresh = std::ifstream(csv).peek() == std::ifstream::traits_type::eof();
    std::ofstream file(csv, std::ios::app);
    if (fresh) {
      file
          << "date,commit,machine,cpus,cpu_features,torch,load,kind,what,shape,dtype,threads,ours,stock,peer,peer_name,"
             "unit,ratio,target,memcpy_share,ours_cleared,peer_cleared,ours_memory,peer_memory\n";
    }
    file << flag("--date") << ',' << flag("--commit") << ',' << machine_ << ",,," HOTSWAP_TORCH_VERSION ",,op,"
         << cell(r.op) << ',' << cell(r.shape) << ',' << r.dtype << ',' << r.threads << ',' << number(r.ours_us) << ",,"
         << number(r.peer_us) << ',' << cell(r.peer) << ",us," << number(ratio) << ',' << cell(r.target) << ','
         << number(share) << ",,,,\n";
    if (!file) throw std::runtime_error("expected to append to " + csv + "; cannot; check the path");
  }

  Flags flags_;
  std::string machine_;
  int failures_ = 0;
};

}  // namespace kernels::bench
