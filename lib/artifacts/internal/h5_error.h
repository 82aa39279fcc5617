#pragma once
// HDF5 calls without its error output, and its error stack as a message.

#include <string>
#include <utility>

#include <hdf5.h>

namespace kvq::h5 {

/// Innermost message of HDF5's current error stack; empty when there is none.
std::string last_error();

/// Throws Memory when the error stack speaks of an allocation and there is no memory to be had. HDF5 says the same of
/// a damaged file that asks for an absurd size: that is not for this.
void check_memory();

/// Calls `call` with HDF5's printing switched off. A negative result fills `message`.
template <class Call>
auto attempt_without_check(Call&& call, std::string& message) {
  H5E_auto2_t print = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &print, &data);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const auto result = call();
  if (result < 0) message = last_error();
  H5Eset_auto2(H5E_DEFAULT, print, data);
  return result;
}

/// The same. Throws as check_memory(): no file may be called damaged because memory ran out.
template <class Call>
auto attempt(Call&& call, std::string& message) {
  const auto result = attempt_without_check(std::forward<Call>(call), message);
  if (result < 0) check_memory();
  return result;
}

/// The same where failure is an answer, not an error.
template <class Call>
auto attempt(Call&& call) {
  std::string ignored;
  return attempt(std::forward<Call>(call), ignored);
}

}  // namespace kvq::h5
