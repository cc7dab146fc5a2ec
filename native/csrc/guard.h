// Wrapper of every function that Rust calls: catches all C++ exceptions and keeps the text of the last one.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace souk {

// Thread-local; souk_last_error returns it to Rust.
inline thread_local std::string last_error;

template <class F>
int no_throw(F&& f) {
  try {
    f();
    return 0;
  } catch (const c10::Error& e) {
    last_error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "unknown C++ exception";
  }
  return -1;
}

}  // namespace souk
