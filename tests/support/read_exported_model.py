"""Prints the tensors of a .npz or .safetensors file as JSON: name -> dtype, shape, bytes in hexadecimal."""
import json
import sys
import zipfile

import numpy

DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "int32": "i32", "int64": "i64", "uint8": "u8"}
SAFETENSORS = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I32": "<i4", "I64": "<i8", "U8": "|u1"}


def entry(array):
    return {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "bytes": array.tobytes().hex()}


def read_npz(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None, "a CRC-32 is wrong"
    with numpy.load(path, allow_pickle=False) as arrays:
        return {name: entry(arrays[name]) for name in arrays.files}


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    assert header.pop("__metadata__") == {"format": "pt"}
    # The format has no gaps: each tensor begins where another ends, and the file ends with the last.
    ranges = sorted(tensor["data_offsets"] for tensor in header.values())
    assert [begin for begin, _ in ranges] == [0] + [end for _, end in ranges[:-1]]
    assert ranges[-1][1] == len(data)
    tensors = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        if tensor["dtype"] == "BF16":
            tensors[name] = {"dtype": "bf16", "shape": tensor["shape"], "bytes": data[begin:end].hex()}
        else:
            array = numpy.frombuffer(data[begin:end], SAFETENSORS[tensor["dtype"]])
            tensors[name] = entry(array.reshape(tensor["shape"]))
    return tensors


print(json.dumps((read_npz if sys.argv[1].endswith(".npz") else read_safetensors)(sys.argv[1])))
