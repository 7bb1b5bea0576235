#include "hotswap/hub/cache/download.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <mutex>
#include <thread>

#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/cache/partial_file.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kProgress = 64 << 10;  // bytes that make a broken try a good one
constexpr int kPoorTries = 20;           // broken tries in a row that brought less

struct RangesRefused {};  // the server sends whole files only
struct Stopped {};        // another connection of the same file failed

HubError bad(const FileJob& job, const std::string& url, const std::string& wanted, const std::string& got) {
  return {{.wanted = cat(wanted, " for ", job.path, " of ", job.repo.id, "@", job.commit),
           .got = got,
           .next = "nothing of it is kept; the Hub or a proxy is at fault, try again"},
          {.reason = HubReason::kBadAnswer, .url = url}};
}

// "bytes 5-9/10" -> first and total (-1 for *).
bool parse_content_range(std::string_view text, int64_t& first, int64_t& total) {
  if (text.rfind("bytes ", 0) != 0) return false;
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == text.npos || slash == text.npos || slash < dash) return false;
  const auto number = [](std::string_view digits, int64_t& value) {
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return code == std::errc() && end == digits.data() + digits.size() && value >= 0;
  };
  total = -1;
  return number(text.substr(6, dash - 6), first) &&
         (text.substr(slash + 1) == "*" || number(text.substr(slash + 1), total));
}

// A blob's download: workers take segments of what is missing; the caller's thread hashes behind them.
class BlobDownload {
 public:
  BlobDownload(HubClient& client, const FileJob& job, PartialFile& file)
      : client_(client),
        job_(job),
        file_(file),
        url_(client.file_url(job.repo, job.commit, job.path)),
        hash_(job.etag, job.size) {}

  void run(int connections) {
    const bool parallel = connections > 1 && job_.size >= client_.options().parallel_from;
    segments_ = file_.missing(parallel ? client_.options().segment : job_.size + 1);
    parallel_ = parallel && segments_.size() > 1;
    if (!parallel_) {
      for (const auto& [first, last] : segments_) fetch(first, last);
    } else {
      run_workers(std::min<size_t>(static_cast<size_t>(connections), segments_.size()));
    }
    hash_available();
    const std::string got = hash_.finish();
    if (!got.empty() && got != job_.etag)
      throw bad(job_, url_, "content with the hash " + job_.etag, "the hash " + got);
  }

