#include "tools/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

namespace annulus {
namespace {

/// What `use` makes a progress print.
template <class Use>
std::string printed(bool terminal, bool silent, const Use& use) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  Progress progress(file, terminal, silent);
  use(progress);
  std::fclose(file);
  const std::string result(text, size);
  std::free(text);
  return result;
}

/// A second step of four, half a second long, after enough time for the bar to move.
void step(Progress& progress) {
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  StepRecord record;
  record.epoch = 1;
  record.step = 6;
  record.seconds = 0.5;
  record.result.samples = 64;
  record.result.loss_sum = 32;
  RunTotals epoch;
  epoch.add(record);
  progress.step(record, epoch, {.epochs = 3, .steps_in_epoch = 4, .step_in_epoch = 2, .steps_left = 300});
}

TEST(Progress, MovesABarOnATerminal) {
  const std::string text = printed(true, false, [](Progress& progress) {
    step(progress);
    progress.line("epoch done");
  });
  EXPECT_EQ(text,
            "\r\033[K[############............] epoch 2/3  step 2/4  loss 0.5000  128 samples/s  ETA 2:30"
            "\r\033[Kepoch done\n");
}

TEST(Progress, PrintsPlainLinesNowAndThenElsewhere) {
  EXPECT_EQ(printed(false, false,
                    [](Progress& progress) {
                      step(progress);  // sooner than a line is due
                      progress.line("epoch done");
                    }),
            "epoch done\n");
}

TEST(Progress, SaysNothingWhenSilent) {
  EXPECT_EQ(printed(true, true,
                    [](Progress& progress) {
                      step(progress);
                      progress.line("epoch done");
                    }),
            "");
}

TEST(Progress, WritesDurationsAsPeopleDo) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(3599), "59:59");
  EXPECT_EQ(duration_text(3661), "1:01:01");
  EXPECT_EQ(duration_text(-1), "0 s");
}

}  // namespace
}  // namespace annulus
