// The time of every kernel, and how near it comes to its limit: the device's own copy for those that memory
// limits, another engine beside it for convolutions and linear layers. METRICS.md defines every column.
//
//   bench_kernels --device cuda --only conv2d --rounds 7 --seconds 0.2 [--json]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/kernel_case.h"
#include "core/base/error.h"
#include "core/base/graph.h"
#include "kernels/elementwise.h"

namespace annulus::bench {
namespace {

struct Settings {
  Device device;
  int rounds = 7;
  double seconds = 0.2;  ///< of all rounds of one engine
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds that the stream spends on what `submit` submits.
template <class Submit>
double seconds_of(StreamView stream, const Submit& submit) {
  Event start(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  start.record(stream);
  submit();
  end.record(stream);
  stream.synchronize();
  return end.seconds_since(start);
}

/// A number of calls of a computation, in turn on several sets of arrays; on a CUDA device as a graph, so
/// that the host does not hold the device up.
class Calls {
 public:
  Calls(const KernelCase& kernel_case, const KernelCase::Engine& engine, const Settings& settings)
      : stream_(settings.device) {
    constexpr double kBeyondCache = 256e6;
    const std::size_t sets =
        settings.device.is_cpu()
            ? 1
            : static_cast<std::size_t>(std::clamp(kBeyondCache / kernel_case.bytes, 1.0, 8.0));
    for (std::size_t i = 0; i < sets; ++i) {
      arrays_.emplace_back(stream_);
      computations_.push_back(engine.make(arrays_.back(), settings.device));
    }
    const auto once = [this] { submit(1); };
    once();  // plans, first touches
    const double one = std::min(seconds_of(stream_, once), seconds_of(stream_, once));
    const double wanted = settings.seconds / settings.rounds;
    count_ = static_cast<std::size_t>(std::clamp(wanted / std::max(one, 1e-7), 1.0, 1000.0));
    if (settings.device.is_cuda()) graph_ = Graph::capture(stream_, [this] { submit(count_); });
  }

  /// Seconds of one call.
  double measure() {
    const double all = seconds_of(stream_, [this] { graph_ ? graph_.launch(stream_) : submit(count_); });
    return all / static_cast<double>(count_);
  }

 private:
  void submit(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) computations_[i % computations_.size()](stream_);
  }

  Stream stream_;
  std::list<Arrays> arrays_;
  std::vector<Computation> computations_;
  std::size_t count_ = 1;
  Graph graph_;
};

std::vector<float> to_host(const Tensor& tensor, StreamView stream) {
  Buffer converted;
  Tensor values = tensor;
  if (tensor.dtype() == DType::bf16) {
    converted = Buffer(tensor.device(), tensor.elements() * sizeof(float));
    values = Tensor(converted.data(), tensor.shape(), DType::f32, tensor.device());
    kernels::cast(stream, tensor, values);
  }
  std::vector<std::byte> bytes(values.bytes());
  copy_bytes(stream, bytes.data(), values.data(), bytes.size());
  stream.synchronize();
  std::vector<float> host(values.elements());
  for (std::size_t i = 0; i < host.size(); ++i)
    host[i] = values.dtype() == DType::u8 ? static_cast<float>(std::to_integer<int>(bytes[i]))
                                          : reinterpret_cast<const float*>(bytes.data())[i];
  return host;
}

std::vector<std::vector<float>> outputs_of(const KernelCase::Engine& engine, Device device) {
  const Stream stream(device);
  Arrays arrays(stream);
  engine.make(arrays, device)(stream);
  std::vector<std::vector<float>> outputs;
  for (const Tensor& output : arrays.outputs()) outputs.push_back(to_host(output, stream));
  return outputs;
}

/// Throws unless both engines, on their devices, give the same outputs: their distance is a small part of
/// their norm.
void verify(const KernelCase& kernel_case, const KernelCase::Engine& a, Device device_a,
            const KernelCase::Engine& b, Device device_b) {
  const double tolerance = kernel_case.precision == Precision::bf16   ? 2e-2
                           : kernel_case.precision == Precision::tf32 ? 2e-3
                                                                      : 1e-4;
  const auto outputs_a = outputs_of(a, device_a), outputs_b = outputs_of(b, device_b);
  for (std::size_t i = 0; i < outputs_a.size(); ++i) {
    double distance = 0, norm = 0;
    for (std::size_t e = 0; e < outputs_a[i].size(); ++e) {
      const double x = static_cast<double>(outputs_a[i][e]), y = static_cast<double>(outputs_b[i][e]);
      distance += (x - y) * (x - y);
      norm += y * y;
    }
    require<NonFiniteError>(
        std::sqrt(distance) <= tolerance * std::sqrt(norm),
        "{} of {} in {}: output {} of {} on {} is {} away from that of {} on {}, whose norm is {}",
        kernel_case.kernel, kernel_case.shape, name_of(kernel_case.precision), i, a.name,
        device_a.to_string(), std::sqrt(distance), b.name, device_b.to_string(), std::sqrt(norm));
  }
}

/// Bytes read and written a second by a copy within the device, beyond its caches.
double copy_bandwidth(const Settings& settings) {
  const std::size_t bytes = std::size_t{settings.device.is_cpu() ? 64u : 1024u} << 20;
  const Stream stream(settings.device);
  const Buffer from(settings.device, bytes), to(settings.device, bytes);
  zero_bytes(stream, from.data(), bytes);
  const auto copy = [&] { copy_bytes(stream, to.data(), from.data(), bytes); };
  copy();
  std::vector<double> rates;
  for (int i = 0; i < settings.rounds; ++i)
    rates.push_back(2 * static_cast<double>(bytes) / seconds_of(stream, copy));
  return median(rates);
}

/// One row for each engine.
std::vector<nlohmann::json> measure(const KernelCase& kernel_case, const Settings& settings, double copy) {
  const auto& engines = kernel_case.engines;
  for (std::size_t i = 1; i < engines.size(); ++i)
    verify(kernel_case, engines[0], settings.device, engines[i], settings.device);
  if (settings.device.is_cuda() && kernel_case.precision == Precision::f32 && !kernel_case.large)
    verify(kernel_case, engines[0], settings.device, engines[0], Device::cpu());

  std::vector<std::vector<double>> seconds(engines.size());
  {
    std::list<Calls> calls;
    for (const KernelCase::Engine& engine : engines) calls.emplace_back(kernel_case, engine, settings);
    for (int round = 0; round < settings.rounds; ++round) {
      std::size_t engine = 0;
      for (Calls& each : calls) seconds[engine++].push_back(each.measure());
    }
  }
  std::vector<nlohmann::json> rows;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const double time = median(seconds[i]);
    nlohmann::json row = {{"kernel", kernel_case.kernel},
                          {"shape", kernel_case.shape},
                          {"precision", name_of(kernel_case.precision)},
                          {"engine", engines[i].name},
                          {"device", settings.device.to_string()},
                          {"time_us", 1e6 * time},
                          {"gb_per_s", 1e-9 * kernel_case.bytes / time},
                          {"copy_gb_per_s", 1e-9 * copy}};
    if (kernel_case.flop > 0) row["gflops"] = 1e-9 * kernel_case.flop / time;
    if (kernel_case.flop == 0) row["fraction_of_copy"] = kernel_case.bytes / time / copy;
    if (i > 0) {
      std::vector<double> ratios;
      for (int round = 0; round < settings.rounds; ++round)
        ratios.push_back(seconds[i][static_cast<std::size_t>(round)] /
                         seconds[0][static_cast<std::size_t>(round)]);
      row["times_annulus"] = median(ratios);
    }
    rows.push_back(row);
  }
  return rows;
}

void print_header(double copy) {
  fmt::print("copy within the device: {:.1f} GB/s\n", 1e-9 * copy);
  fmt::print("{:24} {:34} {:5} {:12} {:>10} {:>8} {:>6} {:>9} {:>6}\n", "kernel", "shape", "prec", "engine",
             "time us", "GB/s", "% copy", "GFLOP/s", "ratio");
}

void print_row(const nlohmann::json& row) {
  const auto number = [&](const char* key, int digits, double factor = 1) {
    return row.contains(key) ? fmt::format("{:.{}f}", factor * row[key].get<double>(), digits)
                             : std::string("-");
  };
  fmt::print("{:24} {:34} {:5} {:12} {:>10} {:>8} {:>6} {:>9} {:>6}\n", row["kernel"].get<std::string>(),
             row["shape"].get<std::string>(), row["precision"].get<std::string>(),
             row["engine"].get<std::string>(), number("time_us", 2), number("gb_per_s", 1),
             number("fraction_of_copy", 1, 100), number("gflops", 1), number("times_annulus", 2));
}

int run(int argc, char** argv) {
  Settings settings;
  std::string device = "cuda:0";
  std::vector<std::string> only;
  bool json = false;
  CLI::App app("The time of every kernel, and how near it comes to its limit");
  app.add_option("--device", device, "cpu or cuda:K")->capture_default_str();
  app.add_option("--only", only, "kernels whose name has this in it; may be given several times");
  app.add_option("--rounds", settings.rounds, "rounds in which the engines take turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "measured per kernel and engine, over all rounds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", json, "one JSON object a line instead of a table");
  if (!parse_options(app, argc, argv)) return 0;
  settings.device = Device::parse(device);
  require<DeviceError>(settings.device.is_cpu() || settings.device.ordinal < cuda_device_count(),
                       "--device {} is not possible here: {}", device,
                       cuda_device_count() == 0
                           ? cuda_unavailable_reason()
                           : fmt::format("there are {} CUDA devices", cuda_device_count()));

  std::vector<KernelCase> cases = memory_bound_cases(settings.device);
  for (KernelCase& each : matrix_cases(settings.device)) cases.push_back(std::move(each));
  if (!only.empty())
    std::erase_if(cases, [&](const KernelCase& each) {
      return std::none_of(only.begin(), only.end(), [&](const std::string& text) {
        return each.kernel.find(text) != std::string::npos;
      });
    });
  require<ConfigError>(!cases.empty(), "--only {}: no kernel has that in its name", fmt::join(only, ", "));

  const double copy = copy_bandwidth(settings);
  if (!json) print_header(copy);
  for (const KernelCase& each : cases)
    for (const nlohmann::json& row : measure(each, settings, copy)) write_row(row, json, print_row);
  return 0;
}

}  // namespace
}  // namespace annulus::bench

int main(int argc, char** argv) {
  return annulus::bench::run_program("bench_kernels", annulus::bench::run, argc, argv);
}
