// What every function that Rust calls goes through: no C++ exception leaves it, the text of the last one is kept.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace souk {

// Of the calling thread; souk_last_error hands it to Rust.
inline thread_local std::string last_error;

template <class F>
int guarded(F&& f) {
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
