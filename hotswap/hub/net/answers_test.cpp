// Answers mutated at random through every parser of what a server says: an Error or a value that keeps its promises.
#include <gtest/gtest.h>

#include <random>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/cache/tree_file.h"
#include "hotswap/hub/net/client.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

const std::string kAnswerSha(40, 'a');

std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  static const std::vector<std::string> kPieces = {
      "..",      "/",    "\\",          "\"",   "{",   "[",     "]",
      "}",       ",",    ":",           "null", "-1",  "1e400", "9223372036854775808",
      "\\u0000", "\xFF", "true",        "\n",   "%2F", "<",     ">",
      ";",       "=",    "rel=\"next\""};
  for (size_t edits = 1 + below(6); edits-- > 0;) {
    const size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 2:
        text.erase(at, below(12));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(30)));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

template <typename Parse>
int survivors(const std::vector<std::string>& seeds, uint32_t seed, const Parse& parse) {
  std::mt19937 random(seed);
  int good = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = mutated(seeds[static_cast<size_t>(i) % seeds.size()], random);
    try {
      parse(text);
      ++good;
    } catch (const Error&) {  // the only way out but a value
    }
  }
  return good;
}

TEST(HostileAnswers, Trees) {
  const std::vector<std::string> seeds = {
      R"([{"type":"file","path":"build/x/a.so","oid":"0123456789012345678901234567890123456789","size":5,"lfs":{"oid":"ab","size":9,"pointerSize":1},"xetHash":"x"}])",
      R"([{"type":"directory","path":"d","oid":"1"},{"type":"file","path":"d/a","oid":"2","size":0}])"};
  EXPECT_GT(survivors(seeds, 1,
                      [](const std::string& text) {
                        for (const TreeEntry& entry : parse_tree(text, "tree")) {
                          EXPECT_NO_THROW(check_relative_path(entry.path, "file"));
                          EXPECT_TRUE(entry.folder || entry.etag().find('/') == std::string::npos);
                          EXPECT_GE(entry.size, 0);
                        }
                      }),
            0);
}

TEST(HostileAnswers, Refs) {
  const std::vector<std::string> seeds = {
      R"({"branches":[{"name":"v1","ref":"refs/heads/v1","targetCommit":")" + kAnswerSha +
      R"("}],"tags":[{"name":"t","ref":"refs/tags/t","targetCommit":")" + kAnswerSha + R"("}],"converts":[]})"};
  EXPECT_GT(survivors(seeds, 2,
                      [](const std::string& text) {
                        for (const RepoRef& ref : parse_refs(text, "refs").branches) {
                          EXPECT_TRUE(is_commit(ref.commit));
                          EXPECT_NO_THROW(check_relative_path(ref.name, "revision"));
                        }
                      }),
            0);
}

TEST(HostileAnswers, Headers) {
  const std::vector<std::string> seeds = {"\"0123456789abcdef\"",
                                          "W/\"abc-2\"",
                                          kAnswerSha,
                                          "1234",
                                          "\"api\";r=0;t=55, \"x\";r=1;t=2",
                                          "Sun, 06 Nov 1994 08:49:37 GMT",
                                          "<http://h/api?cursor=a>; rel=\"next\", <http://h/x>; rel=\"last\""};
  EXPECT_GT(survivors(seeds, 3,
                      [](const std::string& text) {
                        HttpResponse head{.status = 200,
                                          .url = "http://h/x",
                                          .headers = {{"x-repo-commit", kAnswerSha}, {"etag", text}},
                                          .body = ""};
                        link_next(text);
                        head.headers["ratelimit"] = text;
                        head.headers["retry-after"] = text;
                        EXPECT_GE(asked_wait(head, 0), -1);
                        hub_error({.status = 429, .url = text, .headers = head.headers, .body = text}, "x");
                        const FileMeta meta = parse_file_meta(head);
                        EXPECT_NO_THROW(check_relative_path(meta.etag, "blob"));
                        head.headers["etag"] = "\"a\"";
                        head.headers["content-length"] = text;
                        EXPECT_GE(parse_file_meta(head).size, 0);
                      }),
            0);
}

TEST(HostileAnswers, Urls) {
  const std::vector<std::string> seeds = {
      "https://cdn.example/a/b?c=d#e", "/relative/path", "//host/x", "http://u:p@[::1]:80/x", "?q", "../../x"};
  EXPECT_GT(survivors(seeds, 4,
                      [](const std::string& text) {
                        url_shown(text);
                        const std::string next = url_resolve("https://hub.example/a/b", text);
                        const std::string origin = url_origin(next);
                        // What names no host stays where it was: there the token goes along.
                        EXPECT_TRUE(url_names_host(text) || origin == "https://hub.example:443") << text;
                      }),
            0);
}

TEST(HostileAnswers, CachedTrees) {
  const std::vector<TreeEntry> entries = {{.path = "a/b", .size = 5, .oid = "abc", .sha256 = "de", .lfs_size = 5},
                                          {.path = "c", .size = 1, .oid = "f"}};
  const auto stays_inside = [](const std::vector<TreeEntry>& parsed) {
    for (const TreeEntry& entry : parsed) {
      EXPECT_NO_THROW(check_relative_path(entry.path, "file"));
      EXPECT_NO_THROW(check_relative_path(entry.etag(), "blob"));
    }
  };
  EXPECT_GT(
      survivors({tree_as_json(entries)}, 5, [&](const std::string& text) { stays_inside(parse_tree_json(text)); }), 0);
  EXPECT_GT(
      survivors({tree_as_lines(entries)}, 6, [&](const std::string& text) { stays_inside(parse_tree_lines(text)); }),
      0);
}

}  // namespace
}  // namespace hotswap
