// What a text model is for: only hidden states, or one of these heads on them.
#pragma once

namespace hotswap {

enum class TextTask { kBase, kSequenceClassification, kTokenClassification, kMaskedLM };

}  // namespace hotswap
