// The options of annulus-train: one struct, and one list that gives each of them its name and its
// explanation. Command line, configuration file and checkpoint all read and write through that list.
#pragma once

#include <cstdint>
#include <string>

namespace annulus {

struct TrainOptions {
  // What shapes the weights: a checkpoint records these, and a resumed run takes them from there.
  std::string model = "cnn";
  std::string data = "fashion-mnist";
  std::uint64_t epochs = 5;
  std::uint64_t batch_size = 64;
  std::uint64_t micro_batches = 0;  ///< 0: one per rank
  bool drop_last = false;
  std::string augment = "none";
  std::string precision = "f32";
  std::string optimizer = "sgd";
  double lr = 0.05;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  std::string schedule = "constant";
  std::uint64_t warmup_steps = 0;
  std::uint64_t decay_every = 0;
  double decay_factor = 0.1;
  double label_smoothing = 0;
  double clip_norm = 0;
  std::uint64_t seed = 1;

  // What does not.
  std::uint64_t ranks = 1;
  std::string device = "auto";
  std::uint64_t max_steps = 0;
  std::string checkpoint_dir;
  std::uint64_t save_every = 0;
  std::uint64_t keep = 3;
  std::string resume;
  std::string map_location = "local";
  bool eval_only = false;
  std::string metrics;
};

enum class OptionScope { recipe, run };

struct OptionInfo {
  const char* name;  ///< on the command line after "--", and the key in a configuration file
  OptionScope scope;
  const char* group;
  const char* value;  ///< what the help calls its value; empty for a flag
  const char* help;
};

/// Calls visit(OptionInfo, member) for every option, in the order in which they are shown.
template <class Options, class Visitor>
void visit_options(Options&& o, Visitor&& visit) {
  constexpr auto recipe = OptionScope::recipe, run = OptionScope::run;

  constexpr const char* model = "Model and data";
  visit({"model", recipe, model, "NAME",
         "mlp, lenet, cnn, resnet, or a spec: \"flatten linear(64) relu linear(10)\""},
        o.model);
  visit({"data", recipe, model, "SOURCE",
         "fashion-mnist, idx:DIR, cifar10:DIR, hdf5:FILE, or synthetic:28x28x1,classes=10,samples=1000"},
        o.data);
  visit({"augment", recipe, model, "NAME", "none, flip, crop (after padding by 4 pixels) or crop-flip"},
        o.augment);

  constexpr const char* training = "Training";
  visit({"epochs", recipe, training, "N", "Passes over the training data, those before a resume included"},
        o.epochs);
  visit({"batch-size", recipe, training, "N", "Samples per step, over all ranks"}, o.batch_size);
  visit(
      {"micro-batches", recipe, training, "N",
       "Pieces of the batch that are summed in a fixed order; with 8, a run has the same bits on 1, 2, 4 or "
       "8 ranks. 0: one per rank"},
      o.micro_batches);
  visit({"drop-last", recipe, training, "", "Leave out the last batch of an epoch if it is smaller"},
        o.drop_last);
  visit({"precision", recipe, training, "NAME",
         "f32; tf32: tensor cores, f32 in memory; bf16: activations in bf16, weights and sums in f32. The "
         "CPU has f32 "
         "only"},
        o.precision);
  visit({"optimizer", recipe, training, "NAME", "sgd or adamw"}, o.optimizer);
  visit({"lr", recipe, training, "X", "Learning rate after warm-up"}, o.lr);
  visit({"momentum", recipe, training, "X", "Of sgd"}, o.momentum);
  visit({"nesterov", recipe, training, "", "Nesterov momentum for sgd"}, o.nesterov);
  visit({"weight-decay", recipe, training, "X", "Added to the gradient by sgd, decoupled in adamw"},
        o.weight_decay);
  visit(
      {"schedule", recipe, training, "NAME", "constant, step or cosine (to 0 at the end of the last epoch)"},
      o.schedule);
  visit({"warmup-steps", recipe, training, "N", "Steps in which the rate grows to --lr"}, o.warmup_steps);
  visit({"decay-every", recipe, training, "N", "With --schedule step: steps between two decays"},
        o.decay_every);
  visit({"decay-factor", recipe, training, "X", "With --schedule step: what a decay multiplies the rate by"},
        o.decay_factor);
  visit({"label-smoothing", recipe, training, "X", "In [0, 1)"}, o.label_smoothing);
  visit({"clip-norm", recipe, training, "X", "Largest global norm of the gradient; 0: no clipping"},
        o.clip_norm);
  visit({"seed", recipe, training, "N", "Of initial weights, order of samples, dropout and augmentation"},
        o.seed);
  visit({"max-steps", run, training, "N",
         "Stop after this many steps, those before a resume included; 0: no limit"},
        o.max_steps);

  constexpr const char* ranks = "Ranks and devices";
  visit(
      {"ranks", run, ranks, "N", "Ranks to start on this host; under torchrun, srun or mpirun those decide"},
      o.ranks);
  visit({"device", run, ranks, "NAME",
         "cpu, cuda (rank K of a host uses device K), or auto: cuda if there are enough devices"},
        o.device);

  constexpr const char* checkpoints = "Checkpoints";
  visit({"checkpoint-dir", run, checkpoints, "DIR",
         "Save here after every epoch and at the end; empty: do not save"},
        o.checkpoint_dir);
  visit({"save-every", run, checkpoints, "N", "Also save every so many steps; 0: do not"}, o.save_every);
  visit({"keep", run, checkpoints, "N", "Checkpoints to keep; older ones are removed"}, o.keep);
  visit({"resume", run, checkpoints, "FILE",
         "auto: go on from the newest good checkpoint in --checkpoint-dir, if there is one; or a file"},
        o.resume);
  visit({"map-location", run, checkpoints, "MAP",
         "Where a resumed run puts the tensors: local, cpu, cuda, cuda:K, saved, or tag by tag: "
         "cuda:0=cuda:1,*=local"},
        o.map_location);
  visit({"eval-only", run, checkpoints, "", "Evaluate the checkpoint that --resume names, and write nothing"},
        o.eval_only);

  constexpr const char* output = "Output";
  visit(
      {"metrics", run, output, "FILE", "Write every step's loss, rate and times to this file, as JSON lines"},
      o.metrics);
}

/// Throws ConfigError for the first value that is out of range or unknown: everything that can be said
/// without looking at data, devices or checkpoints.
void check_options(const TrainOptions& options);

}  // namespace annulus
