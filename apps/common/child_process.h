#pragma once
// Running another of our tools: its messages and progress go where ours go, its results nowhere.

#include <filesystem>
#include <string>
#include <vector>

#include <kvq/core/log.h>

namespace kvq::apps {

/// The tool of this name that was built or installed beside the running program. Throws Input when there is none.
std::filesystem::path sibling_tool(const std::string& name);

/// Runs it to its end; answers its exit code (128 + signal when it was killed). Once `cancel` is set the child is asked
/// to stop and waited for. It does not outlive this process, however that ends. Throws Io when it cannot be started.
int run_child(const std::filesystem::path& program, const std::vector<std::string>& arguments,
              const CancelToken& cancel);

}  // namespace kvq::apps
