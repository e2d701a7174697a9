#!/usr/bin/env python3
"""Samples/s of a training step in PyTorch on one CUDA device: the peer of bench_train_step --device cuda.

    python3 bench/peers/torch_gpu.py --mode graph --precision bf16 --configurations mlp:64,cnn:256

The models, batch sizes, optimizer (SGD, momentum 0.9) and columns are those of bench_train_step (METRICS.md). The batch
is on the device, as normalised float32, so PyTorch neither copies nor converts anything. Modes:

  eager     launch by launch, channels-last (cnn), fused SGD
  compiled  the loss through torch.compile
  graph     the whole step captured as one CUDA graph

Precisions: f32; tf32 (matrix products and convolutions may use it); bf16 (autocast).
Prints one JSON object a line and configuration. Exits with 3, after one line, where PyTorch or a GPU is missing.
"""
import argparse
import json
import sys
import time

from torch_ddp import make_model


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "compiled", "graph"), default="eager")
    parser.add_argument("--precision", choices=("f32", "tf32", "bf16"), default="f32")
    parser.add_argument("--configurations", default="mlp:64,mlp:256,cnn:64,cnn:256", metavar="MODEL:BATCH,...")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured per configuration (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.configurations = [(model, int(batch)) for model, batch in
                                (text.split(":") for text in arguments.configurations.split(","))]
    return arguments


def make_step(torch, name, batch, mode, precision):
    """Returns a function that submits one training step on one fixed batch."""
    torch.manual_seed(1)
    model = make_model(name, tuned=True).cuda()
    images = torch.randn(batch, 1, 28, 28, device="cuda")
    labels = torch.randint(0, 10, (batch,), device="cuda")
    if name == "cnn":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def loss_of(images, labels):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16", cache_enabled=mode != "graph"):
            return torch.nn.functional.cross_entropy(model(images), labels)

    if mode == "compiled":
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(images, labels).backward()
        optimizer.step()

    if mode != "graph":
        return step
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(torch, step, seconds):
    def timed(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    timed(10)  # allocations, compilation
    steps = max(10, int(0.25 * seconds / timed(10) * 10))
    steps = max(10, int(seconds / timed(steps) * steps))
    return timed(steps), steps


def main():
    arguments = parse_arguments()
    try:
        import torch
    except ImportError:
        print("torch_gpu.py: this python3 has no PyTorch", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("torch_gpu.py: PyTorch sees no CUDA device", file=sys.stderr)
        return 3
    tf32 = arguments.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    for model, batch in arguments.configurations:
        step = make_step(torch, model, batch, arguments.mode, arguments.precision)
        seconds, steps = measure(torch, step, arguments.seconds)
        print(json.dumps({"engine": f"torch-{arguments.mode}", "version": torch.__version__, "model": model,
                          "batch": batch, "device": "cuda", "precision": arguments.precision, "ranks": 1,
                          "steps": steps, "step_ms": 1e3 * seconds / steps,
                          "samples_per_second": batch * steps / seconds}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
