"""Reads a checkpoint with plain h5py and compares every tensor bit for bit with the bytes in the file."""
import json
import sys

import h5py
import numpy


def check(name, dataset, entry, raw):
    values = dataset[()]
    assert list(dataset.shape) == entry["shape"], name
    assert dataset.attrs["name"].decode() == entry["name"], name
    assert dataset.attrs["role"].decode() == entry["role"], name
    assert dataset.attrs["device"].decode() == entry["device"], name
    assert int(dataset.attrs["crc32c"]) == int(entry["crc32c"], 16), name
    if entry["dtype"] == "bf16":  # h5py has no such type; every bf16 is a float32 whose low half is zero
        assert values.dtype == numpy.float32, name
        bits = values.view(numpy.uint32)
        assert not (bits & 0xFFFF).any(), name
        found = (bits >> 16).astype("<u2").tobytes()
    else:
        expected = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i32": "<i4", "i64": "<i8", "u8": "u1"}
        assert values.dtype == numpy.dtype(expected[entry["dtype"]]), name
        found = values.tobytes()
    assert found == raw[entry["offset"]:entry["offset"] + len(found)], name


with h5py.File(sys.argv[1], "r") as file:
    raw = open(sys.argv[1], "rb").read()
    manifest = json.loads(bytes(file["manifest"][()]))
    assert file.attrs["format"] == b"annulus-checkpoint"
    assert int(file.attrs["format_version"]) == manifest["version"] == 1
    for entry in manifest["tensors"]:
        group = "optimizer" if entry["role"] == "optimizer_state" else "model"
        link = "%2E" if entry["name"] == "." else entry["name"].replace("%", "%25").replace("/", "%2F")
        check(entry["name"], file[group][link], entry, raw)
    assert len(file["model"]) + len(file["optimizer"]) == len(manifest["tensors"])
    for name, value in manifest["attributes"].items():
        stored = file["training"].attrs[name]
        assert (stored.decode() if isinstance(value, str) else stored) == value, name
    print(len(manifest["tensors"]), "tensors")
