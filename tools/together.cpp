#include "tools/together.h"

#include <cstdint>
#include <exception>
#include <vector>

namespace annulus {

void together(Communicator& communicator, const std::function<void()>& action) {
  std::exception_ptr own;
  try {
    action();
  } catch (...) {
    own = std::current_exception();
  }
  const std::uint8_t failed = own ? 1 : 0;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(communicator.world_size()));
  communicator.all_gather(&failed, all.data(), 1, DType::u8, StreamView());
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == 0) continue;
    if (rank == communicator.rank()) std::rethrow_exception(own);
    fail<RelayedError>("rank {} failed and reports why", rank);
  }
}

std::string broadcast_text(Communicator& communicator, const std::string& text) {
  std::string result = text;
  auto size = static_cast<std::int64_t>(text.size());
  communicator.broadcast(&size, 1, DType::i64, 0, StreamView());
  result.resize(static_cast<std::size_t>(size));
  if (size > 0) communicator.broadcast(result.data(), result.size(), DType::u8, 0, StreamView());
  return result;
}

bool any_rank(Communicator& communicator, bool yes) {
  std::int64_t count = yes ? 1 : 0;
  communicator.all_reduce_sum(&count, 1, DType::i64, StreamView());
  return count > 0;
}

}  // namespace annulus
