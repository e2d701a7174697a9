// What each launcher's variables mean, which launcher wins, and what is said about variables that are wrong.
#include "nccl/rank_environment.h"

#include <gtest/gtest.h>

#include <map>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using Variables = std::map<std::string, std::string>;
using test::expect_error;

std::optional<RankEnvironment> detect(const Variables& variables) {
  return detect_rank_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

struct Case {
  Variables variables;
  const char* launcher;
  int rank, local_rank, world_size, local_world_size;
  const char* job;
};

const Variables kTorchrun = {{"RANK", "3"},
                             {"LOCAL_RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "x"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "77"},      {"PMIX_RANK", "1"}};
const Variables kMpich = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},  {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS", "8"},
                          {"SLURM_JOB_ID", "42"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS_PER_NODE", "4"},
                          {"SLURM_NNODES", "2"},  {"PMIX_RANK", "5"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

TEST(RankEnvironment, ReadsEveryLauncher) {
  const Case cases[] = {
      {kTorchrun, "torchrun", 3, 1, 4, 2,
       "MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x TORCHELASTIC_RESTART_COUNT=2"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, "torchrun", 0, 0, 2, 2, "MASTER_PORT=1"},
      // Set by hand, as many guides show.
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_PORT", "1"}},
       "torchrun",
       1,
       1,
       2,
       2,
       "MASTER_PORT=1"},
      {kOpenMpi, "Open MPI", 1, 1, 2, 2, "PMIX_NAMESPACE=77"},
      {with(kMpich, {{"PMI_JOBID", "j"}}), "MPICH", 0, 0, 3, 3, "PMI_JOBID=j"},
      {kSlurm, "Slurm", 5, 1, 8, 4, "SLURM_JOB_ID=42 SLURM_STEP_ID=0"},
      // One node: tasks per node may be more than there are tasks.
      {with(kSlurm, {{"SLURM_NNODES", "1"}, {"SLURM_NTASKS_PER_NODE", "16"}}), "Slurm", 5, 1, 8, 8,
       "SLURM_JOB_ID=42 SLURM_STEP_ID=0"},
      {{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "3"}},
       "Slurm",
       1,
       1,
       2,
       2,
       "SLURM_STEP_ID=3"},
  };
  for (const Case& expected : cases) {
    const auto found = detect(expected.variables);
    ASSERT_TRUE(found) << expected.launcher;
    EXPECT_EQ(found->launcher, expected.launcher);
    EXPECT_EQ(found->rank, expected.rank) << expected.launcher;
    EXPECT_EQ(found->local_rank, expected.local_rank) << expected.launcher;
    EXPECT_EQ(found->world_size, expected.world_size) << expected.launcher;
    EXPECT_EQ(found->local_world_size, expected.local_world_size) << expected.launcher;
    EXPECT_EQ(found->job, expected.job);
    EXPECT_EQ(found->segment, -1);
  }
}

TEST(RankEnvironment, AJobWithoutVariablesIsNamedAfterTheParent) {
  EXPECT_NE(detect(kMpich)->job.find("started by process"), std::string::npos);
}

TEST(RankEnvironment, TheInnermostLauncherWins) {
  EXPECT_EQ(detect(with(kSlurm, kOpenMpi))->launcher, std::string("Open MPI"));
  EXPECT_EQ(detect(with(with(kSlurm, kMpich), kTorchrun))->launcher, std::string("torchrun"));
  const auto own = detect(with(with(kSlurm, kTorchrun), {{"ANNULUS_SEGMENT_FD", "7"}}));
  EXPECT_EQ(own->launcher, "annulus-train --ranks");
  EXPECT_EQ(own->segment, 7);
}

TEST(RankEnvironment, FindsNothingWhereNoLauncherIs) {
  EXPECT_FALSE(detect({}));
  EXPECT_FALSE(detect({{"MASTER_ADDR", "x"}}));
  // The shell of an allocation: Slurm has set a process id, but started no ranks.
  EXPECT_FALSE(detect({{"SLURM_JOB_ID", "42"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));
  EXPECT_FALSE(detect({{"SLURM_JOB_ID", "42"}, {"SLURM_NTASKS", "8"}}));
}

TEST(RankEnvironment, WrongValuesAreNamed) {
  const struct {
    Variables variables;
    std::initializer_list<std::string_view> parts;
  } cases[] = {
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK=\"one\"", "whole number"}},
      {{{"RANK", "1x"}, {"WORLD_SIZE", "2"}}, {"RANK=\"1x\""}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK=\"-1\""}},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}}, {"RANK=\"\""}},
      {{{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}}, {"RANK=\"99999999999\""}},
      {{{"RANK", "0"}}, {"RANK is set", "WORLD_SIZE is not"}},
      {{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set", "RANK is not"}},
      {{{"ANNULUS_SEGMENT_FD", "2"}}, {"ANNULUS_SEGMENT_FD is set", "RANK is not"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0"}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2", "WORLD_SIZE=2", "0 to 1"}},
      {with(kTorchrun, {{"LOCAL_RANK", "2"}}), {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}},
       {"LOCAL_RANK is set", "LOCAL_WORLD_SIZE is not"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, {"OMPI_COMM_WORLD_SIZE is not"}},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "two"}}, {"PMI_SIZE=\"two\""}},
      {with(kSlurm, {{"SLURM_PROCID", "8"}}), {"SLURM_PROCID=8", "SLURM_NTASKS=8"}},
      {{{"PMIX_RANK", "0"}}, {"PMIX_RANK", "world size"}},
  };
  for (const auto& wrong : cases) {
    expect_error<ConfigError>([&] { detect(wrong.variables); }, wrong.parts);
  }
}

}  // namespace
}  // namespace annulus
