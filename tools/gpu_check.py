#!/usr/bin/env python3
"""Checks and measures everything on a machine with a GPU, in one call, and writes one report.

    tools/gpu_check.sh                         # builds into build/gpu first
    tools/gpu_check.sh --build build/release   # uses a CUDA build that is there
    tools/gpu_check.sh --bundle annulus-gpu    # uses what tools/bundle.sh packed, unpacked into that folder

Parts: tests of every kernel and of training on the GPU; compute-sanitizer over the kernel tests; several NCCL ranks on
one GPU; training in f32, tf32 and bf16, a checkpoint, and its way to other devices; bench_kernels; bench_train_step
beside PyTorch. Each has a time limit. A part that cannot run here is reported as skipped, with the reason.

Writes <output>.md and <output>.json (default: docs/results/gpu). Exit status: 0 if all that ran passed, 1 if something
failed, 2 without a GPU (and then no report).
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGURATIONS = "mlp:64,mlp:256,cnn:64,cnn:256"
PRECISIONS = ("f32", "tf32", "bf16")
TORCH_MODES = ("eager", "compiled", "graph")
# What Annulus aims at (docs/gpu.md).
GOAL_OF_COPY, GOAL_OF_CUDNN, GOAL_OVER_EAGER, GOAL_OVER_GRAPH = 0.9, 0.8, 3.0, 1.5


class Skipped(Exception):
    """This part cannot run here; the text says why."""


class Failed(Exception):
    """This part ran, and found something wrong."""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--build", type=pathlib.Path, help="a CUDA build with tests and benches")
    where.add_argument("--bundle", type=pathlib.Path, help="an unpacked bundle of tools/bundle.sh")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/gpu")
    parser.add_argument("--minutes", type=float, default=9.5, help="start nothing that could end later "
                                                                   "(default: %(default)s)")
    return parser.parse_args()


def call(command, limit, **environment):
    """Runs a command; returns its exit status and what it printed. A command that exceeds `limit` seconds is killed."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True,
                               env=dict(os.environ, OMP_NUM_THREADS="1", **environment))
    try:
        output, _ = process.communicate(timeout=max(limit, 1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return 124, output + f"\nstopped after {limit:.0f} s"
    return process.returncode, output


def expect(command, limit, **environment):
    status, output = call(command, limit, **environment)
    if status != 0:
        raise Failed(f"{' '.join(str(word) for word in command)}: exit status {status}\n{output[-1500:]}")
    return output


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Check:
    def __init__(self, arguments):
        self.arguments = arguments
        self.end = time.monotonic() + 60 * arguments.minutes
        self.parts = {}
        self.programs = arguments.bundle or arguments.build or ROOT / "build/gpu"

    def left(self, most):
        """Seconds that a part may take: `most`, or what is left of the whole."""
        return min(most, self.end - time.monotonic())

    def part(self, name, work):
        if self.left(1) < 1:
            self.parts[name] = {"result": "skipped", "why": "no time left"}
            return
        start = time.monotonic()
        try:
            result = {"result": "passed", **(work() or {})}
        except Skipped as reason:
            result = {"result": "skipped", "why": str(reason)}
        except Failed as reason:
            result = {"result": "failed", "why": str(reason)}
        result["seconds"] = round(time.monotonic() - start, 1)
        self.parts[name] = result
        print(f"{name}: {result['result']}, {result['seconds']} s {result.get('why', '')[:300]}", flush=True)

    def program(self, folder, name):
        path = self.programs / ("bin" if self.arguments.bundle else folder) / name
        if not path.exists():
            raise Skipped(f"{path} is missing")
        return path

    def tests(self, *patterns):
        folder = self.programs / "tests"
        return sorted(path for pattern in patterns for path in folder.glob(pattern) if os.access(path, os.X_OK))

    # --- parts

    def build(self):
        if self.arguments.bundle or self.arguments.build:
            raise Skipped("programs that were built before are used")
        expect(["cmake", "-S", ROOT, "-B", self.programs, "-DCMAKE_BUILD_TYPE=Release", "-DANNULUS_CUDA=ON"], 60)
        expect(["cmake", "--build", self.programs, "--parallel", str(os.cpu_count())], self.left(360))

    def run_tests(self, programs, limit, *prefix):
        """Runs test programs until the time is up; reports what passed and what was left."""
        if not programs:
            raise Skipped("there are no such test programs")
        end = time.monotonic() + self.left(limit)
        passed, failed, left = [], [], []
        for program in programs:
            if end - time.monotonic() < 2:
                left.append(program.name)
                continue
            status, output = call([*prefix, program, "--gtest_brief=1"], end - time.monotonic(),
                                  ANNULUS_TEST_DEVICE="cuda")
            if status == 0 and "[  SKIPPED ]" not in output:
                passed.append(program.name)
            elif status in (0, 124):
                left.append(program.name)
            else:
                failed.append(f"{program.name}:\n{output[-1500:]}")
        if failed:
            raise Failed(f"{len(passed)} passed, {len(failed)} failed\n" + "\n".join(failed))
        return {"programs": len(passed), "not_finished": left}

    def kernel_tests(self):
        return self.run_tests(self.tests("kernels_*_test", "nn_cuda_*_test"), 150)

    def sanitizer(self, tool):
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(program).exists():
            raise Skipped("compute-sanitizer was not found")
        return self.run_tests(self.tests("kernels_*_test"), 60, program, "--tool", tool, "--error-exitcode", "9")

    def nccl(self):
        return self.run_tests(self.tests("nccl_one_gpu_test"), 60)

    def training(self):
        train, checkpoint = self.program("tools", "annulus-train"), self.program("tools", "annulus-checkpoint")
        common = ["--model", "cnn", "--data", "synthetic:28x28x1,samples=2000", "--epochs", "2", "--micro-batches", "1"]
        with tempfile.TemporaryDirectory() as folder:
            losses = {}
            for precision in PRECISIONS:
                output = expect([train, *common, "--device", "cuda", "--precision", precision, "--checkpoint-dir",
                                 f"{folder}/{precision}", "--metrics", f"{folder}/{precision}.jsonl"], self.left(60))
                rows = json_lines(pathlib.Path(f"{folder}/{precision}.jsonl").read_text())
                losses[precision] = [row["test_loss"] for row in rows if row["event"] == "end"][0]
                if not output:
                    raise Failed(f"{precision}: nothing was printed")
            saved = sorted(pathlib.Path(folder, "bf16").glob("step-*.h5"))[-1]
            if "cuda:0" not in expect([checkpoint, "inspect", saved], 30):
                raise Failed(f"inspect does not show the tag cuda:0 of {saved.name}")
            for place in (["--device", "cpu", "--precision", "f32"], ["--device", "cuda"],
                          ["--device", "cuda", "--map-location", "cuda:0=cuda:0,*=local"]):
                expect([train, "--resume", saved, "--eval-only", *place], 60)
            expect([checkpoint, "remap", saved, f"{folder}/remapped.h5", "--map", "cuda:0=cuda:1"], 30)
            expect([train, "--resume", f"{folder}/remapped.h5", "--eval-only", "--device", "cuda"], 60)
        return {"test_loss": losses}

    def bench_kernels(self):
        status, output = call([self.program("bench", "bench_kernels"), "--device", "cuda:0", "--json", "--rounds", "5",
                               "--seconds", "0.05"], self.left(150))
        if status not in (0, 124):
            raise Failed(output[-1500:])
        return {"rows": json_lines(output), "not_finished": ["the kernels after these"] if status == 124 else []}

    def bench_train_step(self):
        """Ours and PyTorch's modes take turns, in every round."""
        ours, rows, missing = self.program("bench", "bench_train_step"), [], {}
        peer = (self.arguments.bundle or ROOT / "bench") / "peers/torch_gpu.py"
        end = time.monotonic() + self.left(200)
        for number in range(3):
            for precision in PRECISIONS:
                common = ["--configurations", CONFIGURATIONS, "--precision", precision, "--seconds", "0.3"]
                commands = {"annulus": [ours, "--device", "cuda", "--ranks", "1", "--json", *common]}
                commands.update({mode: [sys.executable, peer, "--mode", mode, *common] for mode in TORCH_MODES})
                for engine, command in commands.items():
                    if engine in missing or end - time.monotonic() < 5:
                        continue
                    status, output = call(command, end - time.monotonic())
                    if status == 0:
                        rows += [dict(row, round=number) for row in json_lines(output)]
                    elif engine == "annulus":
                        raise Failed(output[-1500:])
                    else:
                        missing[engine] = output.strip().splitlines()[-1:] or [f"exit status {status}"]
        return {"rows": rows, "missing_peers": missing}


def gpu():
    """What nvidia-smi says of the first GPU, or None."""
    fields = ("name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,"
              "temperature.gpu,compute_mode")
    try:
        status, output = call(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], 20)
    except FileNotFoundError:
        return None
    if status != 0 or not output.strip():
        return None
    return dict(zip(fields.split(","), (value.strip() for value in output.splitlines()[0].split(","))))


def versions():
    found = {"python": sys.version.split()[0]}
    for name, command in {"nvcc": ["nvcc", "--version"],
                          "torch": [sys.executable, "-c", "import torch; print(torch.__version__)"]}.items():
        try:
            status, output = call(command, 60)
        except FileNotFoundError:
            continue
        if status == 0:
            found[name] = output.strip().splitlines()[-1]
    return found


def train_step_table(rows):
    """Medians of samples/s and of the ratios within a round."""
    lines = ["| model | batch | precision | Annulus, samples/s | "
             + " | ".join(f"PyTorch {mode} | ratio" for mode in TORCH_MODES) + " |",
             "|---|--:|---|--:|" + "--:|--:|" * len(TORCH_MODES)]
    rates = {}
    for row in rows:
        key = (row["model"], row["batch"], row["precision"])
        rates.setdefault(key, {}).setdefault(row["engine"], {})[row["round"]] = row["samples_per_second"]
    for (model, batch, precision), engines in rates.items():
        own = engines.get("annulus", {})
        cells = [model, str(batch), precision, f"{statistics.median(own.values()):.0f}" if own else "-"]
        for mode in TORCH_MODES:
            other = engines.get(f"torch-{mode}", {})
            ratios = [own[number] / other[number] for number in own.keys() & other.keys()]
            goal = {"eager": GOAL_OVER_EAGER, "graph": GOAL_OVER_GRAPH}.get(mode) if batch == 64 else None
            verdict = f" ({'met' if statistics.median(ratios) >= goal else 'missed'}: {goal:g})" if goal and ratios else ""
            cells += [f"{statistics.median(other.values()):.0f}" if other else "-",
                      f"{statistics.median(ratios):.2f}{verdict}" if ratios else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def kernel_table(rows):
    lines = ["| kernel | shape | precision | engine | us | GB/s | of copy | GFLOP/s | time over ours |",
             "|---|---|---|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        shown = lambda key, digits: f"{row[key]:.{digits}f}" if key in row else "-"
        lines.append(f"| {row['kernel']} | {row['shape']} | {row['precision']} | {row['engine']} | "
                     f"{row['time_us']:.2f} | {row['gb_per_s']:.0f} | {shown('fraction_of_copy', 2)} | "
                     f"{shown('gflops', 0)} | {shown('times_annulus', 2)} |")
    return lines


def markdown(report):
    lines = ["# A check on a GPU", "", "Written by `tools/gpu_check.sh`; [gpu.md](../gpu.md) says what each part does "
             "and `bench/METRICS.md` what is measured.", "", f"- {report['date']}, revision {report['revision']}"]
    lines += [f"- {key}: {value}" for key, value in {**report["gpu"], **report["versions"]}.items()]
    lines += ["", "| part | result | seconds | |", "|---|---|--:|---|"]
    for name, part in report["parts"].items():
        why = part.get("why", "").splitlines()[0] if part.get("why") else ""
        left = part.get("not_finished")
        missing = [f"{engine}: {' '.join(said)}" for engine, said in part.get("missing_peers", {}).items()]
        note = why or "; ".join(missing) or (f"not finished in time: {', '.join(left)}" if left else "")
        lines.append(f"| {name} | {part['result']} | {part.get('seconds', 0)} | {note} |")
    steps = report["parts"].get("bench_train_step", {}).get("rows")
    if steps:
        lines += ["", "## Training step on one GPU", "", "Medians of rounds in which all engines take turns; goals for "
                  f"batch 64: {GOAL_OVER_EAGER:g} times eager, {GOAL_OVER_GRAPH:g} times graph.", "", *train_step_table(steps)]
    kernels = report["parts"].get("bench_kernels", {}).get("rows")
    if kernels:
        lines += ["", "## Kernels", "", f"Copy within the device: {kernels[0]['copy_gb_per_s']:.0f} GB/s. Goals: "
                  f"{GOAL_OF_COPY:g} of that where memory is the limit, linear as fast as cuBLASLt (which it is), conv2d "
                  f"at {GOAL_OF_CUDNN:g} of cuDNN's speed.", "", *kernel_table(kernels)]
    return "\n".join(lines) + "\n"


def revision(arguments):
    if arguments.bundle and (arguments.bundle / "REVISION").exists():
        return (arguments.bundle / "REVISION").read_text().strip()
    status, output = call(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], 10)
    return output.strip() if status == 0 else "unknown"


def main():
    arguments = parse_arguments()
    device = gpu()
    if device is None:
        print("gpu_check: nvidia-smi finds no GPU here, so there is nothing to check and no report", file=sys.stderr)
        return 2
    check = Check(arguments)
    for name, work in {"build": check.build,
                       "tests on the GPU": check.kernel_tests,
                       "NCCL, several ranks on one GPU": check.nccl,
                       "training and checkpoints": check.training,
                       "bench_train_step": check.bench_train_step,
                       "bench_kernels": check.bench_kernels,
                       "memcheck": lambda: check.sanitizer("memcheck"),
                       "racecheck": lambda: check.sanitizer("racecheck")}.items():
        check.part(name, work)
    report = {"date": datetime.date.today().isoformat(), "revision": revision(arguments), "gpu": device,
              "versions": versions(), "parts": check.parts}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(report))
    print(f"written: {arguments.output.with_suffix('.md')}")
    return 1 if any(part["result"] == "failed" for part in check.parts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
