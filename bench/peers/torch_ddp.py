#!/usr/bin/env python3
"""Samples/s of a training step in PyTorch: the peer that bench_train_step is measured against.

    python3 bench/peers/torch_ddp.py --mode tuned --ranks 2 --configurations mlp:64,cnn:256

The models, batch sizes, optimizer (SGD, momentum 0.9) and timing are those of bench_train_step (METRICS.md);
batches are in memory as normalised float32, so PyTorch converts nothing. One compute thread per rank; two
ranks and more train through DistributedDataParallel over Gloo. Modes:

  default   as it comes: contiguous NCHW, default SGD, default DDP, the system places the processes
  tuned     channels-last (cnn), in-place ReLU, fused SGD, malloc that keeps its memory mapped, one core per
            rank, DDP with gradients as bucket views and a static graph
  compiled  tuned, and forward and backward through torch.compile

Prints one JSON object a line and configuration, from rank 0.
"""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time

MODES = ("default", "tuned", "compiled")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="default")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--configurations", default="mlp:64,mlp:256,cnn:64,cnn:256", metavar="MODEL:BATCH,...",
                        help="batch counts samples per rank (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured per configuration (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.configurations = [(model, int(batch)) for model, batch in
                                (text.split(":") for text in arguments.configurations.split(","))]
    return arguments


def launch(arguments):
    """Starts one process per rank, as torchrun does (which also defaults to one thread per rank)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", WORLD_SIZE=str(arguments.ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    if arguments.mode != "default":
        # Freed activations stay mapped: without this every step faults its pages in again.
        environment.update(MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TRIM_THRESHOLD_=str(1 << 34),
                           MALLOC_TOP_PAD_=str(1 << 28))
    ranks = [subprocess.Popen([sys.executable] + sys.argv, env=dict(environment, RANK=str(rank)))
             for rank in range(arguments.ranks)]
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.02)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
    return max(abs(rank.wait()) for rank in ranks)


def make_model(name, tuned):
    from torch import nn
    relu = lambda: nn.ReLU(inplace=tuned)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), relu(), nn.Linear(512, 256), relu(),
                             nn.Linear(256, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), relu(), nn.MaxPool2d(2),
                         nn.Conv2d(32, 64, 3, padding=1), relu(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(3136, 128), relu(), nn.Linear(128, 10))


def make_step(name, batch, mode, ranks):
    """Returns a function that does one training step on one fixed batch."""
    import torch
    tuned = mode != "default"
    torch.manual_seed(1)
    model = make_model(name, tuned)
    images = torch.randn(batch, 1, 28, 28)
    labels = torch.randint(0, 10, (batch,))
    if tuned and name == "cnn":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=tuned)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=tuned, static_graph=tuned)
    loss_of = lambda images, labels: torch.nn.functional.cross_entropy(model(images), labels)
    if mode == "compiled":
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad()
        loss_of(images, labels).backward()
        optimizer.step()

    return step


def measure(step, ranks, seconds):
    """Returns (seconds, steps) of a timed run of about `seconds`; the slowest rank's time."""
    import torch
    import torch.distributed as dist

    def timed(steps):
        if ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        elapsed = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        if ranks > 1:
            dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        return elapsed.item()

    timed(5)  # allocations, DDP's bucket rebuild, compilation
    steps = max(5, int(0.25 * seconds / timed(5) * 5))  # identical on every rank, because the time is
    steps = max(5, int(seconds / timed(steps) * steps))
    return timed(steps), steps


def run_rank(arguments):
    rank, ranks = int(os.environ["RANK"]), arguments.ranks
    if arguments.mode != "default":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo")
    for model, batch in arguments.configurations:
        seconds, steps = measure(make_step(model, batch, arguments.mode, ranks), ranks, arguments.seconds)
        if rank == 0:
            print(json.dumps({"engine": f"torch-{arguments.mode}", "version": torch.__version__, "model": model,
                              "batch": batch, "ranks": ranks, "steps": steps, "step_ms": 1e3 * seconds / steps,
                              "samples_per_second": ranks * batch * steps / seconds}), flush=True)
    if ranks > 1:
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads abort some interpreters at an orderly exit; the figures are out


if __name__ == "__main__":
    parsed = parse_arguments()
    sys.exit(run_rank(parsed) if "RANK" in os.environ else launch(parsed))
