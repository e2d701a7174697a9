#!/usr/bin/env python3
"""Measures the all-reduce of Annulus and of Open MPI in one interleaved run, and writes the report.

    python3 bench/run_all_reduce.py

Needs a Release build in ./build (or --build) that has found MPI (Debian: libopenmpi-dev, openmpi-bin). In every
round each engine measures every size at 2 and at 4 ranks, in an order that rotates from round to round, so that a
slow spell of the machine meets all of them. METRICS.md says what is reported. Open MPI runs as it comes, but for
the permission to run more ranks than there are cores. Writes <output>.md and <output>.json (by default
docs/results/all_reduce_cpu).
"""
import argparse
import datetime
import os
import pathlib
import statistics
import sys
import time

from reporting import json_rows, machine, shown, verdict, write_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = [2, 4]
SIZES = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
PROCESS_TIMEOUT = 180  # seconds; a size takes about one

# What Annulus aims at in zero-copy memory: times Open MPI's bandwidth, by ranks and size.
GOAL = {(2, 4 << 10): 1 / 1.5, (2, 256 << 10): 1, (2, 4 << 20): 1, (2, 64 << 20): 4}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder (default: build)")
    parser.add_argument("--rounds", type=int, default=7, help="at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="per size (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=5, help="start no round that would end later than this "
                                                                 "(default: %(default)s)")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/all_reduce_cpu")
    return parser.parse_args()


def command_of(engine, ranks, size, arguments):
    common = ["--min-bytes", size, "--max-bytes", size, "--seconds", arguments.seconds]
    if engine == "annulus":
        return [arguments.build / "bench/bench_all_reduce", "--json", "--limit", "--ranks", ranks, *common]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "-n", ranks, arguments.build / "bench/mpi_all_reduce", *common]


def run_rounds(arguments):
    runs = [(ranks, size, engine) for ranks in RANKS for size in SIZES for engine in ("annulus", "mpi")]
    start, rows, done = time.monotonic(), [], 0
    while done < arguments.rounds:
        if done and (time.monotonic() - start) * (done + 1) / done > 60 * arguments.minutes:
            print(f"no time for round {done + 1} in {arguments.minutes:g} minutes")
            break
        turn = done * 5 % len(runs)
        for ranks, size, engine in runs[turn:] + runs[:turn]:
            found, errors = json_rows(command_of(engine, ranks, size, arguments), PROCESS_TIMEOUT)
            if not found or any(row["wrong"] for row in found):
                sys.exit(f"{engine} at {ranks} ranks and {size} bytes failed: {errors.strip()}")
            rows += [dict(row, round=done) for row in found]
        done += 1
        print(f"round {done} of {arguments.rounds} done after {time.monotonic() - start:.0f} s", flush=True)
    return rows, done


def summarise(rows):
    """Medians over rounds; ratios are medians of the ratios within one round each."""
    def by_round(ranks, size, engine, memory, of="time_us"):
        return {row["round"]: row[of] for row in rows if of in row and (
            row["ranks"], row["size"], row["engine"], row["memory"]) == (ranks, size, engine, memory)}

    def median(values):
        return statistics.median(values) if values else None

    summary = []
    for ranks in RANKS:
        for size in SIZES:
            own = by_round(ranks, size, "annulus", "zero-copy")
            staged = by_round(ranks, size, "annulus", "ordinary")
            peer = by_round(ranks, size, "mpi", "ordinary")
            summary.append({
                "ranks": ranks, "size": size,
                "zero_copy_us": median(own.values()), "ordinary_us": median(staged.values()),
                "mpi_us": median(peer.values()),
                "busbw_gb_per_s": median(by_round(ranks, size, "annulus", "zero-copy", "busbw_gb_per_s").values()),
                "fraction_of_limit": median(
                    by_round(ranks, size, "annulus", "zero-copy", "fraction_of_limit").values()),
                "times_mpi": median([peer[number] / own[number] for number in own]),
                "ordinary_times_mpi": median([peer[number] / staged[number] for number in staged]),
                "goal": GOAL.get((ranks, size))})
    return summary


def markdown(summary, about):
    lines = [
        "# All-reduce on the CPU: Annulus and Open MPI", "",
        "Written by `bench/run_all_reduce.py`; `bench/METRICS.md` defines the columns. f32 sum in place; medians of "
        f"{about['rounds']} interleaved rounds; ratios are medians of the ratios within a round.", "",
        f"- {about['machine']['processor']}, {about['machine']['cores']} cores; load average before the run "
        f"{about['machine']['load_average_before']:.2f}; {about['date']}",
        "- Open MPI as it comes. \"Times Open MPI\" is its time divided by that of Annulus", "",
        "| ranks | KiB | zero-copy us | ordinary us | Open MPI us | busbw GB/s | of the limit | "
        "times Open MPI (goal) | ordinary, times Open MPI |", "|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in summary:
        goal = row["goal"]
        times = verdict(row["times_mpi"], round(goal, 2)) if goal else shown(row["times_mpi"], 2)
        lines.append(f"| {row['ranks']} | {row['size'] >> 10} | {shown(row['zero_copy_us'], 1)} | "
                     f"{shown(row['ordinary_us'], 1)} | {shown(row['mpi_us'], 1)} | "
                     f"{shown(row['busbw_gb_per_s'], 2)} | {shown(row['fraction_of_limit'], 2)} | {times} | "
                     f"{shown(row['ordinary_times_mpi'], 2)} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    for name in ("bench_all_reduce", "mpi_all_reduce"):
        if not (arguments.build / "bench" / name).exists():
            sys.exit(f"{arguments.build}/bench/{name} is missing: build Release with -DANNULUS_BUILD_BENCH=ON and "
                     "libopenmpi-dev installed first, or name the build folder with --build")
    about = {"machine": machine(), "date": datetime.date.today().isoformat(), "seconds": arguments.seconds}
    rows, about["rounds"] = run_rounds(arguments)
    summary = summarise(rows)
    write_report(arguments.output, markdown(summary, about),
                 {"about": about, "summary": summary, "measurements": rows})


if __name__ == "__main__":
    main()
