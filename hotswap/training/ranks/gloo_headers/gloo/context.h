// Stand-in for gloo's header, which the torch package lacks: what inline code of c10d's ProcessGroupGloo.hpp needs of
// it.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
