#pragma once
// Catch2 v2 (Debian 12, Ubuntu 22.04) and v3 (Ubuntu 24.04) behind one include.

// libtorch has a CHECK that ends the program, in a header that many of its headers draw in: it comes first, and goes.
#include <c10/util/Logging.h>
#undef CHECK

#if KVQ_CATCH2_MAJOR >= 3  // of the one that CMake found: there may be headers of another
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif
