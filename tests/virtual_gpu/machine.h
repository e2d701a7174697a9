// The one machine of a process: devices, streams, and the scheduler that runs the queued work.
//
// Nothing runs in the background. Work waits in its stream's queue and is run, under one lock, by whichever
// host thread waits for something or, now and then, by one that queues more. Which stream goes on, and how
// much is done early, is up to a random number generator with a seed, so a schedule can be repeated; whatever
// the programming model does not order, happens in another order under another seed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph.h"
#include "include/cuda_runtime.h"
#include "memory.h"
#include "virtual_gpu.h"

namespace virtual_gpu {

/// A recorded point: `requested` counts cudaEventRecord calls, `completed` is the last one that streams
/// reached.
struct EventState {
  std::uint64_t requested = 0;
  std::uint64_t completed = 0;
  double completed_seconds = 0;
  int device = 0;
  bool destroyed = false;
  std::shared_ptr<Capture> capture;  ///< that the last record was part of, or null
  Frontier frontier;                 ///< of the stream, then
};

struct Event {
  std::shared_ptr<EventState> state;
  bool timed = false;
};

struct Operation {
  std::function<void()> run;
  std::function<bool()> may_start;  ///< empty: at once
};

struct Stream {
  int device = 0;
  std::deque<Operation> queue;
  bool hangs = false;                ///< on a kernel that never ends
  bool destroyed = false;            ///< by the program; it goes when its queue is empty
  std::shared_ptr<Capture> capture;  ///< takes what is queued, while it lasts
  Frontier frontier;                 ///< in the capture
};

struct VirtualDevice {
  explicit VirtualDevice(int ordinal) : memory(ordinal) {}
  DeviceMemory memory;
  DeviceLedger ledger;
  Stream default_stream;
  std::size_t failing_launch = 0;  ///< counts down to the one that fails; 0: none does
  std::size_t hanging_launch = 0;  ///< the same, for the one that hangs
  bool failed = false;
};

class Machine {
 public:
  /// Held during every call.
  std::recursive_mutex mutex;

  Machine();
  ~Machine();

  std::vector<std::unique_ptr<VirtualDevice>> devices;
  PinnedMemory pinned;
  std::list<Stream> streams;
  std::size_t live_events = 0;
  std::map<const void*, const char*> objects;  ///< live ones of libraries, and what each is
  RefusedMatmuls refused_matmuls = RefusedMatmuls::none;
  std::list<std::shared_ptr<Graph>> graphs;
  std::list<std::shared_ptr<GraphExec>> graph_execs;
  std::size_t failing_allocation = 0;  ///< counts down to the one that fails; 0: none does
  std::uint32_t launch_serial = 0;
  std::optional<SparseContents> sparse_allocations;  ///< how device memory is allocated now; empty: as usual
  OnlyBlocks::Select only_blocks;                    ///< which blocks launches run now; empty: all

  /// What only calls of other threads can bring about, in words; empty if nothing waits for that.
  std::function<std::string()> other_threads_waits;
  std::condition_variable_any changed;  ///< notified of such calls
  std::chrono::milliseconds patience{60000};

  std::mt19937_64& random() { return random_; }
  void set_seed(std::uint64_t seed);

  /// The stream for a handle; reports one that was destroyed or never made.
  Stream& stream(cudaStream_t handle, const char* call);

  /// Queues work, or captures it. What must be made anew for every launch of a graph goes through
  /// enqueue_each.
  void enqueue(Stream& stream, Operation operation);
  void enqueue_each(Stream& stream, MakeOperation make);

  /// Runs queued work until `done` holds. Reports a deadlock if nothing can run before that, and no other
  /// thread brings it about while there is patience.
  void run_until(const std::function<bool()>& done, const char* call);

  /// Time passes: some of the queued work runs, or none.
  void run_a_little();

  /// Runs everything, or everything of one device.
  void drain(const char* call);
  void drain(int device, const char* call);

  /// To be called by every kernel before it runs on `device`. True if it must not, because it fails or hangs.
  bool meets_fault(VirtualDevice& device);

  void fail_launch(int device, std::size_t nth);
  void hang_launch(int device, std::size_t nth);
  void revive(int device);

  std::string leaks() const;

 private:
  template <class Visit>
  void for_each_stream(Visit visit);
  std::vector<Stream*> startable();
  void run_one(Stream& stream);
  void wait_for_other_threads(std::chrono::steady_clock::time_point give_up, const char* call);

  // How much runs before anybody waits for it, and what runs while somebody waits.
  enum class Eagerness { lazy, random, eager };

  std::mt19937_64 random_;
  Eagerness eagerness_ = Eagerness::lazy;
  Stream* running_ = nullptr;  // whose work runs
  std::uint64_t steps_ = 0;    // pieces of work queued or run
};

Machine& machine();

/// The device of the calling host thread.
int& current_device();

/// "; it is byte 8 of ...", whatever can be said about an address that is not the running device's.
std::string describe_foreign(const void* address);

}  // namespace virtual_gpu
