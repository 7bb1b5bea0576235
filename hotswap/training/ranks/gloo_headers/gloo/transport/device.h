// Stand-in for gloo's header, which the torch package lacks: c10d's header only has pointers to these.
#pragma once

namespace gloo::transport {

class Device;
struct UnboundBuffer;

}  // namespace gloo::transport
