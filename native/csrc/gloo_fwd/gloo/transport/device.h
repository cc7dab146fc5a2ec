// Names that ProcessGroupGloo.hpp holds pointers to; libtorch_cpu has the classes.
#pragma once

#include <memory>

namespace gloo {
namespace transport {

class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace transport
}  // namespace gloo
