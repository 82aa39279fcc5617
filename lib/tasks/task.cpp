#include <kvq/tasks/task.h>

#include <kvq/text/chat.h>

namespace kvq {

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& message, const std::string& lead,
                                     bool chat, bool prepend_bos) {
  std::vector<std::int32_t> ids =
      tokenizer.encode(chat ? render_chat(tokenizer, {{"user", message}}, true) : message + lead);
  if (prepend_bos && tokenizer.bos_id && (ids.empty() || ids.front() != *tokenizer.bos_id)) {
    ids.insert(ids.begin(), *tokenizer.bos_id);
  }
  return ids;
}

bool cut_middle(std::vector<std::int32_t>& ids, std::int64_t length) {
  const auto size = static_cast<std::int64_t>(ids.size());
  if (size <= length) return false;
  const std::int64_t front = length / 2;
  ids.erase(ids.begin() + front, ids.end() - (length - front));
  return true;
}

}  // namespace kvq
