// What a checkpoint says of a run is checked before anything is built from it.
#include "tools/training_checkpoint.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

TrainingState some_state() {
  TrainingState state;
  state.step = 7;
  state.cursor = {1, 3};
  state.model = "flatten linear(4)";
  state.input = {5, 6, 2};
  state.classes = 4;
  state.train_samples = 32;
  state.mean = {0.25f, 0.5f};
  state.stddev = {1.5f, 2};
  state.world_size = 2;
  state.recipe = {{"seed", 3}};
  return state;
}

TrainingState write_and_read(const Attributes& attributes) {
  const test::TemporaryDirectory folder;
  write_checkpoint(folder / "c.h5", {}, attributes, StreamView());
  return read_training_state(CheckpointReader(folder / "c.h5"));
}

TEST(TrainingCheckpoint, TheStateOfARunComesBack) {
  const TrainingState state = some_state();
  EXPECT_EQ(to_attributes(write_and_read(to_attributes(state))), to_attributes(state));
}

TEST(TrainingCheckpoint, RefusesWhatNoRunHasWritten) {
  const auto refuse = [](const std::string& name, const AttributeValue& value) {
    Attributes attributes = to_attributes(some_state());
    attributes.at(name) = value;
    test::expect_error<CheckpointError>([&] { write_and_read(attributes); }, {"c.h5", name});
  };
  for (const char* name : {"mean", "stddev"}) {
    for (const char* text : {"[]", "[1]", "[1,1,1]", "1", "{}", "[1,\"1\"]", "[1,1e99]", "[1", ""}) {
      refuse(name, std::string(text));
    }
  }
  refuse("stddev", std::string("[1,0]"));
  refuse("step", std::int64_t{-1});
  refuse("recipe", std::string("{"));
}

}  // namespace
}  // namespace annulus
