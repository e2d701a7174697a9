#!/usr/bin/env python3
"""Tests the tests: puts one fault at a time into a copy of the sources and expects the tests to notice.

    python3 tests/mutants/run.py                       # every family
    python3 tests/mutants/run.py --family pool2d       # tests/mutants/pool2d.json alone; may be repeated
    python3 tests/mutants/run.py --list                # only checks the lists and prints them

Prints a line per mutant, and at the end how many were killed. The exit status is 0 if all were, 1 if one
survived, 2 if a list or the unchanged tree is at fault. README.md describes the lists.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LISTS = ROOT / "tests/mutants"


class ListError(Exception):
    """A list, or the tree that it is for, is not as it should be: says nothing about the tests."""


class Mutant:
    KEYS = {"file", "fault", "replace", "with"}

    def __init__(self, family, number, targets, entry):
        self.name = f"{family} {number}"
        if not self.KEYS <= entry.keys() <= self.KEYS | {"filter"}:
            raise ListError(f"{self.name}: has the keys {sorted(entry)}; {sorted(self.KEYS)} are needed, "
                            "\"filter\" is possible")
        self.file, self.fault, self.filter = entry["file"], entry["fault"], entry.get("filter", "*")
        self.targets, self.text, self.faulty = targets, entry["replace"], entry["with"]
        if not (ROOT / self.file).is_file():
            raise ListError(f"{self.name}: there is no file {self.file}")
        found = (ROOT / self.file).read_text().count(self.text)
        if found != 1:
            raise ListError(f"{self.name}: the text to replace occurs {found} times in {self.file}, not once: "
                            f"{self.text!r}")
        if self.text == self.faulty:
            raise ListError(f"{self.name}: changes nothing")

    def __str__(self):
        return f"{self.name}, {self.file}: {self.fault}"


def read_lists(families):
    mutants = []
    for path in [LISTS / f"{name}.json" for name in families] if families else sorted(LISTS.glob("*.json")):
        if not path.exists():
            raise ListError(f"there is no family {path.stem}; there are "
                            + ", ".join(sorted(other.stem for other in LISTS.glob("*.json"))))
        content = json.loads(path.read_text())
        if content.keys() != {"targets", "mutants"} or not content["targets"]:
            raise ListError(f"{path.name}: needs \"targets\" and \"mutants\", and nothing else")
        mutants += [Mutant(path.stem, number, content["targets"], entry)
                    for number, entry in enumerate(content["mutants"], 1)]
    return mutants


class Workshop:
    """A copy of the tree and its build folder, both kept from run to run."""

    def __init__(self, folder):
        self.tree, self.build = folder / "tree", folder / "build"

    def copy_tree(self):
        """Makes the copy equal to the tree; what is equal already keeps its time stamp, so it is not rebuilt."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                check=True, capture_output=True, text=True).stdout.split("\0")
        wanted = {name for name in listed if name and (ROOT / name).is_file()}
        present = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*") if path.is_file()}
        for name in present - wanted:
            (self.tree / name).unlink()
        for name in wanted:
            if name in present and (self.tree / name).read_bytes() == (ROOT / name).read_bytes():
                continue
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)  # with a new time stamp

    def configure(self):
        launcher = shutil.which("ccache") or ""
        self.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                  "-DANNULUS_CUDA=OFF", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"], "configuring failed")

    def compile(self, targets):
        self.run(["cmake", "--build", self.build, "--target", *targets], "does not compile")

    @staticmethod
    def run(command, complaint):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise ListError(f"{complaint}:\n{(done.stdout + done.stderr)[-3000:]}")

    def test(self, target, gtest_filter, limit):
        """Runs a test program to its first failure: how many tests started, and what failed, None if nothing."""
        process = subprocess.Popen(
            [self.build / "tests" / target, "--gtest_fail_fast", "--gtest_brief=0", f"--gtest_filter={gtest_filter}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            env=dict(os.environ, OMP_NUM_THREADS="1"))
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nstopped after {limit:.0f} s"
        started = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
        if process.returncode == 0:
            return len(started), None
        failed = re.findall(r"^\[  FAILED  \] ([\w./]+)", output, re.MULTILINE)  # none after a crash
        return len(started), f"{target} {(failed or started[-1:] or ['before its first test'])[0]}"


class Bench:
    """Runs mutants; knows how long the tests take without a fault."""

    def __init__(self, workshop):
        self.workshop, self.seconds = workshop, {}

    def check_unchanged(self, mutants):
        self.workshop.compile(sorted({target for mutant in mutants for target in mutant.targets}))
        for mutant in mutants:
            tests = 0
            for target in mutant.targets:
                key = (target, mutant.filter)
                if key not in self.seconds:
                    start = time.monotonic()
                    count, failure = self.workshop.test(*key, limit=600)
                    if failure:
                        raise ListError(f"fails without a fault: {failure}")
                    self.seconds[key] = (time.monotonic() - start, count)
                tests += self.seconds[key][1]
            if tests == 0:
                raise ListError(f"{mutant.name}: no test of {mutant.targets} matches {mutant.filter}")

    def kill(self, mutant):
        """What noticed the fault, or None."""
        file = self.workshop.tree / mutant.file
        original = file.read_text()
        file.write_text(original.replace(mutant.text, mutant.faulty))
        try:
            self.workshop.compile(mutant.targets)
            for target in mutant.targets:
                seconds, count = self.seconds[target, mutant.filter]
                if count == 0:
                    continue
                _, failure = self.workshop.test(target, mutant.filter, limit=30 + 10 * seconds)
                if failure:
                    return failure
            return None
        finally:
            file.write_text(original)


def run(mutants, folder):
    workshop = Workshop(folder)
    workshop.copy_tree()
    workshop.configure()
    bench = Bench(workshop)
    print(f"building and testing without a fault, in {folder}", flush=True)
    bench.check_unchanged(mutants)
    survivors, errors = [], 0
    for mutant in mutants:
        start = time.monotonic()
        try:
            killer = bench.kill(mutant)
        except ListError as error:
            errors += 1
            print(f"ERROR     {mutant}: {error}", flush=True)
            continue
        if not killer:
            survivors.append(mutant)
        print(f"{'killed   ' if killer else 'SURVIVED '} {mutant}" + (f" [{killer}]" if killer else "")
              + f" ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"killed {len(mutants) - len(survivors) - errors} of {len(mutants)}"
          + (f", {errors} could not be tried" if errors else ""))
    return 2 if errors else 1 if survivors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", metavar="NAME", help="only this one (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutants and build nothing")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/mutants",
                        help="folder for the copy and its build, used again by the next run (default: build/mutants)")
    arguments = parser.parse_args()
    try:
        mutants = read_lists(arguments.family)
        if not arguments.list:
            return run(mutants, arguments.build.resolve())
        for mutant in mutants:
            print(mutant)
        print(f"{len(mutants)} mutants")
        return 0
    except (ListError, json.JSONDecodeError) as error:
        print(f"tests/mutants: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
