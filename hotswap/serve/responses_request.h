// A request of OpenAI's /v1/responses, read as the chat that it stands for. Nothing is kept between requests: the whole
// conversation comes with each.
#pragma once

#include <string>

#include "hotswap/serve/answer_format.h"

namespace hotswap::serve {

struct ResponsesRequest {
  GenerationRequest generation;
  OutJson settings;  // the fields of the request that its answer repeats
};

// ApiError (400, 404, 501) naming the field.
ResponsesRequest read_responses_request(const std::string& body, const ServedModel& model);

}  // namespace hotswap::serve
