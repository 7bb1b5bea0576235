// What Python's `tokenizers`, the oracle, makes of texts, compared with what is made of them here.
#pragma once

#include <gtest/gtest.h>

#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/base/test_data.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap::test_support {

using Plain = nlohmann::ordered_json;

constexpr const char* kOracleScript = R"(
import array, hashlib, itertools, json, sys
from tokenizers import Tokenizer
def shown(e): return {"ids": e.ids, "type_ids": e.type_ids, "tokens": e.tokens, "offsets": e.offsets}
def hashed(encodings, texts):
    digest = hashlib.sha256()
    for e in encodings:
        for values in (e.ids, e.type_ids, list(itertools.chain.from_iterable(e.offsets))): digest.update(array.array("q", values))
        texts = [*e.tokens, *texts]
    digest.update("\0".join(texts).encode())
    return digest.hexdigest()
out = []
for job in json.load(open(sys.argv[1])):
    t = Tokenizer.from_str(job["tokenizer"]) if "tokenizer" in job else Tokenizer.from_file(job["file"])
    rows = []
    for text in job["texts"]:
        plain, special, pair = t.encode(text, add_special_tokens=False), t.encode(text), t.encode(text, text[:3])
        decoded = t.decode(plain.ids, skip_special_tokens=False)
        skipped, tail = t.decode(special.ids, skip_special_tokens=True), t.decode(plain.ids[1:], skip_special_tokens=False)
        rows.append(hashed((plain, special, pair), (decoded, skipped, tail)) if job.get("brief") else
                    {"plain": shown(plain), "special": shown(special), "pair": shown(pair), "decoded": decoded, "skipped": skipped, "tail": tail})
    out.append(rows)
json.dump(out, open(sys.argv[2], "w"))
)";

inline Plain shown(const Encoding& e) {
  Plain offsets = Plain::array();
  for (const auto& [begin, end] : e.offsets) offsets.push_back({begin, end});
  return {{"ids", e.ids}, {"type_ids", e.type_ids}, {"tokens", e.tokens}, {"offsets", offsets}};
}

// What is compared of one text.
struct Compared {
  Encoding plain, special, pair;
  std::string decoded, skipped, tail;
};

inline Compared compared(const Tokenizer& t, const std::string& text) {
  Compared out{.plain = t.encode(text, false), .special = t.encode(text)};
  std::string head;  // the first three characters
  for (size_t at = 0, count = 0; at < text.size() && count < 3; ++count) {
    do head += text[at++];
    while (at < text.size() && (text[at] & 0xC0) == 0x80);
  }
  const std::span<const int64_t> ids(out.plain.ids);
  EXPECT_EQ(t.ids(text), out.special.ids);
  out.pair = t.encode_pair(text, head);
  out.decoded = t.decode(ids);
  out.skipped = t.decode(out.special.ids, true);
  out.tail = t.decode(ids.subspan(ids.empty() ? 0 : 1));
  return out;
}

inline Plain shown(const Compared& c) {
  return {{"plain", shown(c.plain)}, {"special", shown(c.special)}, {"pair", shown(c.pair)},
          {"decoded", c.decoded},    {"skipped", c.skipped},        {"tail", c.tail}};
}

// As the script hashes it.
inline std::string hashed(const Compared& c) {
  std::vector<int64_t> values;
  std::string texts = cat(c.decoded, std::string_view("\0", 1), c.skipped, std::string_view("\0", 1), c.tail);
  for (const Encoding* e : {&c.plain, &c.special, &c.pair}) {
    values.insert(values.end(), e->ids.begin(), e->ids.end());
    values.insert(values.end(), e->type_ids.begin(), e->type_ids.end());
    for (const auto& [begin, end] : e->offsets) values.insert(values.end(), {int64_t(begin), int64_t(end)});
    std::string tokens;
    for (const std::string& token : e->tokens) (tokens += token) += '\0';
    texts.insert(0, tokens);
  }
  std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  bytes += texts;
  return to_hex(sha256({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
}

// jobs: [{"tokenizer": text of a tokenizer.json | "file": its path, "texts": [...]}]; with "brief": true by a hash of
// all of that, for texts that are many: those whose hash differs are then compared in full.
inline void expect_as_python(const Plain& jobs) {
  const TempFolder scratch;
  write_file(scratch / "script.py", kOracleScript);
  write_file(scratch / "in.json", jobs.dump());
  const PythonRun run =
      run_script(scratch / "script.py", cat((scratch / "in.json").string(), " ", (scratch / "out.json").string()));
  ASSERT_EQ(run.status, 0) << run.output;
  const Plain wanted = Plain::parse(read_file(scratch / "out.json"));
  int shown_failures = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Tokenizer tokenizer = jobs[i].contains("file")
                                    ? Tokenizer::from_file(jobs[i]["file"].get<std::string>())
                                    : Tokenizer::from_json(jobs[i]["tokenizer"].get<std::string>(), "small");
    for (size_t k = 0; k < jobs[i]["texts"].size(); ++k) {
      const auto text = jobs[i]["texts"][k].get<std::string>();
      const bool brief = jobs[i].value("brief", false);
      const Compared made = compared(tokenizer, text);
      const Plain got = brief ? Plain(hashed(made)) : shown(made);
      if (got == wanted[i][k]) continue;
      if (++shown_failures > 8) return;
      if (brief) {
        Plain job = jobs[i];
        job["texts"] = {text};
        job["brief"] = false;
        expect_as_python(Plain::array({job}));
      }
      const std::string which = jobs[i].contains("file") ? jobs[i]["file"].get<std::string>()
                                                         : jobs[i]["tokenizer"].get<std::string>().substr(700, 900);
      ADD_FAILURE() << which << "\ntext " << jobs[i]["texts"][k].dump(-1, ' ', true) << "\nours   "
                    << got.dump(-1, ' ', true) << "\npython " << wanted[i][k].dump(-1, ' ', true);
    }
  }
}

}  // namespace hotswap::test_support
