// Called by an inline function of ProcessGroupGloo.hpp; libtorch_cpu has the definition. Nobody here makes or sizes one.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
