"""What the scripts that write benchmark reports share."""
import json
import os
import platform
import subprocess


def json_rows(command, timeout):
    """Runs a bench: the JSON objects that it printed, one a line, and what it said on stderr."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, errors = process.communicate()
        errors += f"\nstopped after {timeout} s"
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")], errors


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                 platform.machine())
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "system": platform.release(),
            "load_average_before": os.getloadavg()[0]}


def shown(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def verdict(value, goal):
    return "-" if value is None else f"{value:.2f} ({'met' if value >= goal else 'missed'}: {goal:g})"


def write_report(output, text, data):
    """<output>.md for people and <output>.json for programs."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text(text)
    output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    print(text)
