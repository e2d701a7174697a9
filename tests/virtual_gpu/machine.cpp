#include "machine.h"

#include <fmt/format.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "block.h"
#include "report.h"

namespace virtual_gpu {
namespace {

std::size_t environment_number(const char* name, std::size_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Raised by the processor when code touches device memory without its key.
void on_access_fault(int signal, siginfo_t* info, void* context) {
  const void* const code =
      reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  for (const auto& device : machine().devices)
    if (device->memory.contains(info->si_addr))
      report(code, "{} touches {}", in_device_code() ? "device code" : "host code",
             device->memory.describe(info->si_addr));
  ::signal(signal, SIG_DFL);  // not ours: happens again, and ends the process as it would have
}

void end_with_leak_report() {
  const std::string leaks = machine().leaks();
  if (leaks.empty()) return;
  std::fprintf(stderr, "virtual GPU: not released at exit:\n%s", leaks.c_str());
  std::fflush(nullptr);
  _exit(EXIT_FAILURE);
}

}  // namespace

Machine& machine() {
  // Leaked on purpose: destructors of static objects of the program may still call the runtime.
  static Machine* const instance = [] {
    auto* made = new Machine;
    struct sigaction action = {};
    action.sa_sigaction = on_access_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    std::atexit(end_with_leak_report);
    return made;
  }();
  return *instance;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

std::string describe_foreign(const void* address) {
  for (const auto& device : machine().devices)
    if (device->memory.contains(address)) return "; it is " + device->memory.describe(address);
  return machine().pinned.contains(address, 1) ? "; it is page-locked host memory" : "; it is host memory";
}

Machine::Machine() {
  const std::size_t count = environment_number("ANNULUS_VIRTUAL_GPUS", 4);
  for (std::size_t i = 0; i < count; ++i) {
    devices.push_back(std::make_unique<VirtualDevice>(static_cast<int>(i)));
    devices.back()->default_stream.device = static_cast<int>(i);
  }
  set_seed(environment_number("ANNULUS_VIRTUAL_GPU_SEED", 1));
}

Machine::~Machine() = default;

void Machine::set_seed(std::uint64_t seed) {
  drain("set_seed");
  random_.seed(seed);
  eagerness_ = static_cast<Eagerness>(seed % 3);
}

Stream& Machine::stream(cudaStream_t handle, const char* call) {
  if (handle == nullptr) return devices[static_cast<std::size_t>(current_device())]->default_stream;
  for (Stream& stream : streams)
    if (&stream == handle && !stream.destroyed) return stream;
  report(nullptr, "{}: the stream was destroyed or never created", call);
}

void Machine::enqueue(Stream& stream, Operation operation) {
  if (stream.capture != nullptr) {
    capture_node(stream, [operation = std::move(operation)] { return operation; });
    return;
  }
  stream.queue.push_back(std::move(operation));
  ++steps_;
  changed.notify_all();
  if (eagerness_ != Eagerness::lazy) run_a_little();
}

void Machine::enqueue_each(Stream& stream, MakeOperation make) {
  if (stream.capture != nullptr)
    capture_node(stream, std::move(make));
  else
    enqueue(stream, make());
}

void Machine::run_a_little() {
  while (eagerness_ == Eagerness::eager || random_() % 2 == 0) {
    const std::vector<Stream*> candidates = startable();
    if (candidates.empty()) return;
    run_one(*candidates[random_() % candidates.size()]);
  }
}

template <class Visit>
void Machine::for_each_stream(Visit visit) {
  for (const auto& device : devices) visit(device->default_stream);
  for (Stream& stream : streams) visit(stream);
}

void Machine::run_until(const std::function<bool()>& done, const char* call) {
  auto last_progress = std::chrono::steady_clock::now();
  std::uint64_t seen = 0;
  while (!done()) {
    if (const std::vector<Stream*> candidates = startable(); !candidates.empty()) {
      run_one(*candidates[random_() % candidates.size()]);
      continue;
    }
    if (seen != steps_) last_progress = std::chrono::steady_clock::now();
    seen = steps_;
    wait_for_other_threads(last_progress + patience, call);
  }
}

void Machine::wait_for_other_threads(std::chrono::steady_clock::time_point give_up, const char* call) {
  const std::string waits = other_threads_waits ? other_threads_waits() : "";
  if (!waits.empty() && std::chrono::steady_clock::now() < give_up) {
    changed.wait_for(mutex, std::chrono::milliseconds(20));
    return;
  }
  bool hangs = false;
  for_each_stream([&](const Stream& stream) { hangs = hangs || stream.hangs; });
  report(nullptr, "{} waits for {}{}", call,
         hangs ? "a kernel that hangs" : "work that nothing can start any more", waits);
}

void Machine::drain(const char* call) {
  for (const auto& device : devices) drain(device->memory.ordinal(), call);
}

void Machine::drain(int device, const char* call) {
  const auto idle = [&] {
    bool result = true;
    for_each_stream(
        [&](const Stream& stream) { result = result && (stream.device != device || stream.queue.empty()); });
    return result;
  };
  run_until(idle, call);
}

std::vector<Stream*> Machine::startable() {
  std::vector<Stream*> result;
  for_each_stream([&](Stream& stream) {
    if (stream.queue.empty() || stream.hangs) return;
    const auto& may_start = stream.queue.front().may_start;
    if (!may_start || devices[static_cast<std::size_t>(stream.device)]->failed || may_start())
      result.push_back(&stream);
  });
  return result;
}

void Machine::run_one(Stream& stream) {
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++steps_;
  running_ = &stream;
  if (!devices[static_cast<std::size_t>(stream.device)]->failed) operation.run();
  if (stream.destroyed && stream.queue.empty())
    streams.remove_if([&](const Stream& other) { return &other == &stream; });
}

bool Machine::meets_fault(VirtualDevice& device) {
  if (device.failing_launch != 0 && --device.failing_launch == 0) {
    device.failed = true;
    return true;
  }
  if (device.hanging_launch != 0 && --device.hanging_launch == 0) {
    running_->hangs = true;
    running_->queue.push_front({[] {}, {}});  // the rest of the kernel
    return true;
  }
  return false;
}

void Machine::fail_launch(int device, std::size_t nth) {
  devices.at(static_cast<std::size_t>(device))->failing_launch = nth;
}

void Machine::hang_launch(int device, std::size_t nth) {
  devices.at(static_cast<std::size_t>(device))->hanging_launch = nth;
}

void Machine::revive(int device) {
  VirtualDevice& revived = *devices.at(static_cast<std::size_t>(device));
  revived.failed = false;
  revived.failing_launch = revived.hanging_launch = 0;
  for_each_stream([&](Stream& stream) {
    if (stream.device == device) stream.hangs = false;
  });
}

std::string Machine::leaks() const {
  std::string text;
  for (const auto& device : devices) text += device->memory.describe_live();
  text += pinned.describe_live();
  const auto live =
      std::count_if(streams.begin(), streams.end(), [](const Stream& s) { return !s.destroyed; });
  if (live != 0) text += fmt::format("  {} streams\n", live);
  if (live_events != 0) text += fmt::format("  {} events\n", live_events);
  for (const auto& [object, what] : objects) text += fmt::format("  a {}\n", what);
  if (!graphs.empty()) text += fmt::format("  {} graphs\n", graphs.size());
  if (!graph_execs.empty()) text += fmt::format("  {} executable graphs\n", graph_execs.size());
  return text;
}

DeviceLedger ledger(int device) {
  const std::lock_guard lock(machine().mutex);
  return machine().devices.at(static_cast<std::size_t>(device))->ledger;
}

void set_seed(std::uint64_t seed) {
  const std::lock_guard lock(machine().mutex);
  machine().set_seed(seed);
}

void fail_allocation(std::size_t nth) {
  const std::lock_guard lock(machine().mutex);
  machine().failing_allocation = nth;
}

void fail_launch(int device, std::size_t nth) {
  const std::lock_guard lock(machine().mutex);
  machine().fail_launch(device, nth);
}

void hang_launch(int device, std::size_t nth) {
  const std::lock_guard lock(machine().mutex);
  machine().hang_launch(device, nth);
}

void revive(int device) {
  const std::lock_guard lock(machine().mutex);
  machine().revive(device);
}

SparseAllocations::SparseAllocations(SparseContents contents) {
  const std::lock_guard lock(machine().mutex);
  machine().sparse_allocations = contents;
}

SparseAllocations::~SparseAllocations() {
  const std::lock_guard lock(machine().mutex);
  machine().sparse_allocations.reset();
}

OnlyBlocks::OnlyBlocks(Select select) {
  const std::lock_guard lock(machine().mutex);
  machine().only_blocks = std::move(select);
}

OnlyBlocks::~OnlyBlocks() {
  const std::lock_guard lock(machine().mutex);
  machine().only_blocks = nullptr;
}

std::string leak_report() {
  const std::lock_guard lock(machine().mutex);
  return machine().leaks();
}

}  // namespace virtual_gpu
