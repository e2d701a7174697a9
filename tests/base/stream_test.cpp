#include "core/base/stream.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "core/base/error.h"

namespace annulus {
namespace {

static_assert(!std::is_copy_constructible_v<Stream> && std::is_nothrow_move_constructible_v<Stream>);
static_assert(!std::is_copy_constructible_v<Event> && std::is_nothrow_move_constructible_v<Event>);

TEST(Stream, OfTheCpuIsAlwaysDone) {
  Stream stream(Device::cpu());
  EXPECT_TRUE(stream.device().is_cpu());
  EXPECT_EQ(stream.view().handle(), nullptr);
  stream.synchronize();
  const StreamView view = stream;
  view.synchronize();
  Stream moved(std::move(stream));
  moved.synchronize();
}

TEST(Event, OfTheCpuIsReachedAtOnce) {
  const Stream stream(Device::cpu());
  Event event(Device::cpu());
  EXPECT_TRUE(event.query());
  event.record(stream);
  event.wait(stream);
  EXPECT_TRUE(event.query());
  Event moved(std::move(event));
  EXPECT_TRUE(moved.query());
}

TEST(Event, KnowsHowLongItTook) {
  const Stream stream(Device::cpu());
  Event begin(Device::cpu(), Event::Timing::on), end(Device::cpu(), Event::Timing::on);
  begin.record(stream);
  end.record(stream);
  EXPECT_GE(end.seconds_since(begin), 0.0);
  EXPECT_EQ(begin.seconds_since(begin), 0.0);
}

TEST(Stream, RefusesADeviceThatDoesNotExist) {
  EXPECT_THROW(Stream(Device::cuda(cuda_device_count())), DeviceError);
  EXPECT_THROW(Event(Device::cuda(cuda_device_count())), DeviceError);
}

}  // namespace
}  // namespace annulus
