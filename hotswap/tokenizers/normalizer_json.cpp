#include "hotswap/tokenizers/normalizer_json.h"

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/charsmap.h"
#include "hotswap/tokenizers/normalizer_bert.h"

namespace hotswap::tokenizers {

std::unique_ptr<Normalizer> read_normalizer(const Json& json) {
  const auto type = json.at<std::string>("type");
  if (type == "Sequence") {
    json.only({"type", "normalizers"});
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const Json& part : json.child("normalizers").elements()) parts.push_back(read_normalizer(part));
    return make_normalizer_sequence(std::move(parts));
  }
  constexpr std::pair<std::string_view, NormalizationForm> kForms[] = {{"NFC", NormalizationForm::kNfc},
                                                                       {"NFD", NormalizationForm::kNfd},
                                                                       {"NFKC", NormalizationForm::kNfkc},
                                                                       {"NFKD", NormalizationForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    json.only({"type"});
    return make_form(form);
  }
  if (type == "Replace") {
    json.only({"type", "pattern", "content"});
    return make_replace(Pattern::read(json.child("pattern")), json.at<std::string>("content"));
  }
  if (type == "Prepend") {
    json.only({"type", "prepend"});
    return make_prepend(json.at<std::string>("prepend"));
  }
  if (type == "Lowercase") {
    json.only({"type"});
    return make_lowercase();
  }
  if (type == "StripAccents") return json.only({"type"}), make_strip_accents();
  if (type == "Nmt") return json.only({"type"}), make_nmt();
  if (type == "ByteLevel") return json.only({"type"}), make_byte_level_normalizer();
  if (type == "BertNormalizer") return read_bert_normalizer(json);
  if (type == "Precompiled") return read_precompiled(json);
  if (type == "Strip") {
    json.only({"type", "strip_left", "strip_right"});
    return make_strip(json.at<bool>("strip_left"), json.at<bool>("strip_right"));
  }
  throw Error(
      {.kind = ErrorKind::kUnsupported,
       .wanted = cat("a normalizer of the types Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Lowercase, Strip, "
                     "StripAccents, Nmt, ByteLevel, BertNormalizer, Precompiled at ",
                     json.where()),
       .got = cat("type '", type, "'"),
       .next = "this type is not implemented; use a tokenizer with one of these"});
}

}  // namespace hotswap::tokenizers
