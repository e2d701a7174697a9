#include "core/nn/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

TEST(Schedule, constant_with_warm_up) {
  const ScheduleOptions options{.learning_rate = 0.4f, .warmup_steps = 4};
  const float expected[] = {0.1f, 0.2f, 0.3f, 0.4f, 0.4f, 0.4f};
  for (std::uint64_t step = 0; step < 6; ++step)
    EXPECT_FLOAT_EQ(learning_rate(options, step), expected[step]);
  EXPECT_EQ(learning_rate({.learning_rate = 0.4f}, 0), 0.4f);
}

TEST(Schedule, step_decays_every_so_many_steps_after_warm_up) {
  const ScheduleOptions options{.kind = ScheduleKind::step,
                                .learning_rate = 1,
                                .warmup_steps = 2,
                                .decay_every = 3,
                                .decay_factor = 0.5f};
  const float expected[] = {0.5f, 1, 1, 1, 1, 0.5f, 0.5f, 0.5f, 0.25f};
  for (std::uint64_t step = 0; step < 9; ++step)
    EXPECT_FLOAT_EQ(learning_rate(options, step), expected[step]);
}

TEST(Schedule, cosine_falls_from_the_peak_to_zero) {
  const ScheduleOptions options{
      .kind = ScheduleKind::cosine, .learning_rate = 0.2f, .warmup_steps = 10, .total_steps = 110};
  EXPECT_FLOAT_EQ(learning_rate(options, 9), 0.2f);
  EXPECT_FLOAT_EQ(learning_rate(options, 10), 0.2f);
  EXPECT_FLOAT_EQ(learning_rate(options, 60), 0.1f);
  EXPECT_NEAR(learning_rate(options, 35), 0.1 * (1 + std::sqrt(0.5)), 1e-7);
  EXPECT_NEAR(learning_rate(options, 109), 0.1 * (1 + std::cos(std::numbers::pi * 0.99)), 1e-7);
  EXPECT_EQ(learning_rate(options, 110), 0.0f);
  EXPECT_EQ(learning_rate(options, 1000), 0.0f);
}

TEST(Schedule, kinds_have_names) {
  EXPECT_EQ(parse_schedule_kind("constant"), ScheduleKind::constant);
  EXPECT_EQ(parse_schedule_kind("step"), ScheduleKind::step);
  EXPECT_EQ(parse_schedule_kind("cosine"), ScheduleKind::cosine);
  test::expect_error<ConfigError>([] { parse_schedule_kind("cosin"); },
                                  {"\"cosin\"", "did you mean \"cosine\"?"});
}

TEST(Schedule, options_that_make_no_sense_are_refused) {
  const auto refused = [](const ScheduleOptions& options, std::string_view part) {
    test::expect_error<ConfigError>([&] { options.check(); }, {part});
  };
  refused({.learning_rate = -1}, "learning rate");
  refused({.learning_rate = NAN}, "learning rate");
  refused({.kind = ScheduleKind::step}, "steps between two decays");
  refused({.kind = ScheduleKind::step, .decay_every = 1, .decay_factor = 0}, "factor");
  refused({.kind = ScheduleKind::cosine, .warmup_steps = 5, .total_steps = 5}, "(5)");
  ScheduleOptions().check();
}

}  // namespace
}  // namespace annulus
