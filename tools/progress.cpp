#include "tools/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace annulus {

namespace {

constexpr std::size_t kBarWidth = 24;
constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::seconds kLineInterval{10};

}  // namespace

Progress::Progress(std::FILE* out, bool terminal, bool silent)
    : out_(out), terminal_(terminal), silent_(silent), shown_(std::chrono::steady_clock::now()) {}

void Progress::line(std::string_view text) {
  if (silent_) return;
  erase_bar();
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void Progress::step(const StepRecord& record, const RunTotals& epoch, const Position& position) {
  if (silent_) return;
  // About the last fifty steps count.
  seconds_per_step_ +=
      (record.seconds - seconds_per_step_) / static_cast<double>(std::min<std::uint64_t>(epoch.steps, 50));
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ < (terminal_ ? std::chrono::steady_clock::duration(kBarInterval) : kLineInterval)) return;
  shown_ = now;

  const std::string text = fmt::format(
      "epoch {}/{}  step {}/{}  loss {:.4f}  {:.0f} samples/s  ETA {}", record.epoch + 1, position.epochs,
      position.step_in_epoch, position.steps_in_epoch, epoch.mean_loss(), epoch.samples_per_second(),
      duration_text(seconds_per_step_ * static_cast<double>(position.steps_left)));
  if (!terminal_) return line(text);
  const std::size_t filled =
      kBarWidth * position.step_in_epoch / std::max<std::uint64_t>(position.steps_in_epoch, 1);
  fmt::print(out_, "\r\033[K[{}{}] {}", std::string(filled, '#'), std::string(kBarWidth - filled, '.'), text);
  std::fflush(out_);
  bar_shown_ = true;
}

void Progress::erase_bar() {
  if (bar_shown_) fmt::print(out_, "\r\033[K");
  bar_shown_ = false;
}

std::string duration_text(double seconds) {
  const auto total = static_cast<std::uint64_t>(std::llround(std::max(seconds, 0.0)));
  const std::uint64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  if (minutes > 0) return fmt::format("{}:{:02}", minutes, total % 60);
  return fmt::format("{} s", total);
}

}  // namespace annulus
