#include "nccl/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "core/base/error.h"

namespace annulus {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kRetryTime = milliseconds{20};
constexpr auto kProgressTime = std::chrono::seconds{5};

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

// Abstract names (a leading zero byte) have 107 characters; jobs may be longer, so the name holds their hash
// (FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/).
Address address_of(const std::string& job) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char character : job) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3u;
  const std::string name = fmt::format("annulus-{}-{:016x}", geteuid(), hash);
  Address address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor make_socket(int flags) {
  FileDescriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  require<CommunicationError>(made.get() >= 0, "cannot make a socket: {}", std::strerror(errno));
  return made;
}

// Names in the abstract namespace have no permissions: anybody could have taken it.
bool belongs_to_this_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool wait_readable(int descriptor, milliseconds limit) {
  pollfd waited{descriptor, POLLIN, 0};
  return poll(&waited, 1, static_cast<int>(limit.count())) > 0;
}

// One byte with the descriptor attached (see unix(7), SCM_RIGHTS).
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

void send_descriptor(int connection, int descriptor) {
  DescriptorMessage message;
  cmsghdr* const attached = CMSG_FIRSTHDR(&message.header);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(attached), &descriptor, sizeof(int));
  (void)sendmsg(connection, &message.header, MSG_NOSIGNAL);  // a rank that is gone is missed by the join
}

FileDescriptor receive_descriptor(int connection) {
  DescriptorMessage message;
  if (recvmsg(connection, &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return FileDescriptor();
  const cmsghdr* const attached = CMSG_FIRSTHDR(&message.header);
  if (attached == nullptr || attached->cmsg_type != SCM_RIGHTS) return FileDescriptor();
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(attached), sizeof(int));
  return FileDescriptor(descriptor);
}

}  // namespace

SegmentOffer::SegmentOffer(const std::string& job, int segment, milliseconds deadline)
    : socket_(make_socket(SOCK_NONBLOCK)), segment_(segment) {
  const Address address = address_of(job);
  const auto start = Clock::now();
  while (bind(socket_.get(), address.get(), address.size) != 0) {
    require<CommunicationError>(errno == EADDRINUSE, "cannot listen for the other ranks: {}",
                                std::strerror(errno));
    require<CommunicationError>(Clock::now() - start < deadline,
                                "another process is waiting as rank 0 of the same job ({}); end it first",
                                job);
    std::this_thread::sleep_for(kRetryTime);
  }
  const bool listening = listen(socket_.get(), SOMAXCONN) == 0;
  require<CommunicationError>(listening, "cannot listen for the other ranks: {}", std::strerror(errno));
}

void SegmentOffer::serve(milliseconds limit) const {
  if (!wait_readable(socket_.get(), limit)) return;
  for (;;) {
    const FileDescriptor connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) return;
    if (belongs_to_this_user(connection.get())) send_descriptor(connection.get(), segment_);
  }
}

FileDescriptor receive_segment(const std::string& job, milliseconds deadline,
                               const std::function<void(std::string_view)>& progress) {
  const Address address = address_of(job);
  const auto start = Clock::now();
  auto next_progress = start + kProgressTime;
  for (;;) {
    const FileDescriptor connection = make_socket(0);
    if (connect(connection.get(), address.get(), address.size) == 0 &&
        belongs_to_this_user(connection.get()) && wait_readable(connection.get(), kProgressTime)) {
      FileDescriptor segment = receive_descriptor(connection.get());
      if (segment.get() >= 0) return segment;
    }
    const auto now = Clock::now();
    require<CommunicationError>(
        now - start < deadline,
        "waited {:.1f} s for rank 0 of job ({}), which is not on this host or does not answer",
        std::chrono::duration<double>(now - start).count(), job);
    if (progress && now > next_progress) {
      next_progress += kProgressTime;
      progress("waiting for rank 0");
    }
    std::this_thread::sleep_for(kRetryTime);
  }
}

}  // namespace annulus
