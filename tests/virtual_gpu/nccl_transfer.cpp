// What the launches of the virtual GPU's NCCL do with memory.
#include <cstring>

#include "nccl_clique.h"
#include "report.h"

namespace virtual_gpu {
namespace {

// Bytes of a device that a call reads or writes.
struct Range {
  char* begin = nullptr;
  std::size_t bytes = 0;
  bool overlaps(const Range& other) const {
    return bytes != 0 && other.bytes != 0 && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

std::size_t ranks_of(const NcclLaunch::Entry& entry) { return entry.meeting->parts.size(); }

Range input_of(const NcclLaunch::Entry& entry) {
  const NcclCall& call = entry.own().call;
  if (call.send == nullptr) return {};
  const std::size_t pieces = call.kind == NcclKind::reduce_scatter ? ranks_of(entry) : 1;
  return {const_cast<char*>(static_cast<const char*>(call.send)), pieces * call.bytes()};
}

// In pieces, one per rank, where an all-gather receives; what is there already, in place, is left out.
std::vector<Range> outputs_of(const NcclLaunch::Entry& entry) {
  const NcclCall& call = entry.own().call;
  if (call.receive == nullptr) return {};
  char* const begin = static_cast<char*>(call.receive);
  const std::size_t pieces = call.kind == NcclKind::all_gather ? ranks_of(entry) : 1;
  std::vector<Range> result;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const Range range{begin + piece * call.bytes(), call.bytes()};
    const bool copies_own =
        call.kind == NcclKind::broadcast || (call.kind == NcclKind::all_gather && piece == entry.part);
    result.push_back(copies_own && range.begin == call.send ? Range{} : range);
  }
  return result;
}

// A collective may work in place where it says so; nothing else may be read and written, or written twice.
void check_overlaps(const NcclRank& rank, const NcclLaunch& launch) {
  for (const NcclLaunch::Entry& entry : launch.entries)
    for (const Range& output : outputs_of(entry))
      for (const NcclLaunch::Entry& other : launch.entries) {
        const NcclCall& call = entry.own().call;
        const Range input = input_of(other);
        const std::size_t in_place =
            call.kind == NcclKind::reduce_scatter ? static_cast<std::size_t>(rank.rank) * call.bytes() : 0;
        const bool allowed = &entry == &other && call.reduces() && output.begin == input.begin + in_place;
        bool twice = false;
        if (&entry < &other)
          for (const Range& second : outputs_of(other)) twice = twice || second.overlaps(output);
        if (twice || (!allowed && input.overlaps(output)))
          report(nullptr, "{} on {}: what it receives overlaps what {}{}", describe(call), rank.name(),
                 &entry == &other ? "it sends" : describe(other.own().call) + " of the same group uses",
                 &entry == &other ? ", and not in the way that NCCL calls in place" : "");
      }
}

void write_output(const NcclLaunch::Entry& entry, std::size_t piece, const Range& output) {
  NcclMeeting& meeting = *entry.meeting;
  const NcclCall& call = entry.own().call;
  const char* source = nullptr;
  switch (call.kind) {
    case NcclKind::all_reduce:
      source = meeting.sum.data();
      break;
    case NcclKind::reduce_scatter:
      source = meeting.sum.data() + entry.part * call.bytes();
      break;
    case NcclKind::all_gather:
      source = meeting.parts[piece]->input.data();
      break;
    case NcclKind::broadcast:
      source = meeting.parts[static_cast<std::size_t>(call.other)]->input.data();
      break;
    case NcclKind::send:
    case NcclKind::receive:
      source = meeting.parts[0]->input.data();
      break;
  }
  std::memcpy(output.begin, source, output.bytes);
}

void reduce(NcclMeeting& meeting) {
  const NcclCall& call = meeting.parts[0]->call;
  std::vector<const char*> inputs;
  for (const auto& part : meeting.parts) inputs.push_back(part->input.data());
  meeting.sum = reduce_in_some_order(inputs, meeting.parts[0]->input.size() / nccl_bytes(call.dtype),
                                     call.dtype, call.op, machine().random());
}

}  // namespace

void begin_launch(const NcclRank& rank, NcclLaunch& launch) {
  VirtualDevice& device = device_of(rank.device);
  check_overlaps(rank, launch);
  const DeviceMemory::Access access(device.memory);
  for (const NcclLaunch::Entry& entry : launch.entries) {
    const Range input = input_of(entry);
    NcclPart& own = *entry.meeting->parts[entry.part];
    const std::string name = describe(own.call) + " on " + rank.name() + ":";
    if (input.bytes != 0) {
      check_allocated(device, input.begin, input.bytes, (name + " the send buffer").c_str());
      if (const void* bad = device.memory.shadow().first_unwritten(input.begin, input.bytes))
        report(nullptr, "{} read of never-written memory: {}", name, device.memory.describe(bad));
      own.input.assign(input.begin, input.begin + input.bytes);
    }
    for (const Range& output : outputs_of(entry))
      if (output.bytes != 0)
        check_allocated(device, output.begin, output.bytes, (name + " the receive buffer").c_str());
    own.arrived = true;
  }
  for (const NcclLaunch::Entry& entry : launch.entries)
    for (const Range& output : outputs_of(entry)) {
      if (output.bytes == 0) continue;
      std::memset(output.begin, 0xff, output.bytes);
      device.memory.shadow().set(output.begin, output.bytes, ByteState::unwritten);
    }
}

void end_launch(const NcclRank& rank, NcclLaunch& launch) {
  VirtualDevice& device = device_of(rank.device);
  const DeviceMemory::Access access(device.memory);
  for (const NcclLaunch::Entry& entry : launch.entries) {
    NcclMeeting& meeting = *entry.meeting;
    if (!meeting.happened && entry.own().call.reduces()) reduce(meeting);
    meeting.happened = true;
    const std::vector<Range> outputs = outputs_of(entry);
    for (std::size_t piece = 0; piece < outputs.size(); ++piece) {
      const Range& output = outputs[piece];
      if (output.bytes == 0) continue;
      check_allocated(device, output.begin, output.bytes, "the end of a collective");
      write_output(entry, piece, output);
      device.memory.shadow().set(output.begin, output.bytes, ByteState::written);
    }
  }
}

void abandon_launch(const NcclRank& rank, NcclLaunch& launch) {
  VirtualDevice& device = device_of(rank.device);
  const DeviceMemory::Access access(device.memory);
  for (const NcclLaunch::Entry& entry : launch.entries)
    for (const Range& output : outputs_of(entry)) {
      if (output.bytes == 0 || device.memory.shadow().first_forbidden(output.begin, output.bytes)) continue;
      std::memset(output.begin, 0xff, output.bytes);
      device.memory.shadow().set(output.begin, output.bytes, ByteState::written);
    }
}

}  // namespace virtual_gpu
