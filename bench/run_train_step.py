#!/usr/bin/env python3
"""Measures a training step of Annulus and of PyTorch in one interleaved run, and writes the report.

    python3 bench/run_train_step.py                      # pip installs PyTorch beside the build, first
    python3 bench/run_train_step.py --python PATH        # an interpreter that has torch already

Needs a Release build in ./build (or --build). In every round each engine measures every configuration once,
in an order that rotates from round to round, so that a slow spell of the machine meets all of them. METRICS.md
says what is reported. Writes <output>.md and <output>.json (by default docs/results/train_step_cpu).
"""
import argparse
import datetime
import pathlib
import statistics
import subprocess
import sys
import time

from reporting import json_rows, machine, shown, verdict, write_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGURATIONS = [("mlp", 64), ("mlp", 256), ("cnn", 64), ("cnn", 256)]
RANKS = [1, 2]
PEERS = ["torch-default", "torch-tuned"]
PROCESS_TIMEOUT = 180  # seconds; a measurement takes about ten

# What Annulus aims at: times the fastest PyTorch mode, times its own rate at one rank, fraction of the peak.
GOAL_OVER_PEER = {("mlp", 1): 1.5, ("cnn", 1): 1.5, ("mlp", 2): 2.0, ("cnn", 2): 1.6}
GOAL_SCALING = {("mlp", 64): 1.6, ("mlp", 256): 1.8, ("cnn", 64): 1.85, ("cnn", 256): 1.85}
GOAL_PEAK = {("cnn", 256, 1): 0.60}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder (default: build)")
    parser.add_argument("--python", help="interpreter that can import torch (default: a virtual environment in "
                                         "the build folder, made if it is missing)")
    parser.add_argument("--rounds", type=int, default=7, help="at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.7, help="per measurement (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=9, help="start no round that would end later than this "
                                                                 "(default: %(default)s)")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/train_step_cpu")
    return parser.parse_args()


def peer_python(build):
    """The interpreter of a virtual environment with PyTorch, which is made at the first call."""
    folder = build / "torch-environment"
    python = folder / "bin/python"
    if not python.exists() or subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        print(f"installing PyTorch into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "numpy"], check=True)
    return str(python)


def command_of(engine, ranks, arguments):
    configurations = ",".join(f"{model}:{batch}" for model, batch in CONFIGURATIONS)
    common = ["--configurations", configurations, "--ranks", str(ranks), "--seconds", str(arguments.seconds)]
    if engine == "annulus":
        return [arguments.build / "bench/bench_train_step", "--json", *common]
    return [arguments.python, ROOT / "bench/peers/torch_ddp.py", "--mode", engine.removeprefix("torch-"), *common]


def measure(engine, ranks, arguments):
    """Rows of one engine, in order; what came out before a failure counts, and a failure is tried once more."""
    for attempt in (1, 2):
        rows, errors = json_rows(command_of(engine, ranks, arguments), PROCESS_TIMEOUT)
        if len(rows) == len(CONFIGURATIONS) or attempt == 2:
            return rows
        print(f"  {engine} at {ranks} ranks failed: {errors.strip().splitlines()[-1:]}", flush=True)


def run_rounds(arguments):
    runs = [(ranks, engine) for ranks in RANKS for engine in ["annulus", *PEERS]]
    start, rows, done = time.monotonic(), [], 0
    while done < arguments.rounds:
        if done and (time.monotonic() - start) * (done + 1) / done > 60 * arguments.minutes:
            print(f"no time for round {done + 1} in {arguments.minutes:g} minutes")
            break
        turn = done % len(runs)
        for ranks, engine in runs[turn:] + runs[:turn]:
            rows += [dict(row, round=done) for row in measure(engine, ranks, arguments)]
        done += 1
        print(f"round {done} of {arguments.rounds} done after {time.monotonic() - start:.0f} s", flush=True)
    return rows, done


class Results:
    """Medians over rounds of what was measured; None where nothing was."""

    def __init__(self, rows):
        self.rows = {}
        for row in rows:
            self.rows.setdefault((row["engine"], row["model"], row["batch"], row["ranks"]), {})[row["round"]] = row

    def values(self, engine, model, batch, ranks, of=lambda row: row["samples_per_second"]):
        return {number: of(row) for number, row in self.rows.get((engine, model, batch, ranks), {}).items()}

    def median(self, *key, **of):
        values = self.values(*key, **of)
        return statistics.median(values.values()) if values else None

    def best_peer(self, model, batch, ranks):
        present = [peer for peer in PEERS if self.values(peer, model, batch, ranks)]
        return max(present, key=lambda peer: self.median(peer, model, batch, ranks), default=None)

    def ratio(self, numerator, denominator):
        """Median of the ratios within one round each."""
        above, below = self.values(*numerator), self.values(*denominator)
        common = [above[number] / below[number] for number in above.keys() & below.keys()]
        return statistics.median(common) if common else None


def summarise(results):
    rows = []
    for model, batch in CONFIGURATIONS:
        for ranks in RANKS:
            own = ("annulus", model, batch, ranks)
            peer = (results.best_peer(model, batch, ranks), model, batch, ranks)
            row = {"model": model, "batch": batch, "ranks": ranks, "annulus": results.median(*own)}
            row.update({engine: results.median(engine, model, batch, ranks) for engine in PEERS})
            row["best_peer"] = peer[0]
            row["times_best_peer"] = results.ratio(own, peer)
            row["goal_over_peer"] = GOAL_OVER_PEER[model, ranks]
            row["fraction_of_peak"] = results.median(*own, of=lambda r: r["fraction_of_peak"])
            row["fma_peak_gflops"] = results.median(*own, of=lambda r: r["fma_peak_gflops"])
            row["goal_of_peak"] = GOAL_PEAK.get((model, batch, ranks))
            row["step_ms"] = results.median(*own, of=lambda r: r["step_ms"])
            row["split_ms"] = {part: results.median(*own, of=lambda r, part=part: r["split_ms"][part])
                               for part in ("input", "forward", "backward", "communication", "update")}
            if ranks > 1:
                row["times_one_rank"] = results.ratio(own, ("annulus", model, batch, 1))
                row["peer_times_one_rank"] = results.ratio(peer, (results.best_peer(model, batch, 1), model, batch, 1))
                row["goal_scaling"] = GOAL_SCALING[model, batch]
            rows.append(row)
    return rows


def markdown(summary, about):
    lines = [
        "# Training step on the CPU: Annulus and PyTorch", "",
        "Written by `bench/run_train_step.py`; `bench/METRICS.md` defines the columns. Samples/s over all ranks, "
        f"medians of {about['rounds']} interleaved rounds; ratios are medians of the ratios within a round.", "",
        f"- {about['machine']['processor']}, {about['machine']['cores']} cores; load average before the run "
        f"{about['machine']['load_average_before']:.2f}; {about['date']}",
        f"- PyTorch {about['torch']}; one compute thread and one core per rank", "",
        "| model | batch per rank | ranks | Annulus | PyTorch, default | PyTorch, tuned | times the faster (goal) |",
        "|---|--:|--:|--:|--:|--:|--:|"]
    for row in summary:
        lines.append(f"| {row['model']} | {row['batch']} | {row['ranks']} | {shown(row['annulus'])} | "
                     f"{shown(row['torch-default'])} | {shown(row['torch-tuned'])} | "
                     f"{verdict(row['times_best_peer'], row['goal_over_peer'])} |")
    lines += ["", "Two ranks against one:", "",
              "| model | batch per rank | Annulus (goal) | the faster PyTorch |", "|---|--:|--:|--:|"]
    for row in summary:
        if row["ranks"] > 1:
            lines.append(f"| {row['model']} | {row['batch']} | {verdict(row['times_one_rank'], row['goal_scaling'])} "
                         f"| {shown(row['peer_times_one_rank'], 2)} |")
    lines += ["", "Where a step of Annulus goes, in ms, and what of the core's measured FMA peak it reaches:", "",
              "| model | batch per rank | ranks | step | input | forward | backward | communication | update | "
              "peak GFLOP/s | of the peak (goal) |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in summary:
        split = row["split_ms"]
        goal = row["goal_of_peak"]
        peak = verdict(row["fraction_of_peak"], goal) if goal else shown(row["fraction_of_peak"], 2)
        lines.append(f"| {row['model']} | {row['batch']} | {row['ranks']} | {shown(row['step_ms'], 3)} | "
                     + " | ".join(shown(split[part], 3) for part in split)
                     + f" | {shown(row['fma_peak_gflops'])} | {peak} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    if not (arguments.build / "bench/bench_train_step").exists():
        sys.exit(f"{arguments.build}/bench/bench_train_step is missing: build Release with -DANNULUS_BUILD_BENCH=ON "
                 "first, or name the build folder with --build")
    arguments.python = arguments.python or peer_python(arguments.build)
    about = {"machine": machine(), "date": datetime.date.today().isoformat(), "seconds": arguments.seconds}
    rows, about["rounds"] = run_rounds(arguments)
    about["torch"] = next((row["version"] for row in rows if row["engine"].startswith("torch")), "missing")
    summary = summarise(Results(rows))
    text = markdown(summary, about)
    write_report(arguments.output, text, {"about": about, "summary": summary, "measurements": rows})


if __name__ == "__main__":
    main()