 private:
  void run_workers(size_t count) {
    std::vector<std::thread> workers;
    std::atomic<size_t> running = count;
    for (size_t i = 0; i < count; ++i) {
      workers.emplace_back([this, &running] {
        try {
          for (size_t mine; !stop_ && (mine = next_++) < segments_.size();)
            fetch(segments_[mine].first, segments_[mine].second);
        } catch (const Stopped&) {
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (!failure_) failure_ = std::current_exception();
          stop_ = true;
        }
        --running;
      });
    }
    while (running > 0) {
      hash_available();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (std::thread& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  void hash_available() {
    for (; hash_.known() && !stop_ && hashed_ < file_.pieces() && file_.done(hashed_); ++hashed_) {
      hash_.update(file_.read(hashed_));
    }
  }

  // Bytes first..last, over as many broken connections as it takes.
  void fetch(int64_t first, int64_t last) {
    int64_t at = first;
    for (int poor = 0; at <= last;) {
      const int64_t before = at;
      std::string why = "an answer that ended early";
      try {
        request(at, last);
      } catch (const HubError& error) {
        if (!error.transient()) throw;
        if (at == before && poor >= client_.http().options().retries) throw;
        why = error.got();
      }
      if (at > last) return;
      poor = at - before >= kProgress ? 0 : poor + 1;
      if (poor > kPoorTries) {
        throw HubError({.wanted = cat("bytes ", at, " to ", last, " of ", job_.path, " of ", job_.repo.id),
                        .got = cat(poor, " broken connections in a row, the last one with: ", why),
                        .next = "check the network; what came is kept, the next run goes on from there"},
                       {.reason = HubReason::kConnection, .transient = true, .url = url_});
      }
      log_info(job_.path, ": ", why, "; going on at byte ", at);
      if (poor > 0) client_.http().wait(client_.http().backoff(poor - 1));
    }
  }

  // One request; moves `at` behind what it brought.
  void request(int64_t& at, int64_t last) {
    const bool whole = at == 0 && last == job_.size - 1;
    int64_t skip = 0;
    HttpRequest request{.url = url_, .compressed = false};
    if (!whole) {
      request.first = at;
      request.last = last;
    }
    request.on_head = [&](const HttpResponse& head) { skip = check_head(head, at, whole); };
    request.sink = [&](std::string_view bytes) {
      if (stop_) throw Stopped{};
      const auto dropped = std::min<int64_t>(skip, static_cast<int64_t>(bytes.size()));
      skip -= dropped;
      bytes.remove_prefix(static_cast<size_t>(dropped));
      if (at + static_cast<int64_t>(bytes.size()) > last + 1) {
        throw bad(job_, url_, cat("bytes up to ", last), "more");
      }
      take(at, bytes);
    };
    client_.ask(std::move(request), cat(job_.path, " of ", job_.repo.id, "@", job_.commit));
  }

  void take(int64_t& at, std::string_view bytes) {
    file_.write(at, bytes);
    const int64_t begin = at / PartialFile::kPiece;
    at += static_cast<int64_t>(bytes.size());
    for (int64_t piece = begin; piece < file_.pieces() && file_.piece_end(piece) <= at; ++piece) {
      if (!file_.done(piece)) file_.mark(piece);
    }
    if (!parallel_) hash_available();
    if (job_.advanced) job_.advanced(static_cast<int64_t>(bytes.size()));
  }

  // How many bytes of the answer come before those that were asked for.
  int64_t check_head(const HttpResponse& head, int64_t at, bool whole) const {
    const std::string encoding = head.header("content-encoding"), length = head.header("content-length");
    const bool encoded = !encoding.empty() && encoding != "identity";
    if (head.status == 206 && !whole) {
      int64_t first = -1, total = -1;
      if (encoded || !parse_content_range(head.header("content-range"), first, total) || first != at ||
          (total >= 0 && total != job_.size)) {
        throw bad(job_, url_, cat("bytes from ", at, " of ", job_.size),
                  "Content-Range '" + head.header("content-range") + "'");
      }
      return 0;
    }
    if (head.status != 200) throw bad(job_, url_, "status 200 or 206", cat("status ", head.status));
    if (parallel_) throw RangesRefused{};
    if (!encoded && !length.empty() && length != std::to_string(job_.size)) {
      throw bad(job_, url_, cat(job_.size, " bytes"), length + " bytes");
    }
    return at;
  }

  HubClient& client_;
  const FileJob& job_;
  PartialFile& file_;
  const std::string url_;
  ContentHash hash_;
  int64_t hashed_ = 0;  // pieces
  bool parallel_ = false;
  std::vector<std::pair<int64_t, int64_t>> segments_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

void download_sized(HubClient& client, const HubCache& cache, const FileJob& job, bool adopt) {
  PartialFile file(cache.blob(job.repo, job.etag), job.size, adopt);
  if (job.advanced) job.advanced(file.bytes_done());
  try {
    try {
      BlobDownload(client, job, file).run(job.connections);
    } catch (const RangesRefused&) {
      log_info(job.path, ": the server has no ranges, one connection");
      BlobDownload(client, job, file).run(1);
    }
    file.commit();
  } catch (const HubError& error) {
    if (error.reason() == HubReason::kBadAnswer) {
      if (job.advanced) job.advanced(-file.bytes_done());
      file.remove();
    }
    throw;
  }
}

// A Hub that does not tell the size: one connection, from the start each time.
void download_unsized(HubClient& client, const HubCache& cache, const FileJob& job) {
  const fs::path blob = cache.blob(job.repo, job.etag);
  const std::string url = client.file_url(job.repo, job.commit, job.path);
  std::string content;
  for (int attempt = 0;; ++attempt) {
    try {
      content =
          client
              .ask({.url = url, .compressed = false, .body_limit = size_t{256} << 20}, job.path + " of " + job.repo.id)
              .body;
      break;
    } catch (const HubError& error) {
      if (!error.transient() || attempt >= client.http().options().retries) throw;
    }
  }
  ContentHash hash(job.etag, static_cast<int64_t>(content.size()));
  hash.update(content);
  const std::string got = hash.finish();
  if (!got.empty() && got != job.etag) throw bad(job, url, "content with the hash " + job.etag, "the hash " + got);
  replace_file(blob, content);
  if (job.advanced) job.advanced(static_cast<int64_t>(content.size()));
}

}  // namespace

fs::path fetch_file(HubClient& client, const HubCache& cache, const FileJob& job) {
  cache.prepare(job.repo);
  const CacheLock lock(cache.lock_file(job.repo, job.etag));
  if (auto there = cache.find(job.repo, job.commit, job.path)) return *there;  // while we waited for the lock
  const fs::path blob = cache.blob(job.repo, job.etag);
  std::error_code code;
  const bool have = fs::is_regular_file(blob, code) &&
                    (job.size < 0 || fs::file_size(blob, code) == static_cast<uintmax_t>(job.size));
  if (!have) {
    // Only what a hash can prove right is gone on with.
    const bool adopt = ContentHash(job.etag, job.size).known();
    try {
      job.size < 0 ? download_unsized(client, cache, job) : download_sized(client, cache, job, adopt);
    } catch (const HubError& error) {
      if (error.reason() != HubReason::kBadAnswer || job.size < 0) throw;
      log_warning(error.what(), "; downloading it once more from its start");
      download_sized(client, cache, job, false);
    }
  } else if (job.advanced) {
    job.advanced(std::max<int64_t>(0, job.size));
  }
  return cache.publish(job.repo, job.commit, job.path, job.etag, !have);
}

}  // namespace hotswap
